/* The steps of an algorithm on one number of ranks: what contrib/pages/steps.py wrote, in words that can be read. */

const KINDS = ["copied", "added", "not taken", "not received", "not sent"];

/** A program that can be asked what each rank holds after any number of steps. */
function readProgram(data) {
  const chunks = data.size * data.parts;
  const steps = data.steps.map((flat) => inGroups(flat, 6).map(readMessage));
  const states = [data.start];
  for (const flat of data.changes) {
    const state = states.at(-1).map((row) => [...row]);
    for (const [rank, chunk, set] of inGroups(flat, 3)) state[rank][chunk] = set;
    states.push(state);
  }
  return {
    ...data,
    chunks,
    steps,
    states,
    whole: data.changes.length, // steps that can be carried out
    broken: data.fault ? data.fault.step : null,
    ownerOf: (chunk) => Math.floor(chunk / data.parts),
    contributions: (set) => data.sets[set][0],
    addressOf: (set) => data.sets[set][1] ?? null,
    isComplete: (rank, chunk, set) => set === data.complete[rank][chunk],
    isMissing: (rank, chunk, state) =>
      data.due[rank].includes(chunk) && state[rank][chunk] !== data.complete[rank][chunk],
  };
}

function readMessage([source, target, sent, received, count, kind]) {
  return { source, target, sent, received, count, kind: KINDS[kind], added: kind === 1, fails: kind > 1 };
}

/** The messages of a step that bring this chunk to a rank, or take it from one. */
function carriesChunk(message, chunk) {
  return chunk >= message.sent && chunk < message.sent + message.count;
}
