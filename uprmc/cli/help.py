"""``uprmc help``, ``version``, ``manual`` and ``completion``: the command line about itself."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from uprmc import __version__
from uprmc.errors import CommandError


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


# --- manual ---------------------------------------------------------------------------------------


#: Options of every verb, shown once.
OF_ALL = ("--debug", "--help")

_EXIT = "0: done. 1: the work failed. 2: bad usage, setting or file."


# --- what the command line says -----------------------------------------------------------------


def contexts(
    command: click.Command, name: str = "uprmc", parent: click.Context | None = None
) -> Iterator[click.Context]:
    """Yield a context for the command and, in order, for everything below it that is shown."""
    context = click.Context(command, info_name=name, parent=parent)
    yield context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            if below is not None and not below.hidden:
                yield from contexts(below, each, context)


def usage(context: click.Context) -> str:
    """Return the line that shows how a command is called."""
    return f"{context.command_path} {' '.join(context.command.collect_usage_pieces(context))}"


def paragraphs(context: click.Context) -> list[str]:
    """Return the help text by paragraphs; one that click is not to wrap stays as lines."""
    parts = inspect.cleandoc(context.command.help or "").split("\n\n")
    return [part.removeprefix("\b\n") for part in parts]


def options(context: click.Context) -> list[tuple[str, str]]:
    """Return what help shows of each option: its forms, and its text. Arguments have none."""
    records = (param.get_help_record(context) for param in context.command.get_params(context))
    shown = [(forms, text) for forms, text in filter(None, records) if text]
    return shown if context.parent is None else [each for each in shown if each[0] not in OF_ALL]


def examples(context: click.Context) -> list[str]:
    """Return the example lines of a command."""
    lines = inspect.cleandoc((context.command.epilog or "").replace("\b", "")).splitlines()
    return [line.strip() for line in lines if line.strip().startswith("uprmc ")]


# --- pages --------------------------------------------------------------------------------------


def pages(root: click.Command) -> dict[str, str]:
    """Return ``{"uprmc-serve.1": text}``: a page about each verb with all below it, and one about
    the program.
    """
    found: dict[str, list[click.Context]] = {}
    for context in contexts(root):
        words = context.command_path.split()
        found.setdefault("-".join(words[:2]), []).append(context)
    verbs = [name for name in found if name != "uprmc"]
    return {
        f"{name}.1": _page(name, its, verbs if name == "uprmc" else ["uprmc"])
        for name, its in found.items()
    }


def _page(name: str, its: list[click.Context], see_also: list[str]) -> str:
    first, *below = its
    lines = [f'.TH {_roff(name.upper())} 1 "" "uprmc {__version__}" "User Commands"', ".SH NAME"]
    lines += [f"{_roff(name)} \\- {_roff(_summary(first))}", ".SH SYNOPSIS"]
    lines += [f".B {_roff(usage(each))}\n.br" for each in its if not _has_verbs(each)] or [
        f".B {_roff(usage(first))}"
    ]
    lines += [".SH DESCRIPTION", *_body(first)]
    for context in below:
        lines += [f'.SH "{_roff(context.command_path.upper())}"', *_body(context)]
    lines += [".SH EXIT STATUS", _EXIT, ".SH SEE ALSO"]
    lines += [",\n".join(f".BR {_roff(each)} (1)" for each in see_also).replace(",\n", " ,\n")]
    return "\n".join(lines) + "\n"


def _body(context: click.Context) -> Iterator[str]:
    for paragraph in paragraphs(context):
        yield from (".PP", _roff(paragraph))
    for forms, text in options(context):
        yield from (".TP", f".B {_roff(forms)}", _roff(" ".join(text.split())))
    if shown := examples(context):
        yield from (".PP", ".EX", *map(_roff, shown), ".EE")


def _has_verbs(context: click.Context) -> bool:
    return isinstance(context.command, click.Group) and not context.command.invoke_without_command


def _summary(context: click.Context) -> str:
    return " ".join((context.command.help or "").partition("\n\n")[0].split()).rstrip(".")


def _roff(text: str) -> str:
    """Escape what troff would read as its own."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.M)


# --- the verb -----------------------------------------------------------------------------------


@click.command()
@click.argument("verb", required=False)
@click.option("--install", is_flag=True, help="Write all pages to where 'man' finds them.")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Write all pages to this directory."
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def manual(verb: str | None, install: bool, directory: Path | None, debug: bool) -> None:
    """Print a manual page, or install all of them for 'man uprmc'.

    Pages are in the format of man(7): uprmc manual serve | man -l -
    """
    made = pages(click.get_current_context().find_root().command)
    if install or directory is not None:
        _write(made, directory or beside_the_program("man/man1"))
        return
    name = "uprmc.1" if verb is None else f"uprmc-{verb}.1"
    if name not in made:
        raise click.UsageError(f"there is no verb {verb!r}; 'uprmc --help' lists them")
    click.echo(made[name], nl=False)


def _write(made: dict[str, str], directory: Path) -> None:
    for name, text in made.items():
        written(directory / name, text)
    click.echo(f"{len(made)} manual pages are in {directory}")


def written(path: Path, text: str) -> Path:
    """Write a file and the directories above it; raises `CommandError`, and returns the path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def beside_the_program(name: str) -> Path:
    """Return ``PREFIX/share/NAME`` for the ``PREFIX/bin`` from which a shell starts uprmc.

    man and bash-completion look there for every directory of ``PATH``.
    """
    program = shutil.which("uprmc")
    prefix = Path(program).absolute().parent.parent if program else Path(sys.prefix)
    return prefix / "share" / name


# --- completion -----------------------------------------------------------------------------------


_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_UPRMC_COMPLETE"

_ZSH_ADVICE = """\
If it is not used in a new shell, add these lines to ~/.zshrc:
  fpath=({directory} $fpath)
  autoload -Uz compinit && compinit"""
_BASH_ADVICE = """\
If it is not used in a new shell, install the package bash-completion, or add to ~/.bashrc:
  source {path}"""


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write the script to where the shell finds it.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def completion(shell: str | None, install: bool, debug: bool) -> None:
    """Print or install the script that completes uprmc in a shell.

    Without SHELL it is the one that $SHELL names.
    """
    chosen = shell or Path(os.environ.get("SHELL", "")).name
    if chosen not in _SHELLS:
        raise click.UsageError(f"say which shell: {', '.join(_SHELLS)}")
    text = _script(chosen)
    if not install:
        click.echo(text, nl=False)
        return
    path = written(_place(chosen), text)
    click.echo(f"{path} is installed")
    advice = {"bash": _BASH_ADVICE, "zsh": _ZSH_ADVICE}.get(chosen, "")
    if advice:
        click.echo(advice.format(path=path, directory=path.parent))


def _script(shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root()
    # click's own `source` starts a bash, for its version.
    made = kind(root.command, {}, "uprmc", _VARIABLE)
    return f"{made.source_template % made.source_vars()}\n"


def _place(shell: str) -> Path:
    """Return where each shell looks for the completion of a program."""
    if shell == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return config / "fish" / "completions" / "uprmc.fish"
    if shell == "zsh":
        return beside_the_program("zsh/site-functions") / "_uprmc"
    return beside_the_program("bash-completion/completions") / "uprmc"
