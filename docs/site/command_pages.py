"""The reference of the command line, made from the commands themselves: a page for each, with all of its flags."""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from dear_mpi.cli.app import load_command
from dear_mpi.cli.commands import all_commands

FOLDER = "commands"


def command_pages() -> dict[str, str]:
    """Of each command its page, by the page's path."""
    return {f"{FOLDER}/{name}.md": "\n".join(lines(name, load_command(name))) for name in all_commands()}


def lines(name: str, command: Any) -> Iterator[str]:
    said, _, example = command.help.partition("Example:")
    yield from (f"# {name}", "", escaped(said.strip()), "")
    if example:
        yield from ("```sh", example.strip(), "```", "")
    context = command.make_context(name, [], resilient_parsing=True)
    flags = [flag for flag in command.get_params(context) if not flag.hidden]
    for panel, members in groupby(flags, lambda flag: getattr(flag, "rich_help_panel", None)):
        title = panel or "Arguments"
        yield from (
            f"## {title}",
            "",
            f"| {'flag' if panel else 'argument'} | what it does | default |",
            "|---|---|---|",
        )
        yield from (row(flag, context) for flag in members)
        yield ""
    yield "What commands have in common is in [the command line](../commands.md)."


def row(flag: Any, context: Any) -> str:
    """A line of a table: how the flag is spelled, with what it takes; its help; its default and limits."""
    spelled, said = flag.get_help_record(context)
    said, _, more = said.partition("  [")
    more = more.removesuffix("]").removeprefix("default: ")
    spelled = spelled.replace("<int range>", "<int>")  # the limits stand beside the default
    return f'| <span id="{flag.opts[0]}"></span>`{spelled}` | {escaped(said)} | {escaped(more)} |'


def escaped(text: str) -> str:
    """Help as Markdown: the words as they are, flags and what is typed as code."""
    text = text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return re.sub(r"(?<![\w`])(--[a-z][\w-]*)", r"`\1`", text)
