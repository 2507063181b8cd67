/* An editor of Python: a text area over the same text in colours, with numbers of lines. Tab indents, Ctrl-Enter runs. */

const INDENT = "    ";

function editor({ text, label, onRun, onChange }) {
  const area = el("textarea", {
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    wrap: "off",
    "aria-label": label,
    oninput: changed,
    onkeydown: pressed,
    onscroll: aligned,
  });
  const shown = el("pre", { "aria-hidden": "true" });
  const numbers = el("div", { class: "numbers", "aria-hidden": "true" });
  const element = el("div", { class: "editor" }, numbers, el("div", { class: "sheet" }, shown, area));
  let wrong = null;

  function changed() {
    wrong = null;
    draw();
    onChange(area.value);
  }

  function draw() {
    shown.replaceChildren(...coloured(`${area.value}\n`));
    const lines = area.value.split("\n").length;
    numbers.replaceChildren(
      ...Array.from({ length: lines }, (_, at) =>
        el("span", { class: at + 1 === wrong ? "wrong" : "" }, String(at + 1)),
      ),
    );
    area.rows = Math.max(lines, 4);
  }

  function aligned() {
    shown.style.transform = `translateX(${-area.scrollLeft}px)`;
  }

  function pressed(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      return onRun();
    }
    if (event.key === "Escape") return area.blur(); // so that Tab leaves the editor
    if (event.key === "Tab") {
      event.preventDefault();
      return event.shiftKey ? outdent() : insert(INDENT);
    }
    if (event.key === "Enter") {
      event.preventDefault();
      const line = area.value.slice(0, area.selectionStart).split("\n").at(-1);
      insert(`\n${line.match(/^ */)[0]}${/:\s*(#.*)?$/.test(line) ? INDENT : ""}`);
    }
  }

  function insert(added) {
    area.setRangeText(added, area.selectionStart, area.selectionEnd, "end");
    changed();
  }

  function outdent() {
    const begin = area.value.lastIndexOf("\n", area.selectionStart - 1) + 1;
    const many = area.value.slice(begin).match(/^ {0,4}/)[0].length;
    area.setRangeText("", begin, begin + many, "preserve");
    changed();
  }

  function set(value) {
    area.value = value;
    changed();
  }

  area.value = text;
  draw();
  return {
    element,
    set,
    value: () => area.value,
    /** Mark a line, or none. */
    mark(line) {
      wrong = line;
      draw();
    },
  };
}
