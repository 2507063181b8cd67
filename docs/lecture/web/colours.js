/* Python in colours: comments, texts, keywords and numbers. */

const TOKENS = [
  ["comment", /#.*/],
  ["string", /"""[\s\S]*?(?:"""|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?/],
  [
    "keyword",
    /\b(?:and|as|assert|break|class|continue|def|del|elif|else|except|finally|for|from|if|import|in|is|lambda|None|not|or|pass|raise|return|self|True|False|try|while|with|yield)\b/,
  ],
  ["number", /\b\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?\b/],
  ["word", /\w+/],
];
const TOKEN = new RegExp(TOKENS.map(([, pattern]) => `(${pattern.source})`).join("|"), "g");

function coloured(text) {
  const found = [];
  let last = 0;
  for (const match of text.matchAll(TOKEN)) {
    const kind = TOKENS[match.slice(1).findIndex((each) => each !== undefined)][0];
    if (kind === "word") continue;
    found.push(text.slice(last, match.index), el("span", { class: kind }, match[0]));
    last = match.index + match[0].length;
  }
  return [...found, text.slice(last)];
}
