/* Lanes of schedules with a table of what they take. */

/** given: the ``lanes`` of a reply. */
function lanesView(element, given) {
  const bounds = given.figures.map(([, , , bound]) => bound);
  const touched = el(
    "p",
    { class: "touched soft", "aria-live": "polite" },
    "Touch a bar: its name and its times stand here.",
  );
  const drawing = el("div", {});
  element.replaceChildren(signsOf(given), drawing, touched, lanesTable(given.figures));
  const shown = lanes(drawing, given.table, { say: (text) => (touched.textContent = text) });
  shown.draw({ runs: given.runs, bounds, seconds: Math.max(...given.runs.map(({ seconds }) => seconds)) });
}

function signsOf({ runs, table }) {
  const used = new Set(
    runs.flatMap(({ ranks }) => ranks.flatMap(({ spans }) => inGroups(spans, 5).map(([, kind]) => kind))),
  );
  const lines = legend({ bound: "bound", border: "an iteration begins or ends" });
  lines.prepend(
    ...table.kinds
      .filter((_, number) => used.has(number))
      .map(({ said, color }) => el("span", {}, el("i", { class: "swatch", style: `background: ${color}` }), said)),
  );
  return lines;
}

function lanesTable(figures) {
  const [[, first]] = figures;
  const heads = ["schedule", "iteration", "exposed", "bound", `speed-up over ${figures[0][0]}`];
  return tableOf(
    heads,
    figures.map(([name, iteration, exposed, bound]) => [
      name,
      inSeconds(iteration),
      inSeconds(exposed),
      inSeconds(bound),
      `${digits(first / iteration)} ×`,
    ]),
  );
}

/** A table; the first column has names. */
const tableOf = (heads, rows, mark = () => "") =>
  el(
    "div",
    { class: "wide" },
    el(
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
      el(
        "tbody",
        {},
        rows.map(([name, ...cells]) =>
          el(
            "tr",
            { class: mark(name) },
            el("th", { scope: "row" }, name),
            cells.map((text) => el("td", { class: "number" }, text)),
          ),
        ),
      ),
    ),
  );
