/* Slides at 16:9, one at a time, as large as the window lets them be. The last script: it begins. */

const deck = document.getElementById("page");
deck.className = "deck";
deck.innerHTML = DATA.slides; // our own text
const slides = [...deck.children];
const place = el("output", { class: "place" });
const tools = el("nav", { class: "tools" }, place, themeButton(), el("a", { href: "index.html" }, "Lecture"));
document.body.append(tools);
let at = 0;

const FIGURES = {
  lanes: (view, reply) => lanesView(view, reply.lanes),
  curves: (view, reply) =>
    curvesView(view, reply.curves, { inX: (x) => inBytes(x).replace(" ", ""), title: "bytes of the buffer" }),
  cuts: (view, reply) => curvesView(view, reply.curves, { inX: String, title: "buckets", linear: true }),
  board: (view, reply) => stepper(view, reply.board),
  route: (view, reply) => legsView(view, reply),
};

/** Pictures are drawn when their slide is shown first: before, it has no width. */
function draw(slide) {
  if (slide.dataset.drawn) return;
  slide.dataset.drawn = "yes";
  for (const each of slide.querySelectorAll("[data-figure]")) {
    const { request, reply } = DATA.figures[each.dataset.figure];
    each.classList.add("view");
    FIGURES[request.ask](each, reply);
  }
  for (const each of slide.querySelectorAll("[data-cell-view]")) {
    const reply = DATA.replies[each.dataset.cellView];
    each.classList.add("view");
    if (reply.board) stepper(each, reply.board);
    else legsView(each, reply);
  }
  for (const each of slide.querySelectorAll("[data-said]")) each.textContent = DATA.replies[each.dataset.said].said;
  for (const each of slide.querySelectorAll("[data-code]")) each.append(...coloured(DATA.code[each.dataset.code]));
}

function show(number) {
  at = Math.max(0, Math.min(slides.length - 1, number));
  slides.forEach((slide, index) => slide.classList.toggle("now", index === at));
  draw(slides[at]);
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
addEventListener("beforeprint", () => {
  document.documentElement.classList.add("printed");
  slides.forEach(draw);
});
addEventListener("afterprint", () => document.documentElement.classList.remove("printed"));
addEventListener("hashchange", () => show(Number(location.hash.slice(1) || 1) - 1));
scale();
show(Number(location.hash.slice(1) || 1) - 1);
