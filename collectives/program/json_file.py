import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KINDS = {
    "object": "an object",
    "array": "a list",
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
FIELDS = {"missing required": "must have", "contains unknown": "must not have"}


def read_json(what: str, path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        said = error.strerror or str(error)
    except RecursionError:
        said = "lists and objects are nested too deeply in it"
    except ValueError as error:
        said = str(error)
    raise ValueError(f"{what} {str(path)!r} is no readable JSON file: {said}")


@contextmanager
def reading(what: str, path: Path, writer: str) -> Iterator[Any]:
    """Yield a file's content; a ValueError of the block names file and writing command."""
    content = read_json(what, path)
    try:
        yield content
    except ValueError as error:
        said = in_words(str(error), content)
        raise ValueError(f"{what} {str(path)!r} must be a file of {writer}: {said}") from None


def in_words(said: str, content: Any) -> str:
    """Translate msgspec's message, with the offending value; keep other texts.

    >>> in_words("Expected `int` >= 1 - at `$.rows[0].ranks`", {"rows": [{"ranks": 0}]})
    'rows[0].ranks must be a whole number >= 1, not 0'
    >>> in_words("Object missing required field `ranks` - at `$.rows[0]`", {"rows": [{}]})
    "rows[0] must have the field 'ranks'"
    """
    text, _, place = said.partition(" - at `$")
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", place):
        content = content[name or int(index)]
    where = place.strip(".`") or "it"
    if field := re.fullmatch(r"Object (.+) field `(.+)`", text):
        return f"{where} {FIELDS[field[1]]} the field {field[2]!r}"
    if expected := re.fullmatch(r"Expected `(.+?)`(.*?)(?:, got `(array|object)`|, got .+)?", text):
        kinds = " or ".join(KINDS.get(kind, kind) for kind in expected[1].split(" | "))
        return f"{where} must be {kinds}{expected[2]}, not {KINDS.get(expected[3]) or json.dumps(content):.99}"
    return f"{where}: {text}" if place else text
