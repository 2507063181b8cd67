/* The lecture: chapters one at a time, what is solved, and Python. The last script: it begins. */

const page = document.getElementById("page");
const kept = store();
const status = el("span", { class: "status", role: "status" });
const python = engine({ source: "python.js", onState: showState });
const solved = () => new Set(kept.get("solved") ?? []);
let chapter = null;

function showState(state, text) {
  status.className = `status ${state}`;
  status.textContent = text;
  document.documentElement.dataset.python = state;
}

const links = DATA.chapters.map(({ id, title, exercises }, number) =>
  el(
    "a",
    { href: `#${id}` },
    el("span", { class: "count" }, String(number + 1)),
    el("span", { class: "title" }, title),
    el("span", { class: "done", "data-of": exercises.join(" ") }),
  ),
);
const nav = el("nav", { class: "chapters", "aria-label": "Chapters" }, links);
const content = el("article", { class: "chapter" });
const header = el(
  "header",
  { class: "head" },
  el(
    "div",
    {},
    el("p", { class: "series" }, "dear-mpi, the lecture"),
    status,
    el("button", { class: "plain end", onclick: () => python.stop(), title: "End what Python runs" }, "Stop"),
  ),
  el(
    "div",
    { class: "tools" },
    el("a", { class: "button", href: "slides.html" }, "Slides"),
    el("button", { onclick: forget, title: "Forget what I wrote and solved" }, "Forget all"),
    themeButton(),
  ),
);
page.append(header, el("div", { class: "columns" }, nav, content));

function onSolved(name) {
  kept.put("solved", [...solved().add(name)]);
  showSolved();
}

function showSolved() {
  for (const mark of nav.querySelectorAll(".done")) {
    const names = mark.dataset.of.split(" ").filter(Boolean);
    const count = names.filter((name) => solved().has(name)).length;
    mark.textContent = names.length ? (count === names.length ? "✓" : `${count}/${names.length}`) : "";
    mark.title = names.length ? `${count} of ${counted(names.length, "exercise")} solved` : "";
    mark.classList.toggle("all", count === names.length);
  }
}

function forget() {
  kept.clear();
  chapter = null;
  open();
}

/** Show the chapter that the address names. */
function open() {
  const number = Math.max(
    0,
    DATA.chapters.findIndex(({ id }) => `#${id}` === location.hash),
  );
  const found = DATA.chapters[number];
  showSolved();
  if (chapter === found.id) return;
  chapter = found.id;
  links.forEach((link, place) => link.toggleAttribute("aria-current", place === number));
  links[number].scrollIntoView({ block: "nearest", inline: "center" });
  document.title = `${found.title} · dear-mpi`;
  content.innerHTML = found.html; // our own text, from the chapters' files
  const tools = { kept, python, onSolved };
  for (const each of content.querySelectorAll("[data-figure]")) figureView(each, each.dataset.figure, tools);
  for (const each of content.querySelectorAll("[data-cell]"))
    cellView(each, each.dataset.cell, { ...tools, task: taskOf(each) });
  for (const each of content.querySelectorAll("[data-number]")) {
    numberView(each, each.dataset.number, { ...tools, task: taskOf(each) });
  }
  const next = DATA.chapters[number + 1];
  content.append(
    el(
      "p",
      { class: "next" },
      next ? el("a", { href: `#${next.id}` }, `Next: ${next.title} →`) : "This was the last chapter.",
    ),
  );
  window.scrollTo(0, 0);
}

const taskOf = (element) => el("div", {}, ...element.childNodes);

window.addEventListener("hashchange", open);
showState("starting", "Python is starting");
open();
requestAnimationFrame(() => setTimeout(python.load, 50)); // after the first paint
