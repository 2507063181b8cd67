/* Python, in a worker of its own: a cell that never ends is stopped by ending the worker.
 *
 * A page that was opened as a file may not load others, so everything comes in the first message: Pyodide and the
 * project's packages, as texts. ``fetch`` answers from them, and from nothing else. */

// Pages that are files get classic workers alone, which Pyodide refuses because they could not import modules once.
self.importScripts = undefined;

const FOLDER = "https://lecture.invalid/"; // a name that nobody can have: what is asked for there is in ``files``
let answer = null;

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function imported(bytes) {
  const url = URL.createObjectURL(new Blob([bytes], { type: "text/javascript" }));
  try {
    return await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
}

async function start({ files, lock }) {
  const names = Object.keys(files);
  const found = await Promise.all(names.map((name) => unpacked(files[name])));
  const bytes = Object.fromEntries(names.map((name, place) => [name, found[place]]));
  self.fetch = async (url) => {
    const name = String(url).replace(FOLDER, "");
    if (!(name in bytes)) throw new Error(`the lecture has no ${url}`);
    const type = name.endsWith(".wasm") ? "application/wasm" : "application/zip";
    return new Response(bytes[name], { headers: { "Content-Type": type } });
  };
  const [{ loadPyodide }, { default: createPyodideModule }] = await Promise.all(
    ["pyodide.mjs", "pyodide.asm.mjs"].map((name) => imported(bytes[name])),
  );
  const pyodide = await loadPyodide({
    indexURL: FOLDER,
    lockFileContents: lock,
    createPyodideModule,
    stdin: () => null, // nobody answers input()
  });
  pyodide.FS.writeFile("/packages.zip", bytes["packages.zip"]);
  pyodide.runPython("import sys; sys.path.insert(0, '/packages.zip')");
  answer = pyodide.runPython("from docs.lecture.desk.answer import answer_text; answer_text");
}

onmessage = async ({ data }) => {
  try {
    if (data.files) {
      await start(data);
      postMessage({ ready: true });
    } else {
      postMessage({ number: data.number, reply: JSON.parse(answer(JSON.stringify(data.request))) });
    }
  } catch (error) {
    postMessage({ number: data.number, failed: String(error.message ?? error) });
  }
};
