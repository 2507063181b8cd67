/* One algorithm on a page: its sentence, board, table and chart. Two of them stand side by side. */

/** hooks: onFollow, called with a chunk, and onStep, with a position. The result has ``last``, the last position. */
function sideOf(algorithm, number, program, hooks) {
  const said = el("p", { class: "said", "aria-live": "polite" });
  const why = el("p", { class: "soft why" });
  const stage = el("section", { class: "card side", "aria-label": algorithm.name });
  const tables = el("section", { class: "card" }, el("h2", {}, `${algorithm.name}: what each rank holds`));
  const follow = el("section", { class: "card follow" }, el("h2", {}, `${algorithm.name}: follow a chunk`));
  const chart = el("div", {}, el("h3", {}, algorithm.name));
  const parts = { stage, tables, follow, chart };
  const heading = el("h2", {}, `${algorithm.name} on ${counted(program.size, "rank")}`);
  if (program.unreadable) {
    stage.append(heading, el("p", { class: "said wrong" }, program.unreadable));
    return { ...parts, program, last: 0, price: null, show() {}, draw() {} };
  }
  const fault = program.fault && el("p", { class: "fault", role: "alert" }, `The proof says: ${program.fault.said}.`);
  stage.append(heading, said, fault ?? "");
  const shown = board(stage, program, hooks);
  stage.append(
    why,
    legend({ added: "sent and added", copied: "sent and kept", partial: "some contributions", complete: "complete" }),
  );
  const panel = followPanel(follow, program, { ...hooks, id: `follow-${number}` });
  const table = holdingsTable(tables, program, hooks);
  const times = stepsChart(chart, program, hooks);
  const side = { ...parts, program, last: lastOf(program), price: null };

  /** at: position; flight: of the next step; followed: chunk or null; time: of the cursor, in seconds. */
  side.show = ({ at, flight, followed, time }) => {
    const mine = followed !== null && followed < program.chunks ? followed : null;
    const state = { at, flight, followed: mine };
    shown.show(state);
    panel.show(state);
    table.show(state);
    times.point(time);
    stage.classList.toggle("failing", Boolean(program.fault) && at === side.last);
    const step = flight > 0 ? at : at - 1;
    const text =
      step < 0
        ? `At first: ${DATA.meaning.begins}`
        : `${sayStep(program, step, mine)} ${flight ? "" : sayProgress(program, at)}`;
    if (said.textContent !== text) said.textContent = text;
    why.textContent =
      step < 0
        ? `In the end: ${DATA.meaning.ends}`
        : step < program.whole
          ? `Why step ${step}? ${sayWhy(program, step)}`
          : "";
  };

  side.draw = times.draw;
  return side;
}

/** Where a program is at a time: how many of its steps are over on all ranks, and how far the next one is. */
function placeAt(price, time) {
  const at = price.steps.filter(({ end }) => end <= time * (1 + TIE)).length;
  if (at === price.steps.length) return { at, flight: 0 };
  const begin = at ? price.steps[at - 1].end : 0;
  return { at, flight: Math.max(0, Math.min(0.999, (time - begin) / (price.steps[at].end - begin))) };
}

/** The time at which a program is so far. */
function timeAt(price, at, flight) {
  const ends = [0, ...price.steps.map(({ end }) => end)];
  const place = Math.min(at, ends.length - 1);
  return ends[place] + (ends[Math.min(place + 1, ends.length - 1)] - ends[place]) * flight;
}
