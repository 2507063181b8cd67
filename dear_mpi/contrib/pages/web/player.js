/* Play, step and back: where the page is, by steps or by time, and how it gets from one place to the next. */

const STEP_MS = 1100; // of a step that is played
const PAUSE_MS = 500; // after it
const RUN_MS = 14000; // of everything, by time
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** last: a function of the last position; show: called with { at, flight } or { part }, from 0 to 1 of all time. */
function player({ last, show }) {
  const now = { at: 0, flight: 0, byTime: false, part: 0, playing: false };
  let frame = 0;
  let begun = 0;
  let onState = () => {};

  function tell() {
    show(now);
    onState(now);
  }

  function halt() {
    cancelAnimationFrame(frame);
    frame = 0;
    now.playing = false;
    now.flight = 0;
  }

  function go(at, part = now.part) {
    halt();
    now.at = Math.max(0, Math.min(last(), at));
    now.part = Math.max(0, Math.min(1, part));
    tell();
  }

  /** One step, in motion; a second call while it moves ends the motion. */
  function step() {
    if (now.byTime) return go(now.at, now.part + 1 / 40);
    const moving = frame !== 0 && !now.playing;
    if (moving || still() || now.at >= last()) return go(now.at + 1);
    halt();
    run(false);
  }

  function run(on) {
    now.playing = on;
    begun = performance.now() - now.flight * STEP_MS - (now.byTime ? now.part * RUN_MS : 0);
    frame = requestAnimationFrame(tick);
  }

  function tick(time) {
    if (now.byTime) {
      now.part = Math.min(1, Math.max(0, time - begun) / RUN_MS);
      if (now.part === 1) halt();
    } else {
      const gone = Math.max(0, time - begun);
      const far = Math.min(gone / STEP_MS, 1);
      const arrived = far === 1;
      now.flight = arrived || still() || now.at >= last() ? 0 : far;
      if (arrived && now.at < last()) {
        now.at += 1;
        begun = time + PAUSE_MS;
        if (!now.playing || now.at === last()) halt();
      } else if (now.at >= last()) halt();
    }
    if (frame) frame = requestAnimationFrame(tick);
    tell();
  }

  function play() {
    if (now.playing) return go(now.at);
    if (now.byTime ? now.part === 1 : now.at === last()) Object.assign(now, { at: 0, part: 0 });
    halt();
    run(true);
    tell();
  }

  return {
    now,
    go,
    step,
    play,
    tell,
    back: () => (now.byTime ? go(now.at, now.part - 1 / 40) : go(now.flight ? now.at : now.at - 1)),
    begin: () => go(0, 0),
    end: () => go(last(), 1),
    setByTime(on) {
      halt();
      now.byTime = on;
      tell();
    },
    listen: (call) => (onState = call),
  };
}

/** Buttons, a slider of positions, and the keyboard. */
function playerBar(element, play) {
  const button = (text, label, call, name = "") =>
    el("button", { class: name, "aria-label": label, title: label, onclick: call }, text);
  const start = button("Start", "Back to the start (Home)", play.begin);
  const back = button("◀ Back", "One step back (left arrow)", play.back);
  const run = button("Play", "Play (space)", play.play, "main");
  const step = button("Step ▶", "One step on (right arrow)", play.step);
  const place = el("input", { type: "range", min: 0, step: 1, "aria-label": "Position", oninput: () => moved() });
  const where = el("output", { class: "where" });
  const modes = [
    ["Steps", false],
    ["Time", true],
  ].map(([text, on]) => [on, el("button", { onclick: () => play.setByTime(on) }, text)]);
  element.append(
    start,
    back,
    run,
    step,
    place,
    where,
    el(
      "span",
      { class: "joined", role: "group", "aria-label": "How it goes on" },
      modes.map(([, mode]) => mode),
    ),
  );

  const moved = () => (play.now.byTime ? play.go(play.now.at, place.value / 1000) : play.go(Number(place.value)));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
    const calls = { ArrowRight: play.step, ArrowLeft: play.back, Home: play.begin, End: play.end, " ": play.play };
    if (event.key === " " && ["BUTTON", "SUMMARY"].includes(event.target.tagName)) return;
    if (!(event.key in calls)) return;
    event.preventDefault();
    calls[event.key]();
  });
  /** last: position; text: where that is, in words. */
  return (now, last, text) => {
    place.max = now.byTime ? 1000 : last;
    place.value = now.byTime ? now.part * 1000 : now.at;
    where.textContent = text;
    run.textContent = now.playing ? "Pause" : "Play";
    const [first, end] = now.byTime ? [now.part === 0, now.part === 1] : [now.at === 0 && !now.flight, now.at === last];
    start.disabled = back.disabled = first;
    step.disabled = end;
    for (const [on, mode] of modes) mode.setAttribute("aria-pressed", String(on === now.byTime));
  };
}
