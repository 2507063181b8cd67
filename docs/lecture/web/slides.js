/* Slides at 16:9, one at a time, as large as the window lets them be. The last script: it begins. */

const deck = document.getElementById("page");
deck.className = "deck";
deck.innerHTML = DATA.slides; // our own text
const slides = [...deck.children];
const place = el("output", { class: "place" });
const tools = el("nav", { class: "tools" }, place, themeButton(), el("a", { href: "index.html" }, "Lecture"));
document.body.append(tools);
let at = 0;

// Scenes of boards whose least letters are 20 pixels high: over the whole slide, or over half of it.
const WHOLE = { width: 900, height: 280, wide: 200, tall: 100 };
const HALF = { width: 500, height: 300, wide: 150, tall: 100 };
const spaceOf = (view) => (view.classList.contains("large") ? WHOLE : HALF);

const FIGURES = {
  lanes: (view, reply) => lanesView(view, reply.lanes),
  curves: (view, reply) =>
    curvesView(view, reply.curves, { inX: (x) => inBytes(x).replace(" ", ""), title: "bytes of the buffer" }),
  cuts: (view, reply) => curvesView(view, reply.curves, { inX: String, title: "buckets", linear: true }),
  board: (view, reply) => stepper(view, reply.board, { space: spaceOf(view) }),
  route: (view, reply) => legsView(view, reply),
};

/** All pictures are drawn at once: slides that are not shown have a width, too, so that they can be printed. */
function draw() {
  for (const each of deck.querySelectorAll("[data-figure]")) {
    const { request, reply } = DATA.figures[each.dataset.figure];
    each.classList.add("view", `${request.ask}-view`);
    FIGURES[request.ask](each, reply);
  }
  for (const each of deck.querySelectorAll("[data-cell-view]")) {
    const reply = DATA.replies[each.dataset.cellView];
    each.classList.add("view", reply.board ? "board-view" : "route-view");
    if (reply.board) stepper(each, reply.board, { space: spaceOf(each) });
    else legsView(each, reply);
  }
  for (const each of deck.querySelectorAll("[data-said]")) each.textContent = DATA.replies[each.dataset.said].said;
  for (const each of deck.querySelectorAll("[data-code]")) each.append(...coloured(DATA.code[each.dataset.code]));
}

function show(number) {
  at = Math.max(0, Math.min(slides.length - 1, number));
  slides.forEach((slide, index) => slide.classList.toggle("now", index === at));
  place.textContent = `${at + 1} / ${slides.length}`;
  history.replaceState(null, "", `#${at + 1}`);
}

function scale() {
  const factor = Math.min(innerWidth / 1280, innerHeight / 720);
  deck.style.setProperty("--factor", factor);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
  const steps = {
    ArrowRight: at + 1,
    PageDown: at + 1,
    ArrowLeft: at - 1,
    PageUp: at - 1,
    Home: 0,
    End: slides.length,
  };
  if (event.key === " " && event.target.tagName !== "BUTTON") steps[" "] = at + 1;
  if (!(event.key in steps)) return;
  event.preventDefault();
  show(steps[event.key]);
});
deck.addEventListener("click", (event) => {
  if (event.target.closest("button, input, a, .bar, svg")) return;
  show(event.clientX < innerWidth / 4 ? at - 1 : event.clientX > (innerWidth * 3) / 4 ? at + 1 : at);
});
addEventListener("resize", scale);
addEventListener("hashchange", () => show(Number(location.hash.slice(1) || 1) - 1));
scale();
draw();
show(Number(location.hash.slice(1) || 1) - 1);
