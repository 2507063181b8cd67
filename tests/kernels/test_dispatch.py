"""Which implementation runs follows from the array's type, and a new one joins with a line in a table."""

import sys
import types

import numpy as np
import pytest

from dear_mpi.kernels import reference
from dear_mpi.kernels.array import KERNELS
from dear_mpi.kernels.calls import combiner, copier, packer, updater
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.optimizers import SGD

LIBRARY = "standin_library"


@pytest.fixture
def foreign():
    """A function that gives an array the type of another library."""
    kind = type("Foreign", (np.ndarray,), {"__module__": f"{LIBRARY}.core"})
    return lambda array: array.view(kind)


@pytest.fixture
def calls(monkeypatch):
    """A backend for that library: the reference, with a note of each kernel that is asked for."""
    noted = []

    def noting(name):
        return lambda *args, **options: noted.append(name) or getattr(reference, name)(*args, **options)

    backend = types.ModuleType("standin_backend")
    for name in ("combiner", "copier", "packer", "unpacker", "updater"):
        setattr(backend, name, noting(name))
    monkeypatch.setitem(sys.modules, "standin_backend", backend)
    monkeypatch.setitem(KERNELS, LIBRARY, "standin_backend")
    return noted


def run_pack(bucket):
    packer([np.arange(3.0)], [bucket[:3]])()
    assert bucket[:3].tolist() == [0, 1, 2]


def run_folder(bucket):
    combiner(bucket, [np.ones_like(bucket)], [np.ones_like(bucket)])()
    assert (bucket == 3).all()


def run_copier(bucket):
    copier(bucket, np.ones_like(bucket), 3.0)()
    assert (bucket == 3).all()


def run_update(grads):
    values, finite = np.ones(8, np.float32), np.array([True])
    updater(grads, values, [], SGD(0.5), finite=finite)(SGD(0.5), 1, 1.0)
    assert (values == 0.5).all()
    assert finite[0]


USES = {run_pack: ["packer"], run_folder: ["combiner"], run_copier: ["copier"], run_update: ["updater"]}


def ones():
    return np.ones(8, np.float32)


@pytest.mark.parametrize("use", USES)
def test_a_new_backend_is_used_without_a_change_of_the_callers(use, foreign, calls):
    use(foreign(ones()))
    assert calls == USES[use]
    use(ones())
    assert calls == USES[use], "NumPy's arrays stay with NumPy"


@pytest.mark.parametrize("use", USES)
def test_an_unknown_library_is_refused(use, foreign):
    with pytest.raises(ValueError, match=r"array library 'standin_library' is unknown\. Allowed: numpy, cupy"):
        use(foreign(ones()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smu", "op 'smu' is unknown: did you mean 'sum'? Allowed: sum, minimum, maximum"),
        ("Sum", "op 'Sum' is unknown: did you mean 'sum'?"),
        ("mximum", "op 'mximum' is unknown: did you mean 'maximum' or 'minimum'?"),
        ("xyz", "op 'xyz' is unknown. Allowed: sum, minimum, maximum"),
        ("", "op '' is unknown. Allowed: sum"),
    ],
)
def test_choose_helps_who_mistyped(name, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared as it is, not as a pattern)
        lookup("op", name, {"sum": 1, "minimum": 2, "maximum": 3})
    assert str(error.value).startswith(message)
