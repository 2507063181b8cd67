/* One chunk: whose it is, where it is now, and the way that it takes. */

/** onFollow: called with a chunk or null; onStep: with a step that is clicked. */
function followPanel(element, program, { onFollow, onStep, id }) {
  const entries = [
    ["", "nothing"],
    ...Array.from({ length: program.chunks }, (_, chunk) => [String(chunk), `chunk ${chunk}`]),
  ];
  const chosen = choice({
    name: "Follow",
    id,
    entries,
    change: (text) => onFollow(text === "" ? null : Number(text)),
  });
  const owner = el("p", { class: "owner" });
  const way = el("ol", { class: "way" });
  element.append(chosen.element, owner, way);
  let shown = null;

  function wayOf(chunk) {
    const found = program.steps.map((step, number) => [number, step.filter((message) => carriesChunk(message, chunk))]);
    return found
      .filter(([, messages]) => messages.length)
      .map(([number, messages]) => {
        const becomes = (kind) => (kind === "copied" ? "kept" : kind);
        const text = messages.map(({ source, target, kind }) => `${source} → ${target} ${becomes(kind)}`).join(", ");
        return {
          number,
          item: el(
            "li",
            {},
            el("button", { class: "plain", onclick: () => onStep(number + 1) }, `step ${number}`),
            ` ${text}`,
          ),
        };
      });
  }

  let items = [];
  function show({ at, followed }) {
    if (followed !== shown) {
      shown = followed;
      chosen.select.value = followed === null ? "" : String(followed);
      items = followed === null ? [] : wayOf(followed);
      way.replaceChildren(...items.map(({ item }) => item));
    }
    owner.textContent =
      followed === null
        ? "Click a chunk to follow it, here, on the board or in the table."
        : sayOwner(program, followed, at);
    for (const { number, item } of items) {
      item.classList.toggle("now", number === at - 1);
      item.classList.toggle("later", number >= at);
      if (number === at - 1) way.scrollTop = item.offsetTop - way.offsetTop - way.clientHeight / 2;
    }
  }

  return { show };
}
