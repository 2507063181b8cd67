/* Lanes of runs on one axis of time: two rows for each rank, what is exposed shaded. A component of its own. */

const LANE = { row: 22, gap: 8, title: 30, axis: 30, left: 70, right: 14 };
const LETTERS = 7; // pixels of a letter on a bar
const LEAST = 0.7; // pixels of a bar

/** table: lanes, kinds and names of a page; say: called with a text when a bar is touched. */
function lanes(element, table, { say }) {
  const holder = el("div", { class: "lanes wide" });
  element.append(holder);
  const wait = table.kinds.findIndex(({ name }) => name === "wait");
  let width = 0;
  let last = null;
  let zoom = 1;

  /** runs: of a state; bounds: seconds of each, or null; seconds: of the axis. */
  function draw(state) {
    last = state;
    if (!width) return;
    const whole = width * zoom;
    const across = (time) => LANE.left + (time / state.seconds) * (whole - LANE.left - LANE.right);
    let top = 0;
    const parts = state.runs.map((run, number) => {
      const part = runGroup(run, state.bounds[number], top, across);
      top += part.height;
      return part.element;
    });
    const ticks = ticksOf(state.seconds).map((time) =>
      drawn(
        "g",
        { class: "tick", transform: `translate(${across(time)} 0)` },
        drawn("line", { y2: top }),
        drawn("text", { y: top + 18, "text-anchor": "middle", "font-size": 12 }, inSeconds(time)),
      ),
    );
    const image = drawn("svg", {
      viewBox: `0 0 ${whole} ${top + LANE.axis}`,
      style: `width: ${whole}px`,
      role: "img",
      "aria-label": `Lanes of ${state.runs.map(({ name }) => name).join(", ")}`,
    });
    image.append(...ticks, ...parts);
    holder.replaceChildren(image);
  }

  function runGroup(run, bound, top, across) {
    const group = drawn("g", { class: "run" });
    const head = `${run.name}: ${inSeconds(run.last)}, ${inSeconds(run.exposed)} exposed`;
    group.append(drawn("text", { class: "run-name", x: 4, y: top + 20, "font-size": 14 }, head));
    let at = top + LANE.title;
    for (const rank of run.ranks) {
      group.append(rankGroup(run, rank, bound, at, across));
      at += table.lanes.length * LANE.row + LANE.gap;
    }
    return { element: group, height: at - top + LANE.gap };
  }

  function rankGroup(run, rank, bound, top, across) {
    const place = (units) => across(units * run.unit);
    const tall = table.lanes.length * LANE.row;
    const spans = inGroups(rank.spans, 5).map(([lane, kind, name, begin, length]) => ({
      lane,
      kind,
      name,
      begin,
      length,
    }));
    const waits = spans.filter(({ kind }) => kind === wait);
    const others = spans.filter(({ kind }) => kind !== wait);
    const bar = (span, y, height) => {
      const { color, dark } = table.kinds[span.kind];
      const [x, wide] = [place(span.begin), Math.max(LEAST, place(span.begin + span.length) - place(span.begin))];
      const [full, short] = table.names[span.name];
      const touch = () => say(spanText(run, rank, full, span));
      const shape = drawn("rect", { x, y, width: wide, height, fill: color, onpointerenter: touch, onclick: touch });
      if (!short || span.kind === wait || wide < LETTERS * (short.length + 1)) return shape;
      const look = { x: x + wide / 2, y: y + height / 2 + 4, fill: dark ? "#fff" : "#111", "font-size": 11 };
      return [shape, drawn("text", { ...look, class: "on-bar", style: `fill: ${look.fill}` }, short)];
    };
    const heads = run.ranks.length > 1 ? [rank.name, ...table.lanes.slice(1)] : table.lanes;
    const names = heads.map((lane, row) =>
      drawn(
        "text",
        { x: LANE.left - 8, y: top + (row + 0.5) * LANE.row + 4, "text-anchor": "end", "font-size": 12 },
        lane,
      ),
    );
    const borders = rank.borders.map((border) =>
      drawn("line", { class: "border", x1: place(border), x2: place(border), y1: top - 3, y2: top + tall + 3 }),
    );
    const begun = rank.borders.at(-2);
    const limit = bound === null ? null : across(begun * run.unit + bound);
    return drawn(
      "g",
      {},
      waits.map((span) => bar(span, top, tall)),
      others.map((span) => bar(span, top + span.lane * LANE.row + 1.5, LANE.row - 3)),
      borders,
      limit !== null && drawn("line", { class: "bound", x1: limit, x2: limit, y1: top - 3, y2: top + tall + 3 }),
      names,
    );
  }

  function spanText(run, rank, full, { begin, length }) {
    const [from, to] = [begin * run.unit, (begin + length) * run.unit];
    return `${run.name}, ${rank.name}: ${full}: ${inSeconds(from)} to ${inSeconds(to)}, ${inSeconds(to - from)} in all`;
  }

  onWidth(element, (found) => {
    width = found - 2 * parseFloat(getComputedStyle(element).paddingLeft);
    if (last) draw(last);
  });
  return {
    draw,
    zoom(times) {
      zoom = times;
      if (last) draw(last);
    },
  };
}

/** What the colours of these runs mean, and lines between them, whose texts are by the names of their signs. */
function laneSigns(runs, { kinds }, lines) {
  const groups = runs.flatMap(({ ranks }) => ranks.flatMap(({ spans }) => inGroups(spans, 5)));
  const used = new Set(groups.map(([, kind]) => kind));
  const element = legend(lines);
  element.prepend(
    ...kinds
      .filter((_, number) => used.has(number))
      .map(({ said, color }) => el("span", {}, el("i", { class: "swatch", style: `background: ${color}` }), said)),
  );
  return element;
}
