/** A slider with a label and its value in words. Values go by powers of ``powers``, if there are any. */
function slider({ name, id, low, high, value, powers = 0, step = null, format = String, change }) {
  const place = (each) => (powers ? Math.log(each) / Math.log(powers) : each);
  const read = (each) => (powers ? powers ** each : each);
  const input = el("input", {
    type: "range",
    id,
    min: place(low),
    max: place(high),
    step: step ?? (powers ? 0.05 : 1),
    oninput: moved,
  });
  input.value = place(value);
  const output = el("output", { for: id });
  function say() {
    output.textContent = format(read(Number(input.value)));
    input.setAttribute("aria-valuetext", output.textContent);
  }
  function moved() {
    say();
    change(read(Number(input.value)));
  }
  say();
  const element = el("div", { class: "slider" }, el("label", { for: id }, name), output, input);
  return { element, input };
}

/** A choice of one of several texts; values are those of the entries. */
function choice({ name, id, entries, change }) {
  const options = entries.map(([each, text]) => el("option", { value: each }, text));
  const select = el("select", { id, onchange: () => change(select.value) }, options);
  return { element: el("div", { class: "choice" }, el("label", { for: id }, name), select), select };
}
