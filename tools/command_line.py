"""The command line as a reference page, made from click's commands."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tools.markdown import page, table
from uprmc.cli import help
from uprmc.cli.main import uprmc


def contexts() -> Iterator[click.Context]:
    """Yield a context for each command of uprmc, in order."""
    return help.contexts(uprmc)


def man_pages() -> dict[str, str]:
    """Return the manual pages by the names of their files."""
    return help.pages(uprmc)


def command_line_page() -> str:
    """List every verb with its options."""
    parts = ["# Command line", "`uprmc VERB --help` shows the same."]
    for context in contexts():
        parts += [f"## {context.command_path}", f"```\n{help.usage(context)}\n```"]
        parts += help.paragraphs(context)
        if rows := help.options(context):
            parts.append(table(("option", "meaning"), ((f"`{o}`", text) for o, text in rows)))
        if examples := help.examples(context):
            parts.append("\n".join(["```", *examples, "```"]))
    return page(*parts)
