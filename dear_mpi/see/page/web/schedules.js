/* The page of schedules: lanes of all of them, what they take, and sliders among predictions. */

const page = document.getElementById("page");
const NOTHING = "Touch a bar: its name and its times stand here.";
const places = DATA.sliders.map(({ at }) => at);

const touched = el("p", { class: "touched", "aria-live": "polite" }, NOTHING);
const figures = el("div", { class: "wide" });
const missing = el(
  "p",
  { class: "fault", role: "alert", hidden: true },
  "These schedules do not go with these buckets.",
);
const drawing = el("section", { class: "card", "aria-label": "Lanes" }, signs());
const shown = lanes(drawing, DATA, { say: (text) => (touched.textContent = text) });
drawing.append(touched);
const sliders = el("section", { class: "card sliders across", "aria-label": "Network and buckets" });

function signs() {
  const used = new Set(
    Object.values(DATA.states).flatMap(({ runs }) => runs.flatMap(({ ranks }) => ranks.flatMap(kindsOf))),
  );
  const there = DATA.kinds.filter((_, number) => used.has(number));
  const found = there.map(({ said, color }) =>
    el("span", {}, el("i", { class: "swatch", style: `background: ${color}` }), said),
  );
  const lines = legend({ bound: "bound: the least that the schedule allows", border: "an iteration begins or ends" });
  lines.prepend(...found);
  return lines;
}

function kindsOf({ spans }) {
  return inGroups(spans, 5).map(([, kind]) => kind);
}

function inSliders() {
  const fields = DATA.sliders.map(({ name, labels, at }, number) =>
    slider({
      name,
      id: name.toLowerCase(),
      low: 0,
      high: labels.length - 1,
      value: at,
      format: (place) => labels[place],
      change(place) {
        places[number] = place;
        show();
      },
    }),
  );
  const near = slider({
    name: "Zoom",
    id: "zoom",
    low: 1,
    high: 20,
    value: 1,
    format: (each) => `${each} ×`,
    change: shown.zoom,
  });
  sliders.append(...[...fields, near].map(({ element }) => element));
}

/** What the sliders say, drawn on an axis as long as the longest run. */
function show() {
  const state = DATA.states[places.join(",")];
  missing.hidden = state !== undefined;
  touched.textContent = NOTHING;
  if (!state) return;
  const bounds = state.runs.map((_, number) => state.figures[number]?.bound ?? null);
  shown.draw({ runs: state.runs, bounds, seconds: Math.max(...state.runs.map(({ seconds }) => seconds)) || 1 });
  figures.replaceChildren(tableOf(state));
}

function tableOf({ runs, figures: found }) {
  const [first] = found;
  const gain = ({ iteration, verdict }, number) => {
    const times = `${digits(first.iteration / iteration)} ×`;
    return number === 0 ? "" : verdict ? `${times} ${verdict}` : times;
  };
  const heads = ["schedule", "iteration", "compute", "exposed", "bound", `speed-up over ${runs[0].name}`];
  const rows = found.map((row, number) => {
    const cells = [row.iteration, row.compute, row.exposed, row.bound].map(inSeconds);
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, runs[number].name),
      [...cells, gain(row, number)].map((text) => el("td", { class: "number" }, text)),
    );
  });
  return el(
    "table",
    { class: "results" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        heads.map((head) => el("th", { scope: "col" }, head)),
      ),
    ),
    el("tbody", {}, rows),
  );
}

const header = el(
  "header",
  { class: "head" },
  el(
    "div",
    {},
    el("h1", {}, DATA.title),
    DATA.told.map((line) => el("p", { class: "soft lines" }, line)),
  ),
  themeButton(),
);
inSliders();
page.append(
  header,
  sliders,
  missing,
  drawing,
  el("section", { class: "card" }, el("h2", {}, "What an iteration takes"), figures),
);
show();
