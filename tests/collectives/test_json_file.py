"""Files of JSON: what is wrong with one is told in one way."""

import pytest

from dear_mpi.collectives.program.json_file import read_json


def test_the_content_of_a_file(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"name": "\u00e9", "values": [1, 2.5, null]}', "utf-8")
    assert read_json("table", file) == {"name": "\u00e9", "values": [1, 2.5, None]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "Expecting property name"),
        (b"", "Expecting value"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff"),
        (b"[" * 10**5, "lists and objects are nested too deeply in it"),
        (b'{"a":' * 10**5, "lists and objects are nested too deeply in it"),
        (b"9" * 5000, "Exceeds the limit"),
    ],
    ids=["half", "empty", "no text", "deep lists", "deep objects", "many digits"],
)
def test_what_is_no_json(content, said, tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=said) as error:
        read_json("table", file)
    assert str(error.value).startswith(f"table {str(file)!r} is no readable JSON file: ")


def test_what_cannot_be_read(tmp_path):
    for path, said in ((tmp_path / "none.json", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ValueError, match=f"is no readable JSON file: {said}"):
            read_json("table", path)
