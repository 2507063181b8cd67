"""The stand-in as a pytest fixture. In a test module: ``standin = fixture.standin`` (importing it would upset ruff).

Inside a test ``import cupy`` gives the stand-in; afterwards everything is as before, whether or not the real one is
installed. The stand-in is imported once and put back for each test, with those modules of ours that imported it: so a
compiled kernel that somebody keeps still fits.
"""

import importlib
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parent)

kept = {}  # the stand-in's modules, and ours that imported it, between tests


def bound():
    """The modules of CuPy, whichever it is, and ours that imported it."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in ("cupy", "cupyx")
        or (name.partition(".")[0] == "dear_mpi" and {"cupy", "cupyx"} & vars(module).keys())
    }


def swap(modules):
    """Put these in the place of those that are bound now, which are returned."""
    before = bound()
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    return before


@contextmanager
def standin_modules():
    """``cupy`` and ``cupyx`` are the stand-in's meanwhile."""
    before = swap(kept)
    sys.path.insert(0, FOLDER)
    try:
        importlib.import_module("cupyx")
        yield importlib.import_module("cupy")
    finally:
        sys.path.remove(FOLDER)
        kept.update(swap(before))


@pytest.fixture
def standin():
    """The stand-in for ``cupy``, on one device; at the end no race may be left that somebody caught and hid."""
    with standin_modules() as cupy:
        cupy.reset()
        yield cupy
        hidden = list(cupy.races)
        cupy.races.clear()
        assert not hidden, f"races were found, and their errors were caught: {hidden}"


@contextmanager
def expect_race(cupy, match=None):
    """The body raises a RaceError, which is what this test wants."""
    with pytest.raises(cupy.RaceError, match=match):
        yield
    cupy.races.pop()
