"""The ``uprmc`` command line: verbs, exit codes, and errors in one line.

Exit codes: 0 ok, 1 the work failed, 2 bad usage, configuration or files, 130 interrupted. An error
is one line on standard error that says what to do; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from uprmc.cli.usage import in_one_line, verb_meant, with_options_named
from uprmc.errors import ConfigError, Interrupted, StoreRefused, UprmcError

#: Columns that help needs before, between and behind names and what they do.
_AROUND_NAMES = 6

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


#: Where each verb is. A verb is imported when it is used: a server needs no progress bar of the
#: demo's, and a question to a node needs no Twisted.
_VERBS = {
    "serve": "serve:serve",
    "tail": "tail:tail",
    "mirror": "mirror:mirror",
    "watch": "tail:watch",
    "get": "documents:get",
    "set": "documents:set_verb",
    "del": "documents:del_verb",
    "incr": "documents:incr",
    "decr": "documents:decr",
    "touch": "documents:touch",
    "ttl": "documents:ttl",
    "flush": "documents:flush",
    "keys": "documents:keys",
    "dump": "documents:dump",
    "ping": "ping:ping",
    "bench": "bench:bench",
    "top": "top:top",
    "status": "stats:status",
    "stats": "stats:stats",
    "vbucket": "vbucket:vbucket",
    "watermarks": "watermarks:watermarks",
    "xdcr": "xdcr:xdcr",
    "index": "index:index",
    "failover-log": "replicas:failover_log",
    "observe": "observe:observe",
    "replicate": "replicas:replicate_verb",
    "takeover": "replicas:takeover",
    "failover": "replicas:failover",
    "load": "load:load",
    "export": "export:export",
    "backup": "backup:backup",
    "restore": "backup:restore",
    "verify": "backup:verify",
    "tap-adapter": "tap_adapter:tap_adapter",
    "compact": "data:compact",
    "check": "data:check",
    "data": "data:data",
    "settings": "settings:settings",
    "user": "user:user",
    "demo": "demo:demo",
    "manual": "help:manual",
    "completion": "help:completion",
    "help": "help:help_",
    "version": "help:version",
}


#: How help groups them; a person who looks for a verb knows what it is for.
SECTIONS = {
    "Run a node": ("serve", "demo", "settings", "user", "data", "compact", "check"),
    "Documents": (
        *("get", "set", "del", "incr", "decr", "touch", "ttl", "keys", "dump", "flush"),
        *("observe", "index"),
    ),
    "Changes": ("tail", "watch", "mirror", "export"),
    "Look at a node": ("ping", "status", "stats", "top", "bench", "watermarks"),
    "Replicas and data centres": (
        *("replicate", "takeover", "failover", "failover-log", "vbucket", "xdcr", "tap-adapter"),
    ),
    "Files and backups": ("load", "backup", "restore", "verify"),
    "Help": ("help", "manual", "completion", "version"),
}


class _Verbs(click.Group):
    """Imports verbs on demand, and ends quietly when nobody reads our output any more.

    To click, an output that nobody reads is a failure.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module, _, verb = _VERBS[cmd_name].partition(":")
        found: click.Command = getattr(import_module(f"uprmc.cli.{module}"), verb)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _VERBS))
        limit = formatter.width - width - _AROUND_NAMES
        for section, names in SECTIONS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (f"{name:<{width}}", each.get_short_help_str(limit))
                for name, each in found
                if each is not None and not each.hidden
            ]
            with formatter.section(section):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _VERBS and not name.startswith("-"):
            meant = verb_meant(name, list(_VERBS))
            hint = f"did you mean {meant}?" if meant else "'uprmc --help' lists them"
            raise click.UsageError(f"there is no verb {name!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Nothing is left to say, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_OK


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from uprmc.cli.help import version_line

    click.echo(version_line())
    context.exit()


@click.group(
    cls=_Verbs,
    subcommand_metavar="VERB ...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and the form of the core, and exit.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def uprmc(debug: bool) -> None:
    """A memcached-compatible server that keeps its data on disk and streams every change.

    Start a node with "uprmc serve". "uprmc VERB --help" tells what a verb does; verbs ask the node
    at 127.0.0.1:11210 unless you say --node.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Prints errors; never raises."""
    try:
        result = uprmc.main(list(arguments), prog_name="uprmc", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return EXIT_USAGE
    except click.Abort:
        return _failed("interrupted", EXIT_INTERRUPTED, arguments)
    except Interrupted as error:
        return _failed(str(error), EXIT_INTERRUPTED, arguments)
    except click.ClickException as error:
        return _failed(in_one_line(error), EXIT_USAGE, arguments)
    except (ConfigError, StoreRefused) as error:
        return _failed(str(error), EXIT_USAGE, arguments)
    except UprmcError as error:
        code = getattr(error, "exit_code", EXIT_FAILED)
        return _failed(_explained(error), code, arguments)
    except OSError as error:
        return _failed(_one_line(str(error)), EXIT_FAILED, arguments)
    return result if isinstance(result, int) else EXIT_OK


def _explained(error: UprmcError) -> str:
    """Return an error's line; where another listener answers, it says which."""
    place = error.doubtful_place
    if place:
        from uprmc.cli.ping import listener_at

        words = listener_at(place)
        code = getattr(error, "code", "") if getattr(error, "shows_code", False) else ""
        return f"{code} {words}".strip() if words else _one_line(str(error))
    return _one_line(str(error))


def _failed(message: str, code: int, arguments: Sequence[str]) -> int:
    if "--debug" in arguments:
        traceback.print_exc()
    click.echo(f"uprmc: {with_options_named(message, arguments)}", err=True)
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _open_standard_streams() -> None:
    """Point closed standard streams to nothing, so that no socket or file gets their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing > number:
                os.dup2(nothing, number)
                os.close(nothing)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def main() -> None:
    """Entry point of the ``uprmc`` script."""
    _open_standard_streams()
    sys.exit(run(sys.argv[1:]))
