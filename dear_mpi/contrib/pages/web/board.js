/* The board: ranks where they stand, chunks that fill up, and messages on their way. A component of its own: give it
 * an element and a program of program.js, and tell it what to show. */

const WIDE = { width: 1000, height: 560, wide: 250, tall: 130 };
const NARROW = { width: 560, height: 560, wide: 180, tall: 104 }; // of a phone: the same letters are larger there
const NARROW_BELOW = 560; // pixels
const MOST_LETTERS_OF_TOKEN = 7;
const MOST_NAMED = 40; // messages whose chunks are written on them

const MOST_CLEAR = 40; // links; where there are more they are fainter

/** onFollow: called with a chunk that is clicked; space: of the scene, else one of the two above, by the width. The
 * result has ``show`` and ``element``. */
function board(element, program, { onFollow = () => {}, space = null } = {}) {
  let scene = null;
  let last = null;
  const holder = el("div", { class: "board" });
  const said = el("p", { class: "soft" });
  element.append(holder, said);

  function build(width) {
    scene = sceneOf(program, space ?? (width < NARROW_BELOW ? NARROW : WIDE), onFollow);
    holder.replaceChildren(scene.element);
    if (last) show(last);
  }

  /** at: steps carried out; flight: how far the next one is, from 0 to 1; followed: a chunk, or null. */
  function show({ at, flight = 0, followed = null }) {
    last = { at, flight, followed };
    if (!scene) return;
    scene.show(last);
    said.textContent = program.places[followed === null ? 0 : program.placed[followed]].said;
  }

  onWidth(holder, build);
  return { element, show };
}

/** What is drawn in a space of one of the two sizes. */
function sceneOf(program, space, onFollow) {
  const links = drawn("g", { class: "links" });
  const boxes = drawn("g", { class: "boxes" });
  const arrows = drawn("g", { class: "arrows" });
  const tokens = drawn("g", { class: "tokens" });
  const size = cardSize(program, space);
  const cards = Array.from({ length: program.size }, (_, rank) => rankCard(program, rank, size, onFollow));
  const element = drawn(
    "svg",
    { viewBox: `0 0 ${space.width} ${space.height}`, role: "img" },
    boxes,
    links,
    arrows,
    cards.map((card) => card.element),
    tokens,
  );
  const name = drawn("title");
  element.prepend(name);
  let placed = null;
  let shown = "";
  let ways = [];

  function place(number) {
    if (placed === number) return;
    placed = number;
    const { at, boxes: hosts } = program.places[number];
    const centers = at.map(([x, y]) => ({
      x: size.width / 2 + 6 + x * (space.width - size.width - 12),
      y: size.height / 2 + 8 + y * (space.height - size.height - 16),
    }));
    cards.forEach(({ element: card }, rank) => {
      const { x, y } = centers[rank];
      card.setAttribute("transform", `translate(${x - size.width / 2} ${y - size.height / 2})`);
    });
    scene.centers = centers;
    boxes.replaceChildren(
      ...hosts.map((ranks) =>
        hostBox(
          ranks.map((rank) => centers[rank]),
          size,
        ),
      ),
    );
    const pairs = pairsOf(program);
    links.setAttribute("opacity", Math.min(1, MOST_CLEAR / pairs.length));
    links.replaceChildren(
      ...pairs.map((pair) => drawn("path", { d: wayBetween(...pair.map((rank) => centers[rank]), size).path })),
    );
    shown = "";
  }

  function show({ at, flight, followed }) {
    place(followed === null ? 0 : program.placed[followed]);
    const fails = program.broken !== null && at > program.whole;
    const state = program.states[Math.min(at, program.whole)];
    const ends = program.fault && at === lastOf(program);
    const number = flight > 0 || fails ? Math.min(at, program.whole) : at - 1;
    const key = `${at} ${number} ${followed} ${placed}`;
    if (key !== shown) {
      shown = key;
      cards.forEach((card, rank) => {
        const here = ends && program.fault.rank === rank;
        card.show(state, { followed, wrong: here ? program.fault.chunk : null, failed: Boolean(here) });
      });
      ways = drawMessages(program.steps[number] ?? [], followed);
      name.textContent = number < 0 ? `${program.size} ranks at first` : sayStep(program, number, followed);
    }
    const far = fails && flight === 0 ? 0.5 : flight;
    for (const { way, token } of ways) {
      token.style.display = far > 0 ? "" : "none";
      const { x, y } = pointOn(way, far);
      token.setAttribute("transform", `translate(${x} ${y})`);
    }
  }

  function drawMessages(messages, followed) {
    const groups = together(messages);
    const found = groups.map((group) => {
      const [{ source, target, kind: name, fails }] = group;
      const way = wayBetween(scene.centers[source], scene.centers[target], size);
      const mine = followed === null || group.some((message) => carriesChunk(message, followed));
      const kind = `${fails ? "fails" : name}${mine ? "" : " faded"}`;
      return {
        way,
        kind,
        arrow: drawn("path", { class: kind, d: way.path }),
        token: tokenOf(group, kind, groups.length),
      };
    });
    arrows.replaceChildren(...found.flatMap(({ arrow, way, kind }) => [arrow, arrowHead(way, kind)]));
    tokens.replaceChildren(...found.map(({ token }) => token));
    return found;
  }

  const scene = { element, show, centers: [] };
  place(0);
  return scene;
}

