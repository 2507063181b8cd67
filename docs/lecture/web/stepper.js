/* A board that is stepped through: what a rank holds, what is sent, and the step that breaks. */

/** given: the ``board`` of a reply; space: of the board's scene. */
function stepper(element, given, { at = 0, faulty = true, space = null } = {}) {
  const program = readProgram(given.steps);
  const said = el("p", { class: "said", "aria-live": "polite" });
  const stage = el("div", { class: "stage-board" });
  let followed = null;
  const play = player({ last: () => lastOf(program), show });
  const shown = board(stage, program, {
    space,
    onFollow(chunk) {
      followed = chunk === followed ? null : chunk;
      play.tell();
    },
  });
  const button = (text, label, call, name = "") =>
    el("button", { class: name, "aria-label": label, title: label, onclick: call }, text);
  const back = button("◀ Back", "One step back", play.back);
  const run = button("Play", "Play all steps", play.play, "main");
  const step = button("Step ▶", "One step on", play.step);
  const place = el("input", {
    type: "range",
    min: 0,
    max: lastOf(program),
    step: 1,
    "aria-label": "Position",
    oninput: () => play.go(Number(place.value)),
  });
  const where = el("output", { class: "where" });
  element.replaceChildren(
    el("div", { class: "stepper" }, back, run, step, place, where),
    said,
    stage,
    legend({ added: "sent and added", copied: "sent and kept", partial: "some contributions", complete: "complete" }),
  );

  function show(now) {
    const failing = program.fault && now.at === lastOf(program);
    shown.show({ at: now.at, flight: now.flight, followed });
    const number = now.flight > 0 ? now.at : now.at - 1;
    const short = failing && program.broken === null && !now.flight; // every step can be done, and something lacks
    const done = short ? `The proof finds: ${program.fault.said}.` : sayStep(program, number, followed);
    const text = number < 0 ? `At first: ${given.begins}` : done;
    if (said.textContent !== text) said.textContent = text;
    element.classList.toggle("failing", Boolean(failing));
    place.value = now.at;
    run.textContent = now.playing ? "Pause" : "Play";
    back.disabled = now.at === 0 && !now.flight;
    step.disabled = now.at === lastOf(program);
    where.textContent =
      now.at === 0
        ? "at first"
        : failing && program.broken !== null
          ? `step ${now.at - 1} fails`
          : `after step ${now.at - 1}`;
    if (now.flight) where.textContent = `step ${now.at}`;
  }

  play.go(faulty && program.fault ? lastOf(program) : at);
  return play;
}
