"""Files of JSON: what is wrong with one is told in one way."""

import pytest
from msgspec import Struct, convert

from dear_mpi.collectives.program.json_file import read_json, reading


class Row(Struct):
    us: float


class Rows(Struct):
    rows: tuple[Row, ...]


def test_the_content_of_a_file(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"name": "\u00e9", "values": [1, 2.5, null]}', "utf-8")
    assert read_json("table", file) == {"name": "\u00e9", "values": [1, 2.5, None]}


@pytest.mark.parametrize(("content", "said"), [
    (b"{", "Expecting property name"),
    (b"", "Expecting value"),
    (b"\xff", "'utf-8' codec can't decode byte 0xff"),
    (b"[" * 10**5, "lists and objects are nested too deeply in it"),
    (b'{"a":' * 10**5, "lists and objects are nested too deeply in it"),
    (b"9" * 5000, "Exceeds the limit"),
], ids=["half", "empty", "no text", "deep lists", "deep objects", "many digits"])  # fmt: skip
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


def test_what_a_block_refuses_names_the_file_and_its_writer(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"rows": [{"us": null}]}')
    begin = f"table {str(file)!r} must be a file of dear-mpi bench: "
    for kind, said in (
        (Rows, "rows[0].us must be a number, not null"),
        (int, "it must be a whole number, not an object"),
    ):
        with pytest.raises(ValueError, match="must be") as error, reading("table", file, "dear-mpi bench") as content:
            convert(content, kind)
        assert str(error.value) == begin + said