/** The last position that can be shown: after all steps, or at the one that breaks. */
const lastOf = (program) => program.whole + (program.broken === null ? 0 : 1);

/** As large as ranks may be where they stand closest. */
function cardSize(program, space) {
  let { wide, tall } = space;
  const { width, height } = space;
  const fits = () =>
    program.places.every(({ at }) =>
      at.every(([x, y], one) =>
        at.every(([u, v], other) => {
          if (one >= other) return true;
          const apartX = Math.abs(x - u) * (width - wide);
          const apartY = Math.abs(y - v) * (height - tall);
          return apartX >= wide * 1.2 || apartY >= tall * 1.4;
        }),
      ),
    );
  while (!fits() && wide > 24) [wide, tall] = [wide * 0.94, Math.max(tall * 0.96, 40)];
  return { width: wide, height: tall };
}

/** Messages of a step that go the same way, and become the same there. */
function together(messages) {
  const found = new Map();
  for (const message of messages) {
    const key = `${message.source} ${message.target} ${message.kind}`;
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(message);
  }
  return [...found.values()];
}

/** What travels: the numbers of its chunks, or how many there are. */
function tokenOf(group, kind, count) {
  const chunks = group.flatMap(({ sent, count: many }) => Array.from({ length: many }, (_, place) => sent + place));
  const named = inRuns(chunks.sort((one, other) => one - other));
  const text = count > MOST_NAMED ? "" : named.length > MOST_LETTERS_OF_TOKEN ? `${chunks.length} ×` : named;
  const width = text.length > 2 ? 14 + 9 * text.length : text ? 28 : 12;
  const height = text ? 26 : 12;
  return drawn(
    "g",
    { class: `token ${kind}` },
    drawn("rect", { x: -width / 2, y: -height / 2, width, height, rx: 6 }),
    text && drawn("text", { y: 5.5, "font-size": 16 }, text),
  );
}

function hostBox(centers, { width, height }) {
  const xs = centers.map(({ x }) => x);
  const ys = centers.map(({ y }) => y);
  const [left, top] = [Math.min(...xs) - width / 2 - 6, Math.min(...ys) - height / 2 - 6];
  const [right, bottom] = [Math.max(...xs) + width / 2 + 6, Math.max(...ys) + height / 2 + 6];
  return drawn("rect", { x: left, y: top, width: right - left, height: bottom - top, rx: 16 });
}
