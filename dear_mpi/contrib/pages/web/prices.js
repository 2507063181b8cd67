/* The sliders of an algorithm's page. */

const FIRST = { bytes: 2 ** 22, alpha: 2e-5, bandwidth: 1e10 };

/** given: what is set now, changed in place; change, rebuild: called after each move. */
function priceSliders(element, given, { sizes, cuts, change, rebuild }) {
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
  const number = (label, name, low, high, powers, format, step = null) =>
    slider({
      ...{ name: label, id: name, low, high, value: given[name], powers, step, format },
      change: (value) => {
        given[name] = value;
        change();
      },
    });
  const fields = [
    oneOf("Ranks", "ranks", sizes),
    ...(cuts.length > 1 ? [oneOf("Pieces of the buffer", "pieces", cuts)] : []),
    number("Bytes of the buffer", "bytes", 2 ** 10, 2 ** 30, 2, inBytes, 0.5),
    number("alpha: latency of a message", "alpha", 1e-7, 1e-2, 10, inSeconds),
    number("1 / beta: bandwidth", "bandwidth", 1e7, 1e12, 10, inBits),
  ];
  element.append(...fields.map((field) => field.element), el("p", { class: "soft" }, DATA.assumed));
}

/** Seconds below which no algorithm gets, where all ranks are on one host and nothing breaks; otherwise null. */
function boundOf({ alpha, whole }, program, least) {
  if (new Set(program.hosts).size > 1 || program.broken !== null) return null;
  return program.size > 1 ? alpha + least * whole : 0;
}
