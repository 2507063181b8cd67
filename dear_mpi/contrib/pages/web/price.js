/* When each rank enters each step: times that contrib/pages/priced.py computed, between two entries of its table. */

const TIE = 1e-10; // equal within rounding

/** alpha: seconds of a message; whole: seconds in which a link moves the buffer; bytes: of the buffer. */
function priceOf(program, { alpha, whole, bytes }) {
  const high = Math.max(1, program.prices.findIndex(([a, b]) => alpha * b >= whole * a));
  const [low, next] = [program.prices[high - 1], program.prices[high]];
  const area = low[0] * next[1] - low[1] * next[0];
  const parts = [(alpha * next[1] - whole * next[0]) / area, (low[0] * whole - low[1] * alpha) / area];
  const [one, other] = [parts[0] * low[2], parts[1] * next[2]];
  const times = (place) => low[place].map((each, at) => one * each + other * next[place][at]);
  const entered = inGroups(times(3), program.whole + 1);
  const ends = inGroups(times(4), 3);
  const sent = program.steps.slice(0, program.whole).flat();
  const messages = sent.map(({ target }, at) => ({ target, moves: ends[at][0], over: ends[at][1], done: ends[at][2] }));
  const nbytes = Array(program.size).fill(0);
  for (const { source, count } of sent) nbytes[source] += (count * bytes) / program.chunks;
  const steps = Array.from({ length: program.whole }, (_, step) => ({
    begin: Math.min(...entered.map((each) => each[step])),
    end: Math.max(...entered.map((each) => each[step + 1])),
  }));
  return { seconds: Math.max(...entered.map((each) => each.at(-1))), entered, messages, nbytes, steps };
}
