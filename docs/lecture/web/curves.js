/* Lines in a plane with logarithmic axes, each with its name at its end; the lowest at a touched place is told. */

const CHART = { width: 640, height: 340, left: 64, right: 152, top: 12, bottom: 44 };
const STROKES = ["", "9 4", "3 3", "12 3 3 3", "2 5"]; // so that lines are told apart without colours, too

/** given: x and lines; inX: a value of x in words; title: of the axis. */
function curvesView(element, given, { inX, title, linear = false }) {
  const values = given.lines.flatMap(({ y }) => y);
  const [low, high] = linear ? [0, Math.max(...values) * 1.08] : [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
  const scale = linear ? (value) => value : Math.log10;
  const { width, height, left, right, top, bottom } = CHART;
  const across = (value) =>
    left + ((Math.log2(value) - Math.log2(given.x[0])) / (Math.log2(given.x.at(-1)) - Math.log2(given.x[0]))) * (width - left - right);
  const down = (value) => height - bottom - ((scale(value) - scale(low)) / (scale(high) - scale(low))) * (height - top - bottom);
  const told = el("p", { class: "soft told", "aria-live": "polite" }, "Touch the picture: it says which is the fastest there.");
  const cursor = drawn("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  const ticks = linear ? ticksOf(high) : powersOf(low, high);
  const picture = drawn(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Time by ${title}` },
    ticks.map((value) => gridLine(down(value), inSeconds(value), width, left, right)),
    given.x.map((value) =>
      drawn("text", { class: "tick", x: across(value), y: height - bottom + 18, "text-anchor": "middle", "font-size": 12 }, inX(value)),
    ),
    drawn("text", { class: "tick", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle", "font-size": 13 }, title),
    cursor,
    given.lines.map((line, number) => curveOf(line, number, { given, across, down })),
    namesOf(given, { x: width - right + 8, down }),
  );
  picture.addEventListener("pointermove", (event) => tell(event));
  picture.addEventListener("pointerdown", (event) => tell(event));

  function tell(event) {
    const box = picture.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * width;
    const at = given.x.reduce((best, value, number) =>
      Math.abs(across(value) - place) < Math.abs(across(given.x[best]) - place) ? number : best, 0);
    cursor.setAttribute("visibility", "visible");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, across(given.x[at]));
    const order = [...given.lines].sort((one, other) => one.y[at] - other.y[at]);
    told.textContent = `${inX(given.x[at])}: ${order.map(({ name, y }) => `${name} ${inSeconds(y[at])}`).join(", ")}.`;
  }

  element.replaceChildren(picture, told);
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
  return places.map(({ name, number, y }) => drawn("text", { class: `name c${number}`, x, y: y + 4, "font-size": 13 }, name));
}
