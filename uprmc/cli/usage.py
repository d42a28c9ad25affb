"""What is wrong with a command line, in one line that says what would be right."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from uprmc.places import WITH_LOGIN, WITH_TLS, WITH_TRUST, WITHOUT_TLS
from uprmc.units import nearest

_REMOVALS = ("rm", "remove", "delete", "del")

#: What verbs are called elsewhere -> what may be meant, by our names.
_ELSEWHERE = {
    **dict.fromkeys(_REMOVALS, _REMOVALS),
    **dict.fromkeys(("ls", "scan", "dir", "show"), ("list", "keys", "get")),
    **dict.fromkeys(("add", "new", "make"), ("create", "add", "put", "set")),
    **dict.fromkeys(("info", "stat"), ("stats", "status")),
    "health": ("status",),
    **dict.fromkeys(("start", "run", "server"), ("serve",)),
    **dict.fromkeys(("monitor", "follow", "changes", "subscribe"), ("tail",)),
    **dict.fromkeys(("inc", "counter"), ("incr",)),
    "dec": ("decr",),
    "expire": ("touch",),
    **dict.fromkeys(("save",), ("dump", "export", "backup")),
    **dict.fromkeys(("import", "ingest"), ("load",)),
    **dict.fromkeys(("cat", "read"), ("get",)),
    **dict.fromkeys(("put", "store", "write"), ("put", "set")),
    "promote": ("failover",),
    **dict.fromkeys(("benchmark",), ("bench",)),
    **dict.fromkeys(("config", "conf"), ("settings",)),
}

#: What takes something away: only who names such a thing is told of it. A misprint of another verb
#: must not become one.
_TAKE_AWAY = frozenset(
    {
        *(*_REMOVALS, "flush", "failover", "takeover", "replicate", "restore", "compact"),
        *("new-history", "undo"),
    }
)

#: What nodes and the library ask for -> the options that give it. ``{}`` is what stands before
#: names of options that concern the node.
_ASKED_FOR = {
    WITHOUT_TLS: "leave out --tls, {}tls-ca and --no-tls-verify, also of UPRMC_* and client.toml",
    WITH_TLS: "say --tls, or {}tls-ca FILE with the authority of its certificate",
    WITH_TRUST: "say {}tls-ca FILE with the authority of its certificate, or --no-tls-verify",
    WITH_LOGIN: "say {}user NAME and {}password-file FILE",
    "say username, and passwordFile or passwordEnv": "say {}user NAME and {}password-file FILE",
    "(no room on the device)": "(no room on the device): make room where its data directory is",
    "wrong name or password": "wrong name or password; see {}user and {}password-file",
}

_NO_COMMAND = re.compile(r"No such command '(.*?)'\.")


def verb_meant(word: str, verbs: Sequence[str]) -> str:
    """Return which of the verbs somebody may have meant; empty if none comes near."""
    by_sense = (each for each in _ELSEWHERE.get(word.lower(), ()) if each in verbs)
    by_letters = nearest(word, list(verbs))
    return next(by_sense, "") or ("" if by_letters in _TAKE_AWAY else by_letters)


def in_one_line(error: click.ClickException) -> str:
    """Return an error of a command line with advice: how to call the verb, or where to look."""
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption):
        name = error.option_name
        if isinstance(getattr(context, "command", None), click.Group):
            return f"No such option {name!r}: options such as {name} follow the verb"
        near = [each for each in error.possibilities or () if each != "--debug"]
        error = click.NoSuchOption(name, error.message, near, context)
    text = " ".join(error.format_message().split())
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
        meant = verb_meant(named[1], context.command.list_commands(context))
        hint = f"did you mean {meant}?" if meant else f"{help_} lists them"
        return f"'{context.command_path}' has no verb {named[1]!r}: {hint}"
    return text


def with_options_named(text: str, arguments: Sequence[str]) -> str:
    """Return why a node refuses, with the options of the verb that are asked for."""
    before = "--node-" if [*arguments[:2]] == ["xdcr", "create"] else "--"
    for asked, options in _ASKED_FOR.items():
        if asked in text:
            return text.replace(asked, options.format(before, before))
    return text
