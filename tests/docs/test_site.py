"""What the site (`make site`) is made of: no page, no flag and no public name is left out; a broken link is found."""

import re

import pytest

from dear_mpi.cli.app import load_command
from dear_mpi.cli.commands import all_commands
from docs.site.api_pages import INSIDE, api_pages, public
from docs.site.check_links import faults
from docs.site.command_pages import command_pages
from tests.markdown import PAGES, ROOT
from tests.rooms import SOURCES

COMMANDS = {name: load_command(name) for name in all_commands()}


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"^ +- .*?([\w/.-]+(?:\.md|/))$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    folders = tuple(name for name in listed if name.endswith("/"))
    assert {page for page in pages - {"README.md"} if not page.startswith(folders)} <= listed
    assert {name for name in folders if not (ROOT / "docs" / name).is_dir()} == {"commands/", "api/"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_has_all_of_its_flags(name):
    page = command_pages()[f"commands/{name}.md"]
    flags = {spelled for flag in COMMANDS[name].params for spelled in (*flag.opts, *flag.secondary_opts)} - {"--help"}
    named = re.findall(r"^\| <span id=\"[\w-]+\"></span>`(\[-- \w+\]|[\w./-]+)", page, re.MULTILINE)
    files = {flag.metavar for flag in COMMANDS[name].params if flag.param_type_name == "argument"}
    assert {flag for flag in flags if flag.startswith("-")} | files == set(named)
    assert f"dear-mpi {name}" in page


def test_every_public_name_is_on_a_page():
    found = {name for page in api_pages().values() for name in re.findall(r"^ {8}- (\w+)$", page, re.MULTILINE)}
    offered = {name for module, path in SOURCES.items() if module not in INSIDE for name in public(module, path)}
    assert offered - found == {"__version__"}


@pytest.mark.parametrize(("body", "found"), [
    ('<a href="other.html#here">', None),
    ('<a href="#top" id="top">', None),
    ('<a href="https://example.org/">', None),
    ('<img src="picture.png">', "is not there"),
    ('<a href="gone.html">', "is not there"),
    ('<a href="other.html#gone">', "is no anchor there"),
    ('<a href="folder/">', "is a folder"),
    ('<script src="https://example.org/a.js">', "is loaded from elsewhere"),
    ('<link rel="stylesheet" href="//example.org/a.css">', "is loaded from elsewhere"),
])  # fmt: skip
def test_a_broken_link_of_the_site_is_found(body, found, tmp_path):
    (tmp_path / "page.html").write_text(body)
    (tmp_path / "other.html").write_text('<h2 id="here">')
    (tmp_path / "folder").mkdir()
    said = list(faults(tmp_path))
    assert len(said) == (found is not None)
    assert all(text.startswith("page.html: ") and found in text for text in said)
