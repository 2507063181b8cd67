"""What the tests of all commands ask of one that refuses its input."""


def assert_one_line(done, *said):
    """A command has refused its input, and has said this in one line."""
    assert done.exit_code == 2
    for text in said:
        assert text in done.stderr
    assert done.stderr.count("\n") == 1
