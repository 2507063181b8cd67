"""What the tests of all commands need: to call one, and what they ask of one that refuses its input."""

from typer.testing import CliRunner

from dear_mpi.cli.app import app


def invoke(*words):
    """A call of ``dear-mpi`` in this process."""
    return CliRunner().invoke(app, list(map(str, words)))


def succeed(*words):
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    return done


def assert_one_line(done, *said):
    """A command has refused its input, and has said this in one line."""
    assert done.exit_code == 2
    for text in said:
        assert text in done.stderr
    assert done.stderr.count("\n") == 1
