/* The page of an algorithm, or of two side by side. */

const page = document.getElementById("page");
const given = { ...FIRST, ranks: DATA.ranks, pieces: DATA.pieces };
const algorithms = DATA.algorithms;
const sizesOfAll = Object.keys(algorithms[0].sizes)
  .map(Number)
  .filter((size) => algorithms.every(({ sizes }) => size in sizes));
const cutsOfAll = [...new Set([DATA.pieces, ...algorithms.flatMap(({ cuts }) => Object.keys(cuts).map(Number))])].sort(
  (one, other) => one - other,
);
let followed = null;
let sides = [];
let seconds = 1; // of the axis of time

const header = headOf(
  `${algorithms.map(({ name }) => name).join(" beside ")}: ${DATA.collective}`,
  el("p", { class: "soft" }, `${DATA.meaning.begins} ${DATA.meaning.ends}`),
);
const bar = el("nav", { class: "card player", "aria-label": "Steps" });
const stage = el("div", { class: `stage ${algorithms.length > 1 ? "two" : "one"}` });
const sliders = el("section", { class: "card sliders", "aria-label": "Network and buffer" });
const charts = el("div", { class: "charts" });
const results = el("div", { class: "wide" });
const times = el(
  "section",
  { class: "card" },
  el("h2", {}, "When each rank is in which step"),
  legend({
    waiting: "in a step, and waiting",
    transfer: "bytes arrive",
    combining: "they are added",
    bound: "bound: no algorithm takes less",
  }),
  el("div", { class: "times" }, charts, results),
);
const tables = el("div", { class: "tables" });
const lessons = el(
  "section",
  { class: "card" },
  algorithms.map(({ name, lesson }) =>
    el("details", {}, el("summary", {}, `What the file of ${name} says`), el("pre", {}, lesson)),
  ),
);

const play = player({ last: () => Math.max(...sides.map(({ last }) => last)), show });
const showBar = playerBar(bar, play);
priceSliders(sliders, given, { sizes: sizesOfAll, cuts: cutsOfAll, change: price, rebuild: build });

/** Everything that depends on the number of ranks and of pieces. */
function build() {
  const hooks = {
    onFollow: follow,
    onStep: (at) => {
      play.setByTime(false);
      play.go(at);
    },
  };
  sides = algorithms.map((algorithm, number) => {
    const data = (algorithm.cuts[given.pieces] ?? algorithm.sizes)[given.ranks];
    return { ...sideOf(algorithm, number, data.unreadable ? data : readProgram(data), hooks), name: algorithm.name };
  });
  if (followed !== null && sides.every(({ program }) => followed >= (program.chunks ?? 0))) followed = null;
  const alone = sides.length === 1; // then there is room beside the board
  stage.replaceChildren(
    ...sides.map(({ stage: each }) => each),
    el("div", { class: "aside" }, sliders, alone && sides[0].follow),
  );
  charts.replaceChildren(...sides.map(({ chart }) => chart));
  tables.replaceChildren(
    ...sides.map((side) => (alone ? side.tables : el("div", { class: "pair" }, side.follow, side.tables))),
  );
  price();
  play.go(Math.min(play.now.at, Math.max(...sides.map(({ last }) => last))));
}

/** What all of it costs now. */
function price() {
  const network = { ...given, whole: (given.bytes * 8) / given.bandwidth };
  for (const side of sides.filter(({ program }) => !program.unreadable)) {
    side.price = priceOf(side.program, network);
    side.bound = boundOf(network, side.program, DATA.least[given.ranks]);
  }
  seconds = Math.max(...sides.map((side) => Math.max(side.price?.seconds ?? 0, side.bound ?? 0))) || 1;
  for (const side of sides) side.draw({ ...side, seconds, time: 0 });
  play.tell();
}

function show(now) {
  const time = now.part * seconds;
  const shown = sides.map((side) => {
    const place =
      now.byTime && side.price
        ? placeAt(side.price, time)
        : { at: Math.min(now.at, side.last), flight: now.at < side.last ? now.flight : 0 };
    const at = { ...place, time: now.byTime ? time : side.price ? timeAt(side.price, place.at, place.flight) : 0 };
    side.show({ ...at, followed });
    return at;
  });
  const step = (place) => (place.flight ? place.at : place.at - 1);
  results.replaceChildren(resultsTable(sides.map((side, number) => ({ ...side, step: step(shown[number]) }))));
  showBar(now, Math.max(...sides.map(({ last }) => last)), now.byTime ? inSeconds(time) : whereText(now));
}

function whereText({ at, flight }) {
  if (flight > 0) return `step ${at}`;
  const breaks = sides.some(({ program, last }) => program.broken === at - 1 && at === last && program.broken !== null);
  return at === 0 ? "at first" : breaks ? `step ${at - 1} fails` : `after step ${at - 1}`;
}

function follow(chunk) {
  followed = chunk === followed ? null : chunk;
  play.tell();
}

page.append(header, bar, stage, times, tables, lessons);
build();
const firstFault = sides.find(({ program }) => program.fault);
if (firstFault) play.go(firstFault.last); // a wrong program opens where it breaks
