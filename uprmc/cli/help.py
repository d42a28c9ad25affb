"""``uprmc help`` and ``uprmc version``, for those who do not type two hyphens."""

from __future__ import annotations

import click

from uprmc import __version__


def version_line() -> str:
    """Return what ``--version`` prints."""
    from uprmc.core.form import FORM

    return f"uprmc {__version__} (core: {FORM})"


@click.command()
def version() -> None:
    """Print the version and the form of the core."""
    click.echo(version_line())


@click.command(name="help")
@click.argument("words", nargs=-1, metavar="[VERB...]")
def help_(words: tuple[str, ...]) -> None:
    """Print what a verb does, or list all verbs."""
    context = click.get_current_context().find_root()
    for word in words:
        if not isinstance(context.command, click.Group):
            raise click.UsageError(f"{context.command_path!r} has no verbs of its own", context)
        _, found, _ = context.command.resolve_command(context, [word])
        assert found is not None
        context = click.Context(found, info_name=word, parent=context)
    click.echo(context.get_help())
