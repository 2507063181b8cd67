/* How flows share ports: as collectives/program/network.py has it, where the reasons are. */

const TIE = 1e-10; // numbers are alike if they differ by less than this part of them

/** The flows at a side, and at every side that a chain of flows connects with it: a Map of Sets. */
function connected(side, moving) {
  const found = new Map([[side, moving.get(side) ?? new Set()]]);
  const waiting = [side];
  while (waiting.length) {
    for (const flow of found.get(waiting.pop())) {
      for (const each of flow.sides) {
        if (!found.has(each)) {
          found.set(each, moving.get(each));
          waiting.push(each);
        }
      }
    }
  }
  return found;
}

/** The part of its sides that each flow has: the tightest side first. */
function fairRates(users) {
  const rates = new Map();
  const free = new Map();
  const weights = new Map();
  let waiting = new Map();
  for (const [side, flows] of users) {
    free.set(side, 1);
    if (!flows.size) continue;
    waiting.set(side, flows.size);
    let weight = 0;
    for (const flow of flows) weight += 1 / flow.sides.length;
    weights.set(side, weight);
  }
  while (waiting.size) {
    const parts = [...waiting.keys()].map((side) => [side, free.get(side) / weights.get(side)]);
    const least = Math.min(...parts.map(([, part]) => part));
    const tight = parts.filter(([, part]) => part <= least * (1 + TIE));
    for (const [side] of tight) {
      for (const flow of users.get(side)) {
        if (rates.has(flow)) continue;
        const weight = 1 / flow.sides.length;
        const rate = least * weight;
        rates.set(flow, rate);
        for (const each of flow.sides) {
          free.set(each, free.get(each) - rate);
          weights.set(each, weights.get(each) - weight);
          waiting.set(each, waiting.get(each) - 1);
        }
      }
    }
    waiting = new Map([...waiting].filter(([, count]) => count));
  }
  return rates;
}
