/* Numbers as people read them: three digits, and a unit. */

function withUnit(value, units) {
  if (value === 0) return "0";
  const [size, name] = [...units].reverse().find(([each]) => Math.abs(value) >= each * 0.9995) ?? units[0];
  return `${digits(value / size)} ${name}`;
}

/** Three digits, without zeros behind the point: 1.5, 12.3, 1230. */
function digits(value) {
  return Math.abs(value) >= 1000 ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
}

const inSeconds = (value) =>
  withUnit(value, [
    [1e-9, "ns"],
    [1e-6, "µs"],
    [1e-3, "ms"],
    [1, "s"],
  ]);
const inBytes = (value) =>
  withUnit(value, [
    [1, "B"],
    [2 ** 10, "KiB"],
    [2 ** 20, "MiB"],
    [2 ** 30, "GiB"],
  ]);
const inBits = (value) =>
  withUnit(value, [
    [1e3, "kbit/s"],
    [1e6, "Mbit/s"],
    [1e9, "Gbit/s"],
    [1e12, "Tbit/s"],
  ]);

/** Numbers in runs: 0-2,5. */
function inRuns(numbers, between = ",") {
  const runs = [];
  for (const number of numbers) {
    const last = runs.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(between);
}

/** "rank 1", "ranks 0 and 2", "ranks 0-3": in a sentence. */
function several(what, numbers) {
  if (numbers.length === 1) return `${what} ${numbers[0]}`;
  const runs = inRuns(numbers).split(",");
  const last = runs.pop();
  return `${what}s ${runs.length ? `${runs.join(", ")} and ` : ""}${last}`;
}

const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

/** A flat list as lists of so many. */
function inGroups(flat, length) {
  const found = [];
  for (let at = 0; at < flat.length; at += length) found.push(flat.slice(at, at + length));
  return found;
}
