"""One file of a page: its data, and the sources of ``web`` that show them, put into the frame of all pages.

web/frame.html    what every page has; the marks in it are replaced here
web/*.css         how it looks, by day and by night
web/*.js          plain functions, in one scope: a file may use what another one defines

The page forbids itself to load anything (``Content-Security-Policy``), so it says the same without a network.
"""

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from dear_mpi.reporting.files import replacing

WEB = files("dear_mpi.contrib.pages") / "web"
LOOKS = ("look.css", "controls.css")  # of all pages
SCRIPTS = ("elements.js", "units.js", "theme.js", "sliders.js")  # of all pages
ALLOWED = "script-src 'unsafe-inline'"  # to run: what is in the page


@dataclass(frozen=True)
class Kind:
    """A kind of page: the sources that it has beside those of all pages; the last script begins."""

    scripts: tuple[str, ...]
    looks: tuple[str, ...]


def whole(kind: Kind, title: str, data: Mapping[str, Any]) -> str:
    """The text of a page. ``data`` is what its scripts find as ``DATA``."""
    return framed(title, data, look=sources(*LOOKS, *kind.looks), script=sources(*SCRIPTS, *kind.scripts))


def framed(
    title: str,
    data: Mapping[str, Any],
    *,
    look: str,
    script: str,
    allowed: str = ALLOWED,
    without: str = "This page shows its pictures with JavaScript, which is turned off.",
) -> str:
    """The text of a page with these sources. ``allowed``: which scripts may run in it, as a policy has it; ``without``:
    what it says where none may."""
    parts = {
        "SCRIPTS": allowed,
        "TITLE": html.escape(title),
        "LOOK": look,
        "WITHOUT": without,
        "DATA": embedded(data),
        "SCRIPT": script,
    }
    text = source("frame.html")
    for name, part in parts.items():
        before, _, after = text.partition(f"<!--{name}-->")
        text = before + part + after
    return text


def write_page(flag: str, path: Path, text: str) -> None:
    """Write a page; a ValueError, which begins with ``flag``, if that cannot be done."""
    with replacing(flag, path) as file:
        file.write_text(text, encoding="utf-8")


def embedded(data: Mapping[str, Any]) -> str:
    r"""JSON that may stand inside a script, whatever names are in it.

    >>> embedded({"name": "</script>"})
    '{"name":"\\u003c/script>"}'
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def source(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def sources(*names: str) -> str:
    return "\n".join(source(name) for name in names)
