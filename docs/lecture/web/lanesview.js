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
  const signs = laneSigns(given.runs, given.table, { bound: "bound", border: "an iteration begins or ends" });
  element.replaceChildren(signs, drawing, touched, lanesTable(given.figures));
  const shown = lanes(drawing, given.table, { say: (text) => (touched.textContent = text) });
  shown.draw({ runs: given.runs, bounds, seconds: Math.max(...given.runs.map(({ seconds }) => seconds)) });
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

/** A table; the first column has names, and ``mark`` the class of a name's row. */
const tableOf = (heads, rows, mark = () => null) =>
  el(
    "div",
    { class: "wide" },
    figuresTable(
      heads,
      rows.map(([name, ...cells]) => ({ name, cells, mark: mark(name) })),
    ),
  );
