"""Files of JSON that users name: whatever is wrong with one is told in one way."""

import json
from pathlib import Path
from typing import Any


def read_json(what: str, path: Path) -> Any:
    """The content of a file.

    Args:
        what: it is, for the message.

    Raises:
        ValueError: it cannot be read, is no JSON, or nests lists and objects more deeply than Python can follow.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        said = error.strerror or str(error)
    except RecursionError:
        said = "lists and objects are nested too deeply in it"
    except ValueError as error:
        said = str(error)
    raise ValueError(f"{what} {str(path)!r} is no readable JSON file: {said}")
