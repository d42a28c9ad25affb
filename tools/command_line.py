"""The command line as a reference page and as a manual page, both made from click's commands."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator

import click

from tools.markdown import page, table
from uprmc import __version__
from uprmc.cli.main import uprmc

#: Options of every verb, shown once.
_OF_ALL = ("--debug", "--help")


def contexts(
    command: click.Command = uprmc, name: str = "uprmc", parent: click.Context | None = None
) -> Iterator[click.Context]:
    """Yield a context for the command and, in order, for everything below it that is shown."""
    context = click.Context(command, info_name=name, parent=parent)
    yield context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            if below is not None and not below.hidden:
                yield from contexts(below, each, context)


def _usage(context: click.Context) -> str:
    return f"{context.command_path} {' '.join(context.command.collect_usage_pieces(context))}"


def _paragraphs(context: click.Context) -> list[str]:
    """Return the help text by paragraphs; one that click is not to wrap stays as lines."""
    parts = inspect.cleandoc(context.command.help or "").split("\n\n")
    return [part.removeprefix("\b\n") for part in parts]


def _options(context: click.Context) -> list[tuple[str, str]]:
    """Return what help shows of each option: its forms, and its text. Arguments have none."""
    records = (param.get_help_record(context) for param in context.command.get_params(context))
    shown = [(forms, text) for forms, text in filter(None, records) if text]
    return shown if context.parent is None else [each for each in shown if each[0] not in _OF_ALL]


def _examples(context: click.Context) -> list[str]:
    lines = inspect.cleandoc((context.command.epilog or "").replace("\b", "")).splitlines()
    return [line.strip() for line in lines if line.strip().startswith("uprmc ")]


def command_line_page() -> str:
    """List every verb with its options."""
    parts = ["# Command line", "`uprmc VERB --help` shows the same."]
    for context in contexts():
        parts += [f"## {context.command_path}", f"```\n{_usage(context)}\n```"]
        parts += _paragraphs(context)
        if rows := _options(context):
            parts.append(table(("option", "meaning"), ((f"`{o}`", text) for o, text in rows)))
        if examples := _examples(context):
            parts.append("\n".join(["```", *examples, "```"]))
    return page(*parts)


# --- the manual page ----------------------------------------------------------------------------


def _roff(text: str) -> str:
    """Escape what troff would read as its own."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.M)


def man_page() -> str:
    """Return uprmc(1) in troff's man macros."""
    lines = [f'.TH UPRMC 1 "" "uprmc {__version__}" "User Commands"', ".SH NAME"]
    lines += [f"uprmc \\- {_roff(_summary())}", ".SH SYNOPSIS", ".B uprmc"]
    lines += ["[OPTIONS] COMMAND [ARGS]..."]
    for context in contexts():
        lines += [".SH DESCRIPTION"] if context.parent is None else [f".SH {_heading(context)}"]
        lines += [f".B {_roff(_usage(context))}"]
        for paragraph in _paragraphs(context):
            lines += [".PP", _roff(paragraph)]
        for forms, text in _options(context):
            lines += [".TP", f".B {_roff(forms)}", _roff(" ".join(text.split()))]
        for example in _examples(context):
            lines += [".PP", f".EX\n{_roff(example)}\n.EE"]
    lines += [".SH EXIT STATUS", "0: done. 1: the work failed. 2: bad usage, setting or file."]
    return "\n".join(lines) + "\n"


def _summary() -> str:
    return (uprmc.help or "").partition("\n")[0].rstrip(".")


def _heading(context: click.Context) -> str:
    return _roff(f'"{context.command_path.upper()}"')


if __name__ == "__main__":
    sys.stdout.write(man_page())
