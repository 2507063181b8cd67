/* A cell: an editor, what Python says of it, and pictures. */

/** name: of the exercise; task: what is to be done, nodes; kept: a store; python: an engine; onSolved: is called. */
function cellView(element, name, { task, kept, python, onSolved }) {
  const exercise = DATA.exercises[name];
  const edit = editor({
    text: kept.get(`text ${name}`) ?? exercise.text,
    label: `Your code for exercise ${name}`,
    onRun: run,
    onChange: (text) => kept.put(`text ${name}`, text),
  });
  const verdict = el("div", { class: "verdict", "aria-live": "polite" });
  const views = el("div", { class: "views" });
  const start = el("button", { class: "main", onclick: run, title: "Ctrl-Enter" }, "Run");
  const end = el("button", { onclick: () => python.stop(), hidden: true }, "Stop");
  const again = el("button", { class: "plain", onclick: reset }, "Start again");
  const answer = el("button", { class: "plain", onclick: reveal }, "Show an answer");
  const given = { ...exercise.given };
  const sliders = el(
    "div",
    { class: "sliders across" },
    exercise.sliders.map((each) => givenSlider(each, given, `cell-${name}`, run)),
  );
  element.replaceChildren(
    el("div", { class: "task" }, el("span", { class: "badge" }, "Exercise"), task),
    edit.element,
    el("div", { class: "actions" }, start, end, again, answer),
    verdict,
    sliders,
    views,
  );

  async function run() {
    edit.mark(null);
    start.disabled = true;
    end.hidden = false;
    verdict.className = "verdict";
    verdict.replaceChildren(python.isReady() ? "Running…" : "Python is starting; then this runs.");
    const reply = await python.ask({ ask: "cell", exercise: name, text: edit.value(), given });
    start.disabled = false;
    end.hidden = true;
    edit.mark(reply.line);
    showVerdict(verdict, reply);
    showViews(views, reply);
    if (reply.right) onSolved(name);
  }

  function reset() {
    edit.set(exercise.text);
    begin();
  }

  /** What is seen at first: what the page says of the text that it gave, and nothing of another text. */
  function begin() {
    const reply = edit.value() === exercise.text ? exercise.reply : {};
    verdict.replaceChildren();
    verdict.className = "verdict";
    if (reply.proved === false) showVerdict(verdict, reply);
    showViews(views, reply);
  }

  function reveal() {
    edit.set(exercise.answer);
    edit.mark(null);
    verdict.className = "verdict";
    verdict.replaceChildren("This is an answer. Run it.");
  }

  begin();
  return { run };
}

function showVerdict(element, { right, said, missing, proved, line, output }) {
  const kind = right ? "right" : proved === true || (missing && proved === undefined) ? "almost" : "wrong";
  element.className = `verdict ${kind}`;
  const head = { right: "Right.", almost: "Not yet.", wrong: "Refused." }[kind];
  const where = line ? ` (line ${line} of your cell)` : "";
  element.replaceChildren(
    el("p", {}, el("strong", {}, head), " ", sentence(kind === "almost" ? missing : said), where),
    right && missing === "" && proved === false ? el("p", {}, "That is what was asked for.") : "",
    kind !== "wrong" && proved && kind === "almost" ? el("p", { class: "soft" }, said) : "",
    kind === "wrong" && missing ? el("p", {}, missing) : "",
    output ? el("pre", { class: "output" }, output) : "",
  );
}

const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

/** The pictures of a reply; one without them, such as that a cell cannot be read, leaves none of an earlier one. */
function showViews(element, reply) {
  const found = [];
  const add = (title, fill) => {
    const view = el("div", { class: "view" });
    found.push(el("section", { class: "card" }, title && el("h3", {}, title), view));
    return () => fill(view);
  };
  const draws = [
    reply.board && add(reply.on ?? "", (view) => stepper(view, reply.board)),
    reply.lanes && add("On the virtual fabric", (view) => lanesView(view, reply.lanes)),
    reply.stages && add(`Route ${reply.route}`, (view) => legsView(view, reply)),
    reply.figures && add("What it costs", (view) => view.replaceChildren(tableOf(["", "yours"], reply.figures))),
    reply.race && add("The race", (view) => view.replaceChildren(raceTable(reply.race))),
  ];
  element.replaceChildren(...found);
  for (const draw of draws) if (draw) draw();
}

const raceTable = (rows) =>
  tableOf(
    ["all_reduce on 8 ranks", "1 KiB", "64 KiB", "4 MiB"],
    rows.map(([name, ...seconds]) => [name, ...seconds.map(inSeconds)]),
    (name) => (name === "yours" ? "mine" : null),
  );

/** A slider of what a cell is run with, from [name, label, low, high, step, unit]. */
function givenSlider([name, label, low, high, step, unit], given, owner, change) {
  let timer = 0;
  return slider({
    name: label,
    id: `${owner}-${name}`,
    low,
    high,
    step,
    value: given[name] ?? low,
    format: (value) => `${digits(value)}${unit}`,
    change(value) {
      given[name] = value;
      clearTimeout(timer);
      timer = setTimeout(change, 250);
    },
  }).element;
}
