"""Assemble a page in one file: its data, sources and frame; it forbids itself to load anything.

web/frame.html    what every page has; the marks in it are replaced here
web/*.css         how it looks, by day and by night
web/*.js          plain functions, in one scope: a file may use what another one defines
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
ALLOWED = "script-src 'unsafe-inline'"  # only inline scripts run


@dataclass(frozen=True)
class Kind:
    """A kind of page: its sources in addition to the common ones; the last script starts it."""

    scripts: tuple[str, ...]
    looks: tuple[str, ...]


def whole(kind: Kind, title: str, data: Mapping[str, Any]) -> str:
    """Return the text of a page. Its scripts find ``data`` as ``DATA``."""
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
    """``allowed`` is the policy for scripts; ``without`` is the message if scripts are off."""
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
    """Write a page. Raises ValueError, which begins with ``flag``, if that fails."""
    with replacing(flag, path) as file:
        file.write_text(text, encoding="utf-8")


def embedded(data: Mapping[str, Any]) -> str:
    r"""Encode JSON for use inside a script, whatever names it contains.

    >>> embedded({"name": "</script>"})
    '{"name":"\\u003c/script>"}'
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def source(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def sources(*names: str) -> str:
    return "\n".join(source(name) for name in names)
