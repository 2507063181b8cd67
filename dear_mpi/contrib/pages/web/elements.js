/* Elements in one call: el("p", { class: "soft" }, "text"); what begins with "on" is a listener. */

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== false));
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

const drawn = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Call with the width of an element now, and whenever it changes. */
function onWidth(element, show) {
  let last = 0;
  const look = () => {
    const width = Math.round(element.clientWidth);
    if (width && width !== last) show((last = width));
  };
  new ResizeObserver(look).observe(element);
  look();
}

/** What colours mean: texts by the names of their signs in the style sheet. */
const legend = (signs) =>
  el(
    "p",
    { class: "legend soft" },
    Object.entries(signs).map(([name, text]) => el("span", { class: `sign ${name}` }, text)),
  );

/** A table. heads: of columns, the first above the names of rows, or null; rows: { name, cells, hint, mark }. */
const figuresTable = ([corner, ...heads], rows) =>
  el(
    "table",
    { class: "results" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        corner === null ? el("td") : el("th", { scope: "col" }, corner),
        heads.map((head) => el("th", { scope: "col" }, head)),
      ),
    ),
    el(
      "tbody",
      {},
      rows.map(({ name, cells, hint = null, mark = null }) =>
        el(
          "tr",
          { class: mark },
          el("th", { scope: "row", title: hint }, name),
          cells.map((text) => el("td", { class: "number" }, text)),
        ),
      ),
    ),
  );
