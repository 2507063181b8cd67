/* A route: its legs on both ways, in their order, and the one that breaks it. */

/** given: ``legs`` and ``facts`` of a reply. */
function legsView(element, { legs, facts = [] }) {
  const way = (name, title) =>
    el(
      "div",
      { class: "way-of" },
      el("h4", {}, title),
      el(
        "ol",
        {},
        legs.filter((leg) => leg.way === name).map((leg) => legCard(leg)),
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
    { class: `leg ${thread}${broken ? " broken" : ""}` },
    el("strong", {}, said),
    el("span", { class: "soft" }, "reads ", lines(reads), " writes ", lines(writes)),
    el("span", { class: "soft" }, `${thread} thread`),
  );
}
