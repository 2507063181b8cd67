/* What the sliders give: a row for each figure, a column for each algorithm. */

/** columns: of each algorithm { name, program, price, bound, step }. */
function resultsTable(columns) {
  const readable = columns.filter(({ price }) => price);
  const rows = [
    ["time", ({ price }) => inSeconds(price.seconds)],
    [
      "bound",
      ({ bound }) => (bound === null ? "–" : inSeconds(bound)),
      "No algorithm is faster: alpha, and beta for what crosses a link",
    ],
    ["time / bound", ({ price, bound }) => (bound ? `${digits(price.seconds / bound)} ×` : "–")],
    [
      "this step",
      ({ price, step }) => (price.steps[step] ? inSeconds(stepSeconds(price, step)) : "–"),
      "From the end of the step before to its end, on all ranks",
    ],
    ["steps", ({ program }) => String(program.whole)],
    ["the busiest rank sends", ({ price }) => inBytes(Math.max(...price.nbytes))],
    ["all ranks send", ({ price }) => inBytes(price.nbytes.reduce((sum, each) => sum + each, 0))],
  ];
  return figuresTable(
    [null, ...readable.map(({ name }) => name)],
    rows.map(([name, read, hint]) => ({ name, hint, cells: readable.map(read) })),
  );
}

const stepSeconds = (price, step) => price.steps[step].end - (step ? price.steps[step - 1].end : 0);
