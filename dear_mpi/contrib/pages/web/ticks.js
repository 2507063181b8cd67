const TICKS = 5; // of an axis, about

/** Round times from 0 on. */
function ticksOf(seconds) {
  const rough = seconds / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  return Array.from({ length: Math.floor(seconds / step + 1e-9) + 1 }, (_, number) => number * step);
}
