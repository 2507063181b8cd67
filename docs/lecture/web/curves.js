/* Lines in a plane with logarithmic axes, each with its name at its end; the lowest at a touched place is told. */

const ROOMY = { left: 64, right: 152, top: 12, bottom: 44 };
const NARROW_CHART = { left: 56, right: 24, top: 12, bottom: 44, every: 3 }; // names stand below
const NARROW_CHART_BELOW = 480; // pixels
const STROKES = ["", "9 4", "3 3", "12 3 3 3", "2 5"]; // so that lines are told apart without colours, too

/** given: x and lines; inX: a value of x in words; title: of the axis. */
function curvesView(element, given, looks) {
  const holder = el("div", {});
  const told = el(
    "p",
    { class: "soft told", "aria-live": "polite" },
    "Touch the picture: it says which is the fastest there.",
  );
  element.replaceChildren(holder, told);
  onWidth(holder, (width) => holder.replaceChildren(...curvesOf(given, { ...looks, width, told })));
}

/** The picture in a space of some width, and names below it where there is no room beside. */
function curvesOf(given, { inX, title, linear = false, width, told }) {
  const narrow = width < NARROW_CHART_BELOW;
  const { left, right, top, bottom, every } = narrow ? NARROW_CHART : { ...ROOMY, every: width < 640 ? 2 : 1 };
  const height = Math.min(440, Math.max(280, width * 0.53));
  const values = given.lines.flatMap(({ y }) => y);
  const [low, high] = linear ? [0, Math.max(...values) * 1.08] : [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
  const scale = linear ? (value) => value : Math.log10;
  const [first, last] = [Math.log2(given.x[0]), Math.log2(given.x.at(-1))];
  const across = (value) => left + ((Math.log2(value) - first) / (last - first)) * (width - left - right);
  const down = (value) =>
    height - bottom - ((scale(value) - scale(low)) / (scale(high) - scale(low))) * (height - top - bottom);
  const cursor = drawn("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  const label = (x, y, text, size) =>
    drawn("text", { class: "tick", x, y, "text-anchor": "middle", "font-size": size }, text);
  const shown = linear ? given.x : given.x.filter((_, place) => place % every === 0);
  const picture = drawn(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Time by ${title}` },
    (linear ? ticksOf(high) : powersOf(low, high)).map((value) =>
      gridLine(down(value), inSeconds(value), width, left, right),
    ),
    shown.map((value) => label(across(value), height - bottom + 18, inX(value), 12)),
    label((left + width - right) / 2, height - 6, title, 13),
    cursor,
    given.lines.map((line, number) => curveOf(line, number, { given, across, down })),
    narrow ? [] : namesOf(given, { x: width - right + 8, down }),
  );

  function tell({ clientX }) {
    const box = picture.getBoundingClientRect();
    const away = (value) => Math.abs(across(value) - ((clientX - box.left) / box.width) * width);
    const at = given.x.reduce((best, value, number) => (away(value) < away(given.x[best]) ? number : best), 0);
    cursor.setAttribute("visibility", "visible");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, across(given.x[at]));
    const order = [...given.lines].sort((one, other) => one.y[at] - other.y[at]);
    told.textContent = `${inX(given.x[at])}: ${order.map(({ name, y }) => `${name} ${inSeconds(y[at])}`).join(", ")}.`;
  }

  picture.addEventListener("pointermove", tell);
  picture.addEventListener("pointerdown", tell);
  const names = given.lines.map(({ name }, number) => el("span", { class: `named c${number}` }, name));
  return narrow ? [picture, el("p", { class: "legend" }, names)] : [picture];
}

const powersOf = (low, high) => {
  const first = Math.ceil(Math.log10(low));
  return Array.from({ length: Math.floor(Math.log10(high)) - first + 1 }, (_, place) => 10 ** (first + place));
};

const gridLine = (y, text, width, left, right) =>
  drawn(
    "g",
    { class: "grid" },
    drawn("line", { x1: left, x2: width - right, y1: y, y2: y }),
    drawn("text", { class: "tick", x: left - 8, y: y + 4, "text-anchor": "end", "font-size": 12 }, text),
  );

const curveOf = (line, number, { given, across, down }) =>
  drawn("path", {
    class: `curve c${number}`,
    "stroke-dasharray": STROKES[number % STROKES.length],
    d: `M${given.x.map((value, place) => `${across(value).toFixed(1)} ${down(line.y[place]).toFixed(1)}`).join("L")}`,
  });

/** Names at the ends of lines, moved apart where these are close. */
function namesOf(given, { x, down }) {
  const places = given.lines
    .map(({ name, y }, number) => ({ name, number, y: down(y.at(-1)) }))
    .sort((one, other) => one.y - other.y);
  places.forEach((place, at) => {
    if (at) place.y = Math.max(place.y, places[at - 1].y + 16);
  });
  return places.map(({ name, number, y }) =>
    drawn("text", { class: `name c${number}`, x, y: y + 4, "font-size": 13 }, name),
  );
}
