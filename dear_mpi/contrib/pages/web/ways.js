/* The way of a message between two ranks: an arc, so that those of both directions do not lie on each other. */

const BEND = 0.13; // of the distance

/** From the edge of one card to the edge of another, bent to the left. */
function wayBetween(from, to, size) {
  const bend = { x: (from.x + to.x) / 2 + (to.y - from.y) * BEND, y: (from.y + to.y) / 2 - (to.x - from.x) * BEND };
  const begin = edgeOf(from, bend, size, 2);
  const end = edgeOf(to, bend, size, 7);
  const spelled = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  return { begin, bend, end, path: `M${spelled(begin)}Q${spelled(bend)} ${spelled(end)}` };
}

/** Where the line from the middle of a card to a point leaves it. */
function edgeOf(center, point, { width, height }, apart) {
  const [dx, dy] = [point.x - center.x, point.y - center.y];
  const length = Math.hypot(dx, dy) || 1;
  const reach = Math.min(width / 2 / Math.abs(dx || 1e-9), height / 2 / Math.abs(dy || 1e-9));
  const part = Math.min(reach + apart / length, 0.95);
  return { x: center.x + dx * part, y: center.y + dy * part };
}

function pointOn({ begin, bend, end }, far) {
  const near = 1 - far;
  const along = (axis) => near * near * begin[axis] + 2 * near * far * bend[axis] + far * far * end[axis];
  return { x: along("x"), y: along("y") };
}

function arrowHead({ bend, end }, kind) {
  const angle = (Math.atan2(end.y - bend.y, end.x - bend.x) * 180) / Math.PI;
  return drawn("path", {
    class: `head ${kind}`,
    d: "M6 0L-9 -7L-9 7Z",
    transform: `translate(${end.x} ${end.y}) rotate(${angle})`,
  });
}

/** Who talks to whom, each direction once. */
function pairsOf(program) {
  const found = new Map();
  for (const { source, target } of program.steps.flat()) found.set(`${source} ${target}`, [source, target]);
  return [...found.values()];
}
