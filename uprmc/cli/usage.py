"""What is wrong with a command line, in one line that says what would be right."""

from __future__ import annotations

import re

import click

from uprmc.units import nearest

_NO_COMMAND = re.compile(r"No such command '(.*?)'\.")


def in_one_line(error: click.ClickException) -> str:
    """Return an error of a command line with advice: how to call the verb, or where to look."""
    text = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    help_ = f"'{context.command_path} --help'"
    if text.startswith(("Missing argument", "Got unexpected extra")):
        return f"{text.rstrip('.')}; {context.get_usage().replace('Usage: ', 'say ')}"
    if isinstance(error, click.MissingParameter) and text.startswith("Missing option"):
        return f"{text.rstrip('.')}; {help_} tells what it is"
    if isinstance(error, click.NoSuchOption) and not error.possibilities:
        return f"{text.rstrip('.')}; {help_} lists them"
    named = _NO_COMMAND.match(text)
    if named and isinstance(context.command, click.Group):
        meant = nearest(named[1], context.command.list_commands(context))
        hint = f"did you mean {meant}?" if meant else f"{help_} lists them"
        return f"'{context.command_path}' has no verb {named[1]!r}: {hint}"
    return text
