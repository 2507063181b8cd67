/* What a reader has written and solved, kept where the browser lets pages keep something. */

const STORE = "dear-mpi lecture";

function store() {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    kept = {}; // a browser that keeps nothing of files
  }

  function put(name, value) {
    kept[name] = value;
    try {
      localStorage.setItem(STORE, JSON.stringify(kept));
    } catch {
      /* then it is kept until the page is closed */
    }
  }

  function clear() {
    kept = {};
    try {
      localStorage.removeItem(STORE);
    } catch {
      /* there is nothing */
    }
  }

  return { get: (name) => kept[name], put, clear };
}
