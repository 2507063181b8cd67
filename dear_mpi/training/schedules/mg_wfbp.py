"""Merged-gradient WFBP: buckets are merged where that saves more start-up latency than it costs in waiting.

The schedule is ``wfbp``. What makes the difference is its fusion, ``mgwfbp`` (``training/fusion/by_time.py``). It needs
the backward times of layers, and alpha and beta of the network: the first iterations run with 25 MB, and measure them.

Source: Shi et al., MG-WFBP, INFOCOM 2019, algorithm 1; github.com/HKBU-HPML/MG-WFBP.
"""

from dear_mpi.training.schedules.wfbp import Wfbp


class MgWfbp(Wfbp):
    """All-reduce of merged buckets during the backward pass."""

    fusion = "mgwfbp"
