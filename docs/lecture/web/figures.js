/* Pictures of a chapter that follow sliders, and questions whose answer is a number. */

const inKilo = (value) => inBytes(value).replace(" ", "");

const FIGURES = {
  lanes: (view, reply) => lanesView(view, reply.lanes),
  curves: (view, reply) => curvesView(view, reply.curves, { inX: inKilo, title: "bytes of the buffer" }),
  cuts: (view, reply) => curvesView(view, reply.curves, { inX: String, title: "buckets", linear: true }),
  board: (view, reply) => stepper(view, reply.board),
  route: (view, reply) => legsView(view, reply),
};

function figureView(element, name, { python }) {
  const figure = DATA.figures[name];
  const given = { ...figure.request.given };
  const view = el("div", { class: "view" });
  const state = el("p", { class: "soft waits", hidden: true });
  let asked = 0;

  async function draw() {
    const mine = ++asked;
    state.hidden = false;
    state.textContent = python.isReady() ? "Computing…" : "Python is starting; then this is computed.";
    const reply = await python.ask({ ...figure.request, given });
    if (mine !== asked) return;
    state.hidden = !reply.stopped;
    state.textContent = reply.said ?? "";
    if (reply.stopped) return;
    FIGURES[figure.request.ask](view, reply);
  }

  element.classList.add("card");
  element.append(
    el("h3", {}, figure.title),
    el(
      "div",
      { class: "sliders across" },
      figure.sliders.map((each) => givenSlider(each, given, `figure-${name}`, draw)),
    ),
    view,
    state,
  );
  FIGURES[figure.request.ask](view, figure.reply);
}

/** A question; the page asks Python whether the number is right. */
function numberView(element, name, { task, kept, python, onSolved }) {
  const field = el("input", {
    type: "text",
    inputmode: "decimal",
    "aria-label": `Your answer to ${name}`,
    value: kept.get(`text ${name}`) ?? "",
    onkeydown: (event) => event.key === "Enter" && check(),
  });
  const verdict = el("div", { class: "verdict", "aria-live": "polite" });
  const unit = element.dataset.unit;
  const button = el("button", { class: "main", onclick: check }, "Check");

  async function check() {
    kept.put(`text ${name}`, field.value);
    button.disabled = true;
    verdict.className = "verdict";
    verdict.replaceChildren(python.isReady() ? "Checking…" : "Python is starting; then this is checked.");
    const reply = await python.ask({ ask: "number", exercise: name, value: field.value });
    button.disabled = false;
    const said = reply.right ? DATA.exercises[name].because : (reply.missing ?? reply.said);
    showVerdict(verdict, { ...reply, said });
    if (reply.right) onSolved(name);
  }

  element.replaceChildren(
    el("div", { class: "task" }, el("span", { class: "badge" }, "Exercise"), task),
    el("div", { class: "actions" }, field, el("span", { class: "soft" }, unit), button),
    verdict,
  );
}
