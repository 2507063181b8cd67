"""Read XML as a small tree, with line numbers, and without declarations: entities can grow for ever."""

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from xml.parsers import expat

MOST_BYTES, MOST_ELEMENTS, MOST_DEPTH = 1 << 26, 1 << 19, 100


@dataclass(eq=False, slots=True)
class Element:
    """``where``: file and line, for errors; ``text``: of an element without inner ones."""

    name: str
    attributes: dict[str, str]
    where: str
    inner: list["Element"] = field(default_factory=list)
    text: str = ""

    def number(self, name: str, default: int | None = None, *, least: int = -1) -> int:
        """Return an attribute as a whole number; files write -1 for none."""
        text = self.attributes.get(name, "" if default is None else str(default))
        if not text.removeprefix("-").isdecimal() or len(text) > 9 or int(text) < least:
            raise ValueError(f"{self.where}: {name} must be a whole number >= {least}, not {text!r:.30}")
        return int(text)


def read_tree(path: Path) -> Element:
    """Return the root. ValueErrors name the file and the line."""
    content, parser = read_bytes(path), expat.ParserCreate("utf-8")
    above, texts, numbers = [Element("", {}, str(path))], list[str](), count(1)

    def begin(name: str, attributes: dict[str, str]) -> None:
        if len(above) > MOST_DEPTH or next(numbers) > MOST_ELEMENTS:
            raise ValueError(f"more than {MOST_DEPTH} elements inside each other, or {MOST_ELEMENTS} in all")
        element = Element(name, attributes, f"{path}, line {parser.CurrentLineNumber}")
        above[-1].inner.append(element)
        above.append(element)
        texts.clear()

    def end(name: str) -> None:
        element = above.pop()
        element.text = "" if element.inner else "".join(texts)

    def refuse(name: str, system: str | None, public: str | None, declares: int) -> None:
        if declares:  # a mere address of a document type is not followed
            raise ValueError("declarations in the document type are not allowed")

    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.CharacterDataHandler = texts.append
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise ValueError(f"{path}, line {error.lineno}: {expat.ErrorString(error.code)}") from None
    except ValueError as error:
        raise ValueError(f"{path}, line {parser.CurrentLineNumber}: {error}") from None
    return above[0].inner[0]


def read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES} bytes")
    return content
