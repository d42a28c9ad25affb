"""Options and values that have another name now: understood for one release, with a warning."""

from __future__ import annotations

from collections.abc import Sequence

import click

_OPTIONS = {
    "tail": {"--from": "--start", "--vbucket": "--vbuckets"},
    "observe": {"--vbucket": "--vbuckets"},
    "export": {"--from": "--start"},
    "replicate": {"--from": "--source"},
    "serve": {"--from": "--source"},
    "tap-adapter": {"--rollback": "--on-rollback"},
}

#: Of options by their present names.
_VALUES = {
    "--on-rollback": {
        "stop": "fail",
        "obey": "rewind",
        "correct": "rewind",
        "reset": "restart",
    }
}


def renamed(verb: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a verb with present names, after a line about each former one."""
    found: list[str] = []
    for place, argument in enumerate(arguments):
        if argument == "--":
            return [*found, *arguments[place:]]
        name, equals, value = argument.partition("=")
        option = _now(verb, name, _OPTIONS.get(verb, {}))
        if equals:
            found.append(f"{option}={_now(verb, value, _VALUES.get(option, {}))}")
        else:
            before = found[-1] if found else ""
            found.append(_now(verb, option, _VALUES.get(before, {})))
    return found


def _now(verb: str, word: str, former: dict[str, str]) -> str:
    if word not in former:
        return word
    warn(f"{word!r} of 'uprmc {verb}' is now {former[word]!r}")
    return former[word]


def warn(what: str) -> None:
    """Say in a line on standard error that a name has changed."""
    click.echo(f"uprmc: {what}; the old name goes with the next release", err=True)
