"""Read XML element by element, with line numbers, and without declarations: entities can grow for ever."""

from collections.abc import Callable, Mapping
from pathlib import Path
from xml.parsers import expat

MOST_BYTES = 1 << 26

Attributes = Mapping[str, str]


def read_elements(
    path: Path,
    begin: Callable[[str, Attributes, int], object],
    end: Callable[[str], object],
    text: Callable[[str], object] | None = None,
) -> None:
    """Call ``begin(name, attributes, line)``, ``end(name)``, ``text(part)``; ValueErrors name the file and the line."""
    parser = expat.ParserCreate("utf-8")

    def refuse(name: str, system: str | None, public: str | None, declares: int) -> None:
        if declares:  # a mere address of a document type is not followed
            raise ValueError("declarations in the document type are not allowed")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda name, attributes: begin(name, attributes, parser.CurrentLineNumber)
    parser.EndElementHandler, parser.CharacterDataHandler = end, text
    content = read_bytes(path)
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise ValueError(f"{path}, line {error.lineno}: {expat.ErrorString(error.code)}") from None
    except ValueError as error:
        raise ValueError(f"{path}, line {parser.CurrentLineNumber}: {error}") from None


def read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES} bytes")
    return content


def whole(attributes: Attributes, name: str, default: int | None = None, *, least: int = 0, most: int = 1 << 20) -> int:
    """Return an attribute as a whole number within limits."""
    text = attributes.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise ValueError(f"the attribute {name!r} is missing")
    if not text.removeprefix("-").isdecimal() or len(text) > 9 or not least <= int(text) <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {text:.30}")
    return int(text)
