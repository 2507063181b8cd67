/* Python in its worker: it is loaded after the first paint, asked one thing after the other, and stopped if it hangs. */

const LIMIT_MS = 30000; // of a request, once Python is ready

function engine({ source, onState }) {
  let given = null; // the worker's script, and what it needs
  let worker = null;
  let ready = false;
  let number = 0;
  let running = null; // { number, resolve, timer }
  let broken = ""; // why there is no Python, if there is none
  const waiting = [];

  /** Python cannot be had: whoever asks is told so. */
  function fail(said) {
    broken = said;
    onState("failed", said);
    dismiss(said);
  }

  /** Whoever waits is told why nothing comes. */
  function dismiss(said) {
    for (const { resolve } of waiting.splice(0)) resolve(refused(said));
  }

  const refused = (said) => ({ right: false, stopped: true, said, line: null });

  function load() {
    window.lectureHasPython = (script, parts) => {
      given = { url: URL.createObjectURL(new Blob([script], { type: "text/javascript" })), parts };
      begin();
    };
    const missing = () => fail(`${source} cannot be loaded: it must be beside this page`);
    document.head.append(el("script", { src: source, onerror: missing }));
  }

  function begin() {
    ready = false;
    onState("starting", "Python is starting");
    worker = new Worker(given.url);
    worker.onmessage = ({ data }) => receive(data);
    worker.onerror = (event) => fail(`Python cannot start here: ${event.message ?? "no worker"}`);
    worker.postMessage(given.parts);
  }

  function receive({ ready: begun, number: answered, reply, failed }) {
    if (begun) {
      ready = true;
      onState("ready", "Python is ready");
      return next();
    }
    if (!running || answered !== running.number) return failed && fail(`Python cannot start here: ${failed}`);
    finish(reply ?? { right: false, said: failed, line: null });
  }

  function finish(reply) {
    clearTimeout(running.timer);
    const { resolve } = running;
    running = null;
    onState(ready ? "ready" : "starting", ready ? "Python is ready" : "Python is starting");
    resolve(reply);
    next();
  }

  function next() {
    if (!ready || running || !waiting.length) return;
    running = waiting.shift();
    running.number = ++number;
    running.timer = setTimeout(
      () => stop(`It was stopped after ${LIMIT_MS / 1000} seconds: does a loop never end?`),
      LIMIT_MS,
    );
    onState("busy", "Python is running");
    worker.postMessage({ number: running.number, request: running.request });
  }

  /** End what runs, and Python starts anew; or what waits for Python. */
  function stop(said = "You stopped it.") {
    if (!running) return dismiss(said);
    worker.terminate();
    const { resolve, timer } = running;
    clearTimeout(timer);
    running = null;
    resolve(refused(said));
    begin();
  }

  const ask = (request) =>
    new Promise((resolve) => {
      if (broken) return resolve(refused(broken));
      waiting.push({ request, resolve });
      next();
    });

  return { load, ask, stop, isReady: () => ready };
}
