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
const everyRun = Object.values(DATA.states).flatMap(({ runs }) => runs);
const signs = laneSigns(everyRun, DATA, {
  bound: "bound: the least that the schedule allows",
  border: "an iteration begins or ends",
});
const drawing = el("section", { class: "card", "aria-label": "Lanes" }, signs);
const shown = lanes(drawing, DATA, { say: (text) => (touched.textContent = text) });
drawing.append(touched);
const sliders = el("section", { class: "card sliders across", "aria-label": "Network and buckets" });

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
    const times = [row.iteration, row.compute, row.exposed, row.bound].map(inSeconds);
    return { name: runs[number].name, cells: [...times, gain(row, number)] };
  });
  return figuresTable(heads, rows);
}

const header = headOf(
  DATA.title,
  DATA.told.map((line) => el("p", { class: "soft lines" }, line)),
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
