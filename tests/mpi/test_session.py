"""The script of docs/how-to/model.md under mpirun, on a communicator of mpi4py."""

import pytest

from tests.training_checks import session_script

pytestmark = pytest.mark.mpi


def test_the_script_of_the_page_trains(capsys):
    script, _ = session_script()
    exec(script, {})
    assert float(capsys.readouterr().out.removeprefix("loss ")) < 0.05
