"""An MSCCL interpreter that knows nothing of ours: numbers in buffers, and blocks that take steps in random order."""

from collections import defaultdict, deque
from xml.etree import ElementTree


def run(text, rng):
    """The message of what went wrong with an MSCCL file on random numbers, or "" if the results are right."""
    algo = ElementTree.fromstring(text)
    gpus = {int(gpu.get("id")): gpu for gpu in algo}
    size, total = len(gpus), int(algo.get("nchunksperloop"))
    coll, shared = algo.get("coll").replace("_", ""), algo.get("inplace", "1") != "0"
    parts = total // size
    shards = {("allgather", "i"), ("reducescatter", "o")}

    def at(rank, buffer, offset):
        if buffer == "s" or not shared:
            return rank, buffer, offset
        return rank, "io", offset + (rank * parts if (coll, buffer) in shards else 0)

    def first(rank, buffer):
        return rank * parts if (coll, buffer) in shards else 0

    data = {(rank, chunk): rng.randrange(1, 1 << 40) for rank in gpus for chunk in range(total)}
    sums = {chunk: sum(data[rank, chunk] for rank in gpus) for chunk in range(total)}
    memory = {}
    for rank, chunk in data:
        owns = chunk // parts == rank if parts else False
        begins = {"allgather": owns, "broadcast": rank == 0}.get(coll, True)
        if begins:
            memory[at(rank, "i", chunk - first(rank, "i"))] = data[rank, chunk]
    for rank, gpu in gpus.items():
        for copy in gpu.findall("copy"):
            memory[at(rank, "o", int(copy.get("o_off")))] = memory[at(rank, "i", int(copy.get("i_off")))]
    blocks = [(rank, tb, list(tb)) for rank, gpu in gpus.items() for tb in gpu.findall("tb")]
    place, sent = defaultdict(int), defaultdict(deque)

    def steps(rank, name):
        return next(tb for other, tb, _ in blocks if other == rank and tb.get("id") == name)

    def runnable(rank, tb, lines):
        number = place[rank, tb.get("id")]
        if number == len(lines):
            return False
        line = lines[number]
        if line.get("depid", "-1") != "-1" and line.get("deps", "-1") != "-1":
            other = steps(rank, line.get("depid"))
            flags = [
                int(each.get("s"))
                for each in list(other)[: place[rank, line.get("depid")]]
                if each.get("hasdep") == "1"
            ]
            if not flags or max(flags) < int(line.get("deps")):
                return False
        receives = line.get("type") in ("r", "rcs", "rrc", "rrs", "rrcs")
        return not receives or sent[int(tb.get("recv")), rank, tb.get("chan", "0")]

    def take(rank, tb, line):
        kind, count = line.get("type"), int(line.get("cnt", 1))
        source, target = ([at(rank, line.get(f"{end}buf"), int(line.get(f"{end}off", -1)) + i) for i in range(count)]
                          for end in ("src", "dst"))  # fmt: skip
        values = None
        if kind in ("r", "rcs", "rrc", "rrs", "rrcs"):
            values = sent[int(tb.get("recv")), rank, tb.get("chan", "0")].popleft()
            if len(values) != count:
                return "counts differ"
        if kind in ("rrc", "rrs", "rrcs"):
            values = [value + memory.get(each, 0) for value, each in zip(values, source, strict=True)]
        if kind == "re":
            values = [memory.get(one, 0) + memory.get(other, 0) for one, other in zip(source, target, strict=True)]
        if kind in ("s", "cpy"):
            values = [memory.get(each, 0) for each in source]
        if kind in ("r", "rcs", "rrc", "rrcs", "cpy", "re"):
            memory.update(zip(target, values, strict=True))
        if kind in ("s", "rcs", "rrs", "rrcs"):
            sent[rank, int(tb.get("send")), tb.get("chan", "0")].append(values)
        return ""

    while ready := [each for each in blocks if runnable(*each)]:
        rank, tb, lines = rng.choice(ready)
        if wrong := take(rank, tb, lines[place[rank, tb.get("id")]]):
            return wrong
        place[rank, tb.get("id")] += 1
    if any(place[rank, tb.get("id")] < len(lines) for rank, tb, lines in blocks):
        return "deadlock"
    if any(sent.values()):
        return "messages are left"
    for rank, chunk in data:
        owner = chunk // parts if parts else 0
        due = {"allgather": data[owner, chunk], "broadcast": data[0, chunk]}.get(coll, sums[chunk])
        if coll == "alltoall":
            due = data[owner, rank * parts + chunk % parts]
        ends = {"reducescatter": owner == rank, "reduce": rank == 0}.get(coll, True)
        if ends and memory.get(at(rank, "o", chunk - first(rank, "o"))) != due:
            return f"gpu {rank} has a wrong chunk {chunk}"
    return ""
