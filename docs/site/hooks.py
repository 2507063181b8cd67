"""What the site has beside docs/, and where links lead there; MkDocs calls these functions, see mkdocs.yml.

docs/ is written for a host of git: its links lead to files, in docs/ and beside it. Here the pages beside it become
pages of the site, and each file that a page links or names becomes a page that shows it.
"""

import logging
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

from dear_mpi.collectives.program.user_file import entry_points_of
from docs.site.api_pages import FOLDER as API
from docs.site.api_pages import api_pages, offered
from docs.site.command_pages import FOLDER as COMMANDS
from docs.site.command_pages import command_pages
from tests.markdown import PAGES, ROOT, links

log = logging.getLogger("mkdocs.hooks.site")  # its warnings end a strict build

# Pages of the site by file, where it is not at the same place in docs/; and folders that have an own page.
MOVED = {
    "README.md": "index.md", "docs/README.md": "all-pages.md", "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md", "hostfiles/README.md": "host-files.md", "docs/decisions": "decisions/index.md",
}  # fmt: skip
LANGUAGES = {".py": "python", ".sh": "sh", ".env": "sh", ".sbatch": "sh", ".cu": "cuda", ".cuh": "cuda", ".md": "md"}
LANGUAGES |= {".yml": "yaml", ".toml": "toml", ".json": "json", ".svg": "xml"}
IN_DOCS = (".md", ".png", ".svg")  # pages and pictures; what else is in docs/ is a source, as files beside it are
NAMED = re.compile(rf"<code>((?:[\w.-]+/)+[\w.-]+(?:{'|'.join(map(re.escape, LANGUAGES))}))</code>(?!</a>)")
PAGE_OF = {str(page.relative_to(ROOT)): page for page in PAGES}


def place(name: str) -> str:
    """Where a file of the project is on the site."""
    if name in MOVED:
        return MOVED[name]
    in_docs = name.startswith("docs/") and Path(name).suffix in IN_DOCS
    return name.removeprefix("docs/") if in_docs else f"source/{name}.md"


MADE = command_pages() | api_pages()
SOURCE_OF = {place(name): name for name in PAGE_OF}


def on_config(config: Any) -> Any:
    """A name of a folder in the navigation becomes the folder's pages."""
    config.nav = [item for given in config.nav for item in expanded(given)]
    return config


def expanded(item: Any) -> list[Any]:
    """An item of the navigation, a path or {title: path or items}, as such items without names of folders."""
    if isinstance(item, str):
        return within(item) if item.endswith("/") else [item]
    ((title, inside),) = item.items()
    if isinstance(inside, str):
        return [{title: within(inside)} if inside.endswith("/") else item]
    return [{title: [each for one in inside for each in expanded(one)]}]


def within(folder: str) -> list[Any]:
    """The pages of a folder, its own page first; names of Python are without what all begin with."""
    pages = [page for page in (MOVED["docs/decisions"], *SOURCE_OF, *MADE) if page.startswith(folder)]
    pages.sort(key=lambda page: not page.endswith(("index.md", "README.md")))
    title = f"{API}/dear_mpi."
    return [{page.removeprefix(title).removesuffix(".md"): page} if page.startswith(title) else page for page in pages]


def on_files(files: Files, config: Any) -> Files:
    pages = {
        uri: PAGE_OF[name].read_text("utf-8")
        for uri, name in SOURCE_OF.items()
        if files.get_file_from_path(uri) is None
    }
    pages |= MADE | {MOVED["docs/decisions"]: decisions()}
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    for name in sorted(shown()):
        file = File.generated(config, place(name), content=source(name), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(file)
    return files


def shown() -> set[str]:
    """The files that pages link or name, and that are no pages."""
    found = set()
    for page in PAGES:
        targets = [target.partition("#")[0] for _, target in links(page) if not re.match(r"\w+:", target)]
        paths = [(page.parent / target).resolve() for target in targets if target]
        found |= {str(path.relative_to(ROOT)) for path in paths if path.is_file()}
        found |= {
            name for name in re.findall(r"`([\w./-]+/[\w.-]+)`", page.read_text("utf-8")) if (ROOT / name).is_file()
        }
    return {name for name in found if place(name).startswith("source/")}


def source(name: str) -> str:
    """A page that shows a file, and that the search leaves out."""
    path = ROOT / name
    text, language = path.read_text("utf-8"), LANGUAGES.get(path.suffix, "text")
    fence = "`" * 6
    return f"---\nsearch: {{exclude: true}}\nhide: [toc]\n---\n# {name}\n\n{fence}{language}\n{text}\n{fence}\n"


def decisions() -> str:
    rows = []
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        rows.append(f"- [{title}]({page.name})")
    return "\n".join(
        ["# Decisions", "", "A page for each choice that is hard to undo, the first one first.", "", *rows]
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    name = SOURCE_OF.get(page.file.src_uri)
    if name is None:
        return markdown
    for target in {target for _, target in links(PAGE_OF[name])}:
        path, mark, heading = target.partition("#")
        if path and not re.match(r"\w+:", target):
            file = str((PAGE_OF[name].parent / path).resolve().relative_to(ROOT))
            there = os.path.relpath(place(file), Path(page.file.src_uri).parent)
            markdown = markdown.replace(f"]({target})", f"]({there}{mark}{heading})")
    return markdown


def on_page_content(html: str, page: Any, files: Files, **_: Any) -> str:
    """Let names of files be links to them; warn of a public name that is not there."""
    module = page.file.src_uri.removeprefix(f"{API}/").removesuffix(".md")
    for name in offered().get(module, ()):
        of_an_extra = name in entry_points_of(module.removeprefix("dear_mpi."))  # whose page describes it
        if f'id="{module}.{name}"' not in html and not of_an_extra:
            log.warning(f"{page.file.src_uri} has nothing about {name}: does it have a docstring?")

    def linked(found: re.Match[str]) -> str:
        file = files.get_file_from_path(place(found[1]))
        return found[0] if file is None else f'<a href="{file.url_relative_to(page.file)}">{found[0]}</a>'

    if page.file.src_uri == "commands.md":
        html = re.sub(r"<td><code>([a-z-]+)</code></td>", command_linked, html)
    return NAMED.sub(linked, html)


def command_linked(found: re.Match[str]) -> str:
    """A cell of the table of commands, which leads to the page of its flags."""
    known = f"{COMMANDS}/{found[1]}.md" in MADE
    return f'<td><a href="{COMMANDS}/{found[1]}.html"><code>{found[1]}</code></a></td>' if known else found[0]
