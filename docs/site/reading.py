"""How our packages are read for the reference of Python names; Griffe calls this, see mkdocs.yml."""

import re
from typing import Any

import griffe

from tests.rooms import ROOT

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


class Reading(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Let examples in docstrings be code, from >>> to an empty line."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(fenced, obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Read kernels/, too, which Griffe does not take for a package, for it has no __init__.py."""
        if pkg.path != "dear_mpi":
            return
        shared: dict[str, Any] = {
            "lines_collection": loader.lines_collection,
            "modules_collection": loader.modules_collection,
        }
        kernels = griffe.Module("kernels", filepath=[ROOT / "dear_mpi" / "kernels"], parent=pkg, **shared)
        pkg.set_member("kernels", kernels)
        for path in sorted((ROOT / "dear_mpi" / "kernels").glob("*.py")):
            code = path.read_text("utf-8")
            loader.lines_collection[path] = code.splitlines()
            how = {"docstring_parser": loader.docstring_parser, "docstring_options": loader.docstring_options, **shared}
            how |= {"extensions": loader.extensions, "parent": kernels}
            kernels.set_member(path.stem, griffe.visit(path.stem, filepath=path, code=code, **how))


def fenced(example: re.Match[str]) -> str:
    indent = example[1]
    return f"\n{indent}```pycon\n{example[0]}\n{indent}```"
