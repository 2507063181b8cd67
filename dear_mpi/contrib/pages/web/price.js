/* What a program costs, and when each rank enters each step: collectives/program/simulation.py, event by event. Tests
 * hold both against each other. Of the model there, o is 0 here. */

class Simulation {
  /** program: of program.js; borders: of its chunks, in bytes. */
  constructor(program, borders, prices) {
    this.program = program;
    this.borders = borders;
    this.prices = prices;
    this.events = heap();
    this.flows = new Map();
    this.moving = new Map(); // by side: the flows that use it
    this.changed = new Map(); // by side: when flows came or went
    this.messages = [];
    this.ranks = Array.from({ length: program.size }, () => ({ entered: [], done: 0, busy: 0, left: 0 }));
    this.steps = program.steps.map((step) => this.shared(step));
  }

  /** The messages of each rank in a step: first what it sends, then what it receives. */
  shared(step) {
    const mine = this.ranks.map(() => ({ sends: [], receives: [] }));
    for (const message of step) {
      const posted = { message, sent: null, received: null };
      mine[message.source].sends.push(posted);
      mine[message.target].receives.push(posted);
    }
    return mine;
  }

  /** When all is done, when each rank entered each step (and after the last left it), and every message. */
  run() {
    this.ranks.forEach((_, rank) => this.later(0, this.enter, rank));
    while (this.events.first()) {
      const last = this.events.first().time * (1 + TIE);
      while (this.events.first() && this.events.first().time <= last) {
        const event = this.events.pop();
        if (!event.off) event.what.call(this, event.time, ...event.given);
      }
      while (this.changed.size) this.share(this.changed.keys().next().value);
    }
    const entered = this.ranks.map((rank) => rank.entered);
    return { seconds: Math.max(...entered.map((times) => times.at(-1))), entered, messages: this.messages };
  }

  later(time, what, ...given) {
    return this.events.push({ time, what, given, off: false });
  }

  enter(time, index) {
    const rank = this.ranks[index];
    const number = rank.entered.push(time) - 1;
    rank.done = rank.busy = time;
    if (number === this.steps.length) return;
    const { sends, receives } = this.steps[number][index];
    rank.left = sends.length + receives.length;
    for (const posted of sends) posted.sent = time;
    for (const posted of receives) posted.received = time;
    for (const posted of [...sends, ...receives]) {
      if (posted.sent === null || posted.received === null) continue;
      const { message } = posted;
      const flow = this.flow(message.source, message.target);
      const moves = Math.max(posted.sent, posted.received) + flow.link.alpha;
      const nbytes = this.borders[message.sent + message.count] - this.borders[message.sent];
      this.later(moves, this.move, flow, { ...message, step: number, moves, nbytes });
    }
    this.leave(index);
  }

  flow(source, target) {
    const key = `${source} ${target}`;
    if (!this.flows.has(key)) {
      const sides = this.prices.sides(source, target);
      const link = this.prices.link(source, target);
      this.flows.set(key, { source, target, sides, link, queue: [], rate: 1, over: 0, look: null });
    }
    return this.flows.get(key);
  }

  note(side, time) {
    if (!this.changed.has(side)) this.changed.set(side, []);
    this.changed.get(side).push(time);
  }

  move(time, flow, message) {
    flow.queue.push(message);
    if (flow.queue.length > 1) return;
    flow.rate = 1;
    flow.over = time + message.nbytes * flow.link.beta;
    for (const side of flow.sides) {
      if (!this.moving.has(side)) this.moving.set(side, new Set());
      this.moving.get(side).add(flow);
      this.note(side, time);
    }
  }

  share(side) {
    const users = connected(side, this.moving);
    let now = -Infinity;
    for (const each of users.keys()) {
      now = Math.max(now, ...(this.changed.get(each) ?? []));
      this.changed.delete(each);
    }
    const rates = fairRates(users);
    for (const [flow, rate] of rates) {
      if (rate === flow.rate) continue;
      flow.over = now + (flow.over - now) * (flow.rate / rate);
      flow.rate = rate;
    }
    this.lookLater([...rates.keys()]);
  }

  lookLater(flows) {
    if (!flows.length) return;
    const look = this.later(Math.min(...flows.map((flow) => flow.over)), this.look, flows);
    for (const flow of flows) {
      if (flow.look) flow.look.off = true;
      flow.look = look;
    }
  }

  look(time, flows) {
    const last = time * (1 + TIE);
    for (const flow of flows.filter((each) => each.over <= last)) {
      this.over(flow.over, flow, flow.queue.shift());
      if (flow.queue.length) {
        const moves = Math.max(flow.queue[0].moves, flow.over);
        flow.over = moves + (flow.queue[0].nbytes * flow.link.beta) / flow.rate;
      } else {
        for (const side of flow.sides) {
          this.moving.get(side).delete(flow);
          if (this.moving.get(side).size) this.note(side, flow.over);
        }
      }
    }
    this.lookLater(flows.filter((flow) => flow.queue.length));
  }

  over(time, flow, message) {
    this.done(flow.source, time);
    const rank = this.ranks[flow.target];
    let done = time;
    if (message.added) {
      rank.busy = done = Math.max(rank.busy, time) + message.nbytes * this.prices.gammaOf(flow.target);
    }
    this.messages.push({ ...message, over: time, done });
    this.done(flow.target, done);
  }

  done(index, time) {
    const rank = this.ranks[index];
    rank.done = Math.max(rank.done, time);
    rank.left -= 1;
    this.leave(index);
  }

  leave(index) {
    if (this.ranks[index].left === 0) this.later(this.ranks[index].done, this.enter, index);
  }
}

/** The price of a program for so many elements: seconds, bytes that each rank sends, and when each step is. */
function priceOf(program, count, itemsize, prices) {
  const borders = bordersOf(count, program.size, program.parts).map((border) => border * itemsize);
  const whole = { ...program, steps: program.steps.slice(0, program.whole) };
  const found = new Simulation(whole, borders, prices).run();
  const nbytes = Array(program.size).fill(0);
  for (const message of found.messages) nbytes[message.source] += message.nbytes;
  const steps = whole.steps.map((_, step) => ({
    begin: Math.min(...found.entered.map((times) => times[step])),
    end: Math.max(...found.entered.map((times) => times[step + 1])),
  }));
  return { ...found, nbytes, steps };
}
