"""The script of the README under mpirun, on a communicator of mpi4py."""

import pytest

from tests.training_checks import readme_script

pytestmark = pytest.mark.mpi


def test_the_script_of_the_readme_trains(capsys):
    script, _ = readme_script()
    exec(script, {})
    assert float(capsys.readouterr().out.removeprefix("loss ")) < 0.05
