"""Examples in docstrings are code on the site, too: from >>> to an empty line. Griffe calls this, see mkdocs.yml."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(fenced, obj.docstring.value)


def fenced(example: re.Match[str]) -> str:
    indent = example[1]
    return f"\n{indent}```pycon\n{example[0]}\n{indent}```"
