"""SimGrid on our topologies."""

import math

from tests.simulate import simgrid


def shape_of(topology):
    """SimGrid's ``topology`` and ``topo_parameters``, which count levels and dimensions from below."""
    sizes = topology.sizes
    match topology.name:
        case "fattree":
            return "FAT_TREE", f"2;{sizes[1]},{sizes[0]};1,{topology.up_links};1,1"
        case "torus":
            return "TORUS", ",".join(map(str, reversed(sizes)))
        case "dragonfly":
            return "DRAGONFLY", ";".join([*(f"{size},1" for size in sizes[:-1]), str(sizes[-1])])
    return "FLAT", ""


def replay(written, count, itemsize, topology, **link):
    """As ``simgrid.replay``; ``alpha`` is the latency through two links."""
    topology.check_room(len(written))
    places, (shape, parameters) = math.prod(topology.sizes) if topology.sizes else None, shape_of(topology)
    attributes = f' topology="{shape}" topo_parameters="{parameters}"' if parameters else ""
    return simgrid.replay(written, count, itemsize, places=places, shape=attributes, **link)
