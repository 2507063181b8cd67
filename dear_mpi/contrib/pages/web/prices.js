/* The sliders of an algorithm's page, and what they stand for. */

const FIRST = {
  bytes: 2 ** 22,
  alpha: 2e-5,
  bandwidth: 1e10,
  gamma: 1e-10,
  between: { alpha: 5e-5, bandwidth: 1e10 },
  slow: "",
  factor: 3,
};
const ITEMSIZE = 4; // bytes of an element: fp32

/** given: what is set now, changed in place; pairs: of ranks that talk; change, rebuild: called after each move. */
function priceSliders(element, given, { sizes, cuts, hosts, pairs, change, rebuild }) {
  const set =
    (name, into = given) =>
    (value) => {
      into[name] = value;
      change();
    };
  const bits = (value) => inBits(value);
  const oneOf = (label, name, values) =>
    slider({
      name: label,
      id: name,
      low: 0,
      high: values.length - 1,
      value: values.indexOf(given[name]),
      format: (place) => String(values[place]),
      change: (place) => {
        given[name] = values[place];
        rebuild();
      },
    });
  const fields = [
    oneOf("Ranks", "ranks", sizes),
    ...(cuts.length > 1 ? [oneOf("Pieces of the buffer", "pieces", cuts)] : []),
    slider({
      name: "Bytes of the buffer",
      id: "bytes",
      low: 2 ** 10,
      high: 2 ** 30,
      value: given.bytes,
      powers: 2,
      step: 0.5,
      format: inBytes,
      change: set("bytes"),
    }),
    slider({
      name: "alpha: latency of a message",
      id: "alpha",
      low: 1e-7,
      high: 1e-2,
      value: given.alpha,
      powers: 10,
      format: inSeconds,
      change: set("alpha"),
    }),
    slider({
      name: "1 / beta: bandwidth",
      id: "beta",
      low: 1e7,
      high: 1e12,
      value: given.bandwidth,
      powers: 10,
      format: bits,
      change: set("bandwidth"),
    }),
    slider({
      name: "gamma: to add a byte",
      id: "gamma",
      low: 1e-12,
      high: 1e-8,
      value: given.gamma,
      powers: 10,
      format: inSmall,
      change: set("gamma"),
    }),
  ];
  if (hosts > 1) {
    fields.push(
      slider({
        name: "alpha between hosts",
        id: "alpha-between",
        low: 1e-7,
        high: 1e-2,
        value: given.between.alpha,
        powers: 10,
        format: inSeconds,
        change: set("alpha", given.between),
      }),
      slider({
        name: "1 / beta of a host's port",
        id: "beta-between",
        low: 1e7,
        high: 1e12,
        value: given.between.bandwidth,
        powers: 10,
        format: bits,
        change: set("bandwidth", given.between),
      }),
    );
  }
  const slow = choice({
    name: "Slow",
    id: "slow",
    entries: slowEntries(given.ranks, pairs),
    value: given.slow,
    change: (value) => {
      set("slow")(value);
      offerFactor();
    },
  });
  const factor = slider({
    name: "It takes so many times as long",
    id: "factor",
    low: 1,
    high: 20,
    step: 0.5,
    value: given.factor,
    format: (each) => `${each} ×`,
    change: set("factor"),
  });
  element.append(...fields.map((field) => field.element), slow.element, factor.element);
  const offerFactor = () => (factor.input.disabled = given.slow === ""); // it says nothing of "nothing"
  offerFactor();
  return {
    /** Ranks and links that can be slow, after the number of ranks has changed. */
    offer(found) {
      const entries = slowEntries(given.ranks, found);
      if (!entries.some(([value]) => value === given.slow)) given.slow = "";
      slow.offer(entries, given.slow);
      offerFactor();
    },
  };
}

function slowEntries(size, pairs) {
  const ranks = Array.from({ length: size }, (_, rank) => [String(rank), `rank ${rank}`]);
  const links = pairs.map(([one, other]) => [`${one} ${other}`, `link between ranks ${one} and ${other}`]);
  return [["", "nothing"], ...ranks, ...links];
}

/** The network of price.js for what is set. */
function networkOf(given, program) {
  const several = new Set(program.hosts).size > 1;
  return network({
    alpha: given.alpha,
    beta: 8 / given.bandwidth,
    gamma: given.gamma,
    hosts: several ? program.hosts : null,
    between: several ? { alpha: given.between.alpha, beta: 8 / given.between.bandwidth } : null,
    slow: given.slow === "" ? [] : given.slow.split(" ").map(Number),
    factor: given.factor,
  });
}

/** Seconds below which no algorithm gets, where all ranks are on one host and nothing breaks; otherwise null. */
function boundOf(given, program, least) {
  if (new Set(program.hosts).size > 1 || program.broken !== null) return null;
  return program.size > 1 ? given.alpha + (least * given.bytes * 8) / given.bandwidth : 0;
}
