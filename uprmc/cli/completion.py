"""``uprmc completion``: let a shell complete verbs and options."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from uprmc.cli.manual import beside_the_program, written

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
