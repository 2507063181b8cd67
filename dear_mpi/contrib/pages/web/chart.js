/* When each rank is in which step: a row for each rank, on an axis of time that all charts of the page share. */

const ROW = { least: 14, most: 26 };
const BELOW = 26; // pixels, for the axis
const LETTER = 8; // pixels

/** onStep: called with a position that is clicked. */
function stepsChart(element, program, { onStep }) {
  const holder = el("div", { class: "chart" });
  element.append(holder);
  let width = 0;
  let last = null;
  let cursor = null;
  let across = () => 0;

  /** price: of price.js; seconds: of the axis; bound: seconds, or null. */
  function draw(given) {
    last = given;
    if (!width) return;
    const { price, seconds, bound } = given;
    const left = 64;
    const row = Math.max(ROW.least, Math.min(ROW.most, 220 / program.size));
    const height = row * program.size;
    across = (time) => left + (time / seconds) * (width - left - 12);
    const names = program.start.map((_, rank) =>
      drawn("text", { x: left - 8, y: row * (rank + 0.5) + 4, "text-anchor": "end", "font-size": 12 }, `rank ${rank}`),
    );
    const spans = price.entered.map((times, rank) =>
      price.steps.map((_, step) =>
        stepSpan({
          rank,
          step,
          row,
          begin: across(times[step]),
          end: across(times[step + 1]),
          onStep,
        }),
      ),
    );
    const moving = price.messages.map((message) => messageSpan(message, row, across));
    cursor = drawn("line", { class: "cursor", y1: 0, y2: height });
    const limit =
      bound === null
        ? null
        : drawn(
            "line",
            { class: "bound", x1: across(bound), x2: across(bound), y1: 0, y2: height },
            drawn("title", {}, "bound"),
          );
    const axis = ticksOf(seconds).map((time) =>
      drawn(
        "g",
        { class: "tick", transform: `translate(${across(time)} 0)` },
        drawn("line", { y1: 0, y2: height }),
        drawn("text", { y: height + 18, "text-anchor": "middle", "font-size": 12 }, inSeconds(time)),
      ),
    );
    holder.replaceChildren(
      drawn(
        "svg",
        {
          viewBox: `0 0 ${width} ${height + BELOW}`,
          role: "img",
          "aria-label": "When each rank is in which step",
        },
        axis,
        spans.flat(),
        moving,
        numbers(price, row, across),
        names,
        limit,
        cursor,
      ),
    );
    point(given.time);
  }

  /** A line at a time. */
  function point(time) {
    if (last) last.time = time;
    if (!cursor) return;
    cursor.setAttribute("x1", across(time));
    cursor.setAttribute("x2", across(time));
  }

  onWidth(holder, (found) => {
    width = found;
    if (last) draw(last);
  });
  return { draw, point };
}

function stepSpan({ rank, step, row, begin, end, onStep }) {
  return drawn(
    "rect",
    {
      class: `span step${step % 2}`,
      x: begin,
      y: row * rank + 1,
      width: Math.max(0, end - begin),
      height: row - 2,
      rx: 2,
      onclick: () => onStep(step + 1),
    },
    drawn("title", {}, `rank ${rank}, step ${step}`),
  );
}

/** What a receiver sees of a message: it moves, then it is combined. */
function messageSpan({ target, moves, over, done }, row, across) {
  const bar = (name, from, to) =>
    drawn("rect", {
      class: name,
      x: across(from),
      y: row * target + row * 0.22,
      width: Math.max(0, across(to) - across(from)),
      height: row * 0.56,
    });
  return [bar("transfer", moves, over), done > over ? bar("combining", over, done) : null].filter(Boolean);
}

/** The numbers of steps, where there is room. */
function numbers(price, row, across) {
  return price.entered
    .flatMap((times, rank) =>
      price.steps.map((_, step) => {
        const [begin, end] = [across(times[step]), across(times[step + 1])];
        if (end - begin < LETTER * (String(step).length + 1) || row < 13) return null;
        return drawn(
          "text",
          { class: "label", x: (begin + end) / 2, y: row * (rank + 0.5) + 4, "text-anchor": "middle", "font-size": 11 },
          String(step),
        );
      }),
    )
    .filter(Boolean);
}
