/* The table of what each rank holds: ranks down, chunks across, in letters. */

const MOST_LETTERS = 72; // in a row; where they are more, cells count instead

/** onFollow: called with the chunk of a cell that is clicked. */
function holdingsTable(element, program, { onFollow }) {
  const texts = program.sets.map((_, set) => textOf(program, set));
  const longest = Math.max(...texts.map((text) => text.length));
  const counts = longest * program.chunks > MOST_LETTERS;
  const chunks = [...Array(program.chunks).keys()];
  const heads = chunks.map((chunk) =>
    el(
      "th",
      { scope: "col" },
      el(
        "button",
        {
          class: "plain",
          onclick: () => onFollow(chunk),
          "aria-label": `Follow chunk ${chunk}`,
        },
        String(chunk),
      ),
    ),
  );
  const rows = program.start.map((_, rank) => {
    const cells = chunks.map((chunk) => el("td", { onclick: () => onFollow(chunk) }));
    return { cells, element: el("tr", {}, el("th", { scope: "row" }, `rank ${rank}`), cells) };
  });
  const reads = counts
    ? "Each cell counts the ranks whose contributions the chunk holds on that rank."
    : "Each cell names the ranks whose contributions the chunk holds on that rank (0-2: of ranks 0, 1 and 2).";
  element.append(
    el(
      "div",
      { class: "wide" },
      el(
        "table",
        { class: "holdings" },
        el("thead", {}, el("tr", {}, el("th", {}, "chunk"), heads)),
        el(
          "tbody",
          {},
          rows.map((row) => row.element),
        ),
      ),
    ),
    el("p", { class: "soft" }, `${reads} Green: complete. Framed: changed by this step.`),
  );

  function show({ at, followed }) {
    const state = program.states[Math.min(at, program.whole)];
    const before = program.states[Math.max(0, Math.min(at, program.whole) - 1)];
    const wrong = program.fault && at === lastOf(program) ? program.fault : null;
    rows.forEach(({ cells }, rank) =>
      cells.forEach((cell, chunk) => {
        const set = state[rank][chunk];
        cell.textContent = counts && set ? String(program.contributions(set).length) : texts[set];
        cell.classList.toggle("complete", program.isComplete(rank, chunk, set));
        cell.classList.toggle("empty", set === 0);
        cell.classList.toggle("changed", set !== before[rank][chunk]);
        cell.classList.toggle("followed", chunk === followed);
        cell.classList.toggle(
          "fault",
          wrong !== null && wrong.rank === rank && (wrong.chunk === null || wrong.chunk === chunk),
        );
      }),
    );
    heads.forEach((head, chunk) => head.classList.toggle("followed", chunk === followed));
  }

  return { show };
}

function textOf(program, set) {
  if (set === 0) return "–";
  const address = program.addressOf(set);
  return inRuns(program.contributions(set)) + (address === null ? "" : `→${address}`);
}
