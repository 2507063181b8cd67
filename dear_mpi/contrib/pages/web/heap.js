/** Events in the order of their times; of one time, in the order in which they were put in. */
function heap() {
  const items = [];
  let count = 0;
  const before = (one, other) => one.time - other.time || one.number - other.number;

  function sift(index) {
    for (;;) {
      let least = index;
      for (const child of [2 * index + 1, 2 * index + 2]) {
        if (child < items.length && before(items[child], items[least]) < 0) least = child;
      }
      if (least === index) return;
      [items[index], items[least]] = [items[least], items[index]];
      index = least;
    }
  }

  return {
    first: () => items[0],
    push(event) {
      event.number = count++;
      let index = items.push(event) - 1;
      while (index > 0) {
        const above = (index - 1) >> 1;
        if (before(items[index], items[above]) >= 0) break;
        [items[index], items[above]] = [items[above], items[index]];
        index = above;
      }
      return event;
    },
    pop() {
      const first = items[0];
      const last = items.pop();
      if (items.length) {
        items[0] = last;
        sift(0);
      }
      return first;
    },
  };
}
