/** A button that changes between day and night; at first the page follows the system. */
function themeButton() {
  const root = document.documentElement;
  const isDark = () =>
    (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = el("button", { onclick: change });
  function name() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Change to ${isDark() ? "light" : "dark"} colours`);
  }
  function change() {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  }
  name();
  return button;
}

/** The head of a page: its title and what is told below it. */
function headOf(title, told) {
  return el("header", { class: "head" }, el("div", {}, el("h1", {}, title), told), themeButton());
}
