"""SimGrid on graphs: a link for each direction, and one for each port and way."""

from tests.simulate import simgrid

HEAD = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><zone id="network" routing="Full">
"""


def lines_of(graph):
    for rank in range(graph.size):
        yield f'<host id="rank-{rank}" speed="1Gf"/>'
    for number, port in enumerate(graph.ports):
        for way, rate in (("out", port.out), ("in", port.into)):
            yield f'<link id="{way}-{number}" bandwidth="{float(rate)!r}Bps" latency="0s" sharing_policy="SHARED"/>'
    for (one, other), rate in graph.links.items():
        how = f'bandwidth="{float(rate)!r}Bps" latency="{graph.alpha!r}s" sharing_policy="SHARED"'
        yield f'<link id="link-{one}-{other}" {how}/>'
    for (one, other), (outs, ins) in graph.passed.items():
        names = [f"link-{one}-{other}", *(f"out-{port}" for port in outs), *(f"in-{port}" for port in ins)]
        passed = "".join(f'<link_ctn id="{name}"/>' for name in names)
        yield f'<route src="rank-{one}" dst="rank-{other}" symmetrical="NO">{passed}</route>'


def replay(written, count, itemsize, graph):
    """As ``simgrid.replay``; all messages need links."""
    platform = "\n".join([HEAD, *lines_of(graph), "</zone></platform>\n"])
    return simgrid.replay(written, count, itemsize, platform=platform)
