/* A rank on the board: its name, and a bar for each chunk that fills up with contributions. */

/** rank: its number; width, height: of the card; follow: called with a chunk that is clicked. */
function rankCard(program, rank, { width, height }, follow) {
  const pad = Math.min(10, width / 12);
  const head = Math.min(32, height * 0.34);
  const [floor, ceiling] = [height - pad, head + pad / 2];
  const each = (width - 2 * pad) / program.chunks;
  const gap = Math.min(4, each * 0.18);
  const title = width < 74 ? String(rank) : `rank ${rank}`;
  const named = each >= 15 && floor - ceiling >= 26;
  const bottom = named ? floor - 16 : floor;
  const frame = drawn("rect", { class: "frame", width, height, rx: 10 });
  const name = drawn(
    "text",
    { class: "name", x: width / 2, y: head * 0.78, "font-size": Math.min(20, head * 0.68) },
    title,
  );
  const bars = Array.from({ length: program.chunks }, (_, chunk) => {
    const x = pad + chunk * each + gap / 2;
    const track = drawn("rect", {
      class: "track",
      x,
      y: ceiling,
      width: each - gap,
      height: bottom - ceiling,
      rx: Math.min(3, each / 4),
    });
    const level = drawn("rect", { class: "level", x, width: each - gap, rx: Math.min(3, each / 4) });
    const label =
      named &&
      drawn(
        "text",
        { class: "chunk", x: x + (each - gap) / 2, y: floor + 1, "font-size": Math.min(16, each * 0.7) },
        String(chunk),
      );
    const hint = drawn("title");
    const bar = drawn("g", { class: "bar", onclick: () => follow(chunk) }, track, level, label, hint);
    return { bar, level, hint };
  });
  const element = drawn(
    "g",
    { class: "rank" },
    frame,
    name,
    bars.map(({ bar }) => bar),
  );

  /** state: of all ranks; wrong: a chunk, or null; followed: a chunk, or null. */
  function show(state, { followed, wrong, failed }) {
    element.classList.toggle("failed", failed);
    bars.forEach(({ bar, level, hint }, chunk) => {
      const set = state[rank][chunk];
      const whole = program.isComplete(rank, chunk, set);
      const part = whole ? 1 : program.contributions(set).length / program.size;
      const tall = (bottom - ceiling) * part;
      level.setAttribute("y", bottom - tall);
      level.setAttribute("height", tall);
      bar.classList.toggle("complete", whole);
      bar.classList.toggle("followed", chunk === followed);
      bar.classList.toggle("faded", followed !== null && chunk !== followed);
      bar.classList.toggle("wrong", chunk === wrong);
      const held = set ? `data of ${sayHeld(program, set)}` : "nothing useful";
      hint.textContent = `chunk ${chunk} on rank ${rank}: ${held}`;
    });
  }

  return { element, show };
}
