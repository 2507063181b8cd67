/* What messages and sums cost: collectives/program/network.py, with the same numbers.
   tests/contrib/pages/slow.py computes them once more, slowly. */

/** The network of these prices: seconds for a message (alpha), for a byte (beta), for a byte that is combined (gamma).
 *
 * hosts: the host of each rank; between: alpha and beta between hosts, or null.
 * slow: [rank], or [rank, rank] whose link is meant, or []; factor: how many times as long it takes.
 */
function network({ alpha, beta, gamma, hosts = null, between = null, slow = [], factor = 1 }) {
  const apart = (one, other) => between !== null && hosts[one] !== hosts[other];
  const port = (rank, peer) => (apart(rank, peer) ? `host ${hosts[rank]}` : `rank ${rank}`);
  const isSlow = (...ends) => slow.length > 0 && slow.every((rank) => ends.includes(rank));
  return {
    link(source, target) {
      const level = apart(source, target) ? between : { alpha, beta };
      const times = isSlow(source, target) ? factor : 1;
      return { alpha: level.alpha * times, beta: level.beta * times };
    },
    sides: (source, target) => [`out ${port(source, target)}`, `in ${port(target, source)}`],
    gammaOf: (rank) => gamma * (slow.length === 1 && slow[0] === rank ? factor : 1),
  };
}

/** The first element of each chunk, and after the last: collectives/program/partition.py. */
function bordersOf(count, size, parts) {
  const begin = (total, pieces, index) => {
    const small = Math.floor(total / pieces);
    return index * small + Math.min(index, total % pieces);
  };
  const borders = [];
  for (let rank = 0; rank < size; rank++) {
    const first = begin(count, size, rank);
    const length = begin(count, size, rank + 1) - first;
    for (let part = 0; part < parts; part++) borders.push(first + begin(length, parts, part));
  }
  return [...borders, count];
}
