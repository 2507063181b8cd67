/* A route: its stages on both ways, in their order, and the one that breaks it. */

/** given: ``stages`` and ``facts`` of a reply. */
function legsView(element, { stages, facts = [] }) {
  const way = (name, title) =>
    el(
      "div",
      { class: "way-of" },
      el("h4", {}, title),
      el(
        "ol",
        {},
        stages.filter((stage) => stage.way === name).map((stage) => legCard(stage)),
      ),
    );
  element.replaceChildren(
    el(
      "div",
      { class: "ways" },
      way("out", "out: what starts as reduce_scatter"),
      way("back", "back: what starts as all_gather"),
    ),
    el(
      "ul",
      { class: "facts" },
      facts.map((fact) => el("li", {}, fact)),
    ),
  );
}

function legCard({ said, thread, reads, writes, broken }) {
  const lines = (names) => names.map((name) => el("code", {}, name));
  return el(
    "li",
    { class: `stage ${thread}${broken ? " broken" : ""}` },
    el("strong", {}, said),
    el("span", { class: "soft" }, "reads ", lines(reads), " writes ", lines(writes)),
    el("span", { class: "soft" }, `${thread} thread`),
  );
}
