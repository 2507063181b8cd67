/* What happens in a step, in plain words. */

const MOST_SAID = 4; // messages, before one stands for all

function sayMessage(message, chunk = message.sent) {
  const last = message.sent + message.count - 1;
  const what = message.count > 1 ? `chunks ${message.sent}-${last}` : `chunk ${chunk}`;
  const it = message.count > 1 ? "them" : "it";
  const whats = {
    added: `, which adds ${it} to its own`,
    copied: `, which keeps ${it} as ${message.count > 1 ? "they are" : "it is"}`,
    "not taken":
      message.sent === message.received ? `, which cannot take ${it}` : `, which expects chunk ${message.received}`,
    "not received": ", which does not receive it",
    "not sent": "",
  };
  if (message.kind === "not sent")
    return `rank ${message.target} waits for ${what} of rank ${message.source}, which sends nothing`;
  return `rank ${message.source} sends ${what} to rank ${message.target}${whats[message.kind]}`;
}

/** All messages of a step in one sentence or two; the followed chunk's comes first. */
function sayStep(program, number, follow = null) {
  const messages = program.steps[number];
  if (!messages) return `Step ${number} cannot be carried out.`;
  if (!messages.length) return `Step ${number}: nothing is sent.`;
  const failing = messages.filter((message) => message.fails);
  const mine = follow === null ? [] : messages.filter((message) => carriesChunk(message, follow));
  const said = [
    ...failing,
    ...mine,
    ...messages.filter((message) => !failing.includes(message) && !mine.includes(message)),
  ];
  const one = said[0];
  const next = messages.every((message) => message.target === (message.source + 1) % program.size);
  const alike =
    next &&
    program.size > 2 &&
    messages.length === program.size &&
    messages.every((message) => message.kind === one.kind);
  if (said.length <= MOST_SAID && !alike)
    return `Step ${number}: ${said.map((message) => sayMessage(message)).join("; ")}.`;
  if (alike) return `Step ${number}: every rank sends to its successor. So ${sayMessage(one)}.`;
  return `Step ${number}: ${counted(messages.length, "message")}. For example, ${sayMessage(one)}.`;
}

/** How much is there: after ``at`` steps. */
function sayProgress(program, at) {
  const state = program.states[Math.min(at, program.whole)];
  const due = program.due.flatMap((chunks, rank) => chunks.map((chunk) => [rank, chunk]));
  const there = due.filter(([rank, chunk]) => program.isComplete(rank, chunk, state[rank][chunk])).length;
  if (there === due.length) return "Now every rank has all that it shall have.";
  return `Of ${counted(due.length, "chunk")} that ranks shall have, ${there} are complete.`;
}

/** Why a step is there: what the proof says without it. */
function sayWhy(program, number) {
  if (program.broken === number) return "";
  const before = missing(program, number);
  const after = missing(program, number + 1);
  const gained = before - after;
  const begun = gained
    ? sayGained(program, number, gained)
    : bringsMore(program, number)
      ? "It completes nothing yet, but brings contributions together."
      : "It brings nothing new: after it no rank holds more than before.";
  if (!program.without.length) return begun;
  const without = program.without[number];
  return without
    ? `${begun} Without it the proof finds: “${without}”.`
    : `${begun} It could be left out: the proof holds without it.`;
}

/** Whether some rank holds a contribution after a step that it did not hold in that chunk before. */
function bringsMore(program, number) {
  const [before, after] = [program.states[number], program.states[number + 1]];
  const isNew = (set, old) =>
    program.addressOf(set) !== program.addressOf(old) ||
    program.contributions(set).some((rank) => !program.contributions(old).includes(rank));
  return after.some((row, rank) => row.some((set, chunk) => isNew(set, before[rank][chunk])));
}

function sayGained(program, number, gained) {
  const adds = program.steps[number].some((message) => message.kind === "added");
  return adds
    ? `It completes ${counted(gained, "chunk")}, with the last contributions.`
    : `It hands ${counted(gained, "complete chunk")} on, to ranks that lacked them.`;
}

function missing(program, at) {
  const state = program.states[at];
  return program.due.reduce(
    (sum, chunks, rank) => sum + chunks.filter((chunk) => program.isMissing(rank, chunk, state)).length,
    0,
  );
}

/** What a rank holds of a chunk: of whom, and for whom. */
function sayHeld(program, set) {
  const address = program.addressOf(set);
  return several("rank", program.contributions(set)) + (address === null ? "" : ` for rank ${address}`);
}

/** Who has a chunk after so many steps. */
function sayOwner(program, chunk, at) {
  const state = program.states[Math.min(at, program.whole)];
  const ranks = [...state.keys()];
  const when = at === 0 ? "At first" : `After step ${Math.min(at, program.whole) - 1}`;
  const whole = ranks.filter((rank) => program.isComplete(rank, chunk, state[rank][chunk]));
  const belongs = `Chunk ${chunk} belongs to rank ${program.ownerOf(chunk)}.`;
  if (whole.length) return `${belongs} ${when} it is complete on ${several("rank", whole)}.`;
  const size = (rank) => program.contributions(state[rank][chunk]).length;
  const most = Math.max(...ranks.map(size));
  const best = ranks.filter((rank) => size(rank) === most);
  if (!most) return `${belongs} ${when} no rank has any of it.`;
  if (best.length > 1) return `${belongs} ${when} no rank has more of it than ${counted(most, "contribution")}.`;
  return `${belongs} ${when} rank ${best[0]} has most of it: the data of ${sayHeld(program, state[best[0]][chunk])}.`;
}
