"""``uprmc mirror``: bring the changes of nodes to files, HTTP, SQLite or Kafka, and resume."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from uprmc.cli.arguments import SIZE, VBUCKETS, each_once, seconds
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.tail import NOOP_INTERVAL_S, Teller, told_on_standard_error
from uprmc.client.blocking import UprClient
from uprmc.client.follow import RollbackWord
from uprmc.client.options import Until
from uprmc.client.sqlite_state import SqliteState
from uprmc.client.state import StateRefused, StateStore
from uprmc.errors import ConfigError
from uprmc.sinks.sink import PATIENCE_S, Sink, SinkRefused, SinkStopped
from uprmc.units import nearest

_KINDS = ("-", "jsonl:FILE", "sqlite:FILE", "http://...", "https://...", "kafka:TOPIC@BROKERS")
_NAME = "uprmc-mirror"

#: Options that belong to some kinds only.
_OWN = {
    "rotate": ("jsonl",),
    "header": ("http", "https"),
    "refused": ("http", "https"),
    "retry": ("http", "https", "kafka"),
    "set": ("kafka",),
}


@click.command()
@click.option(
    "--to",
    "target",
    required=True,
    metavar="TARGET",
    help=f"One of {', '.join(_KINDS)}; - is standard output.",
)
@click.option(
    "--state",
    "state_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where positions are kept for -, HTTP and Kafka; the others keep them with the data.",
)
@click.option(
    "--vbuckets",
    type=VBUCKETS,
    multiple=True,
    help="Only these vBuckets; may be repeated.  [default: all active ones]",
)
@click.option(
    "--on-rollback",
    type=click.Choice(["fail", "rewind", "restart"]),
    default="rewind",
    show_default=True,
    help="When a node has lost changes: stop, undo them in the target, or resync from zero.",
)
@click.option("--until-now", is_flag=True, help="End when the target has all that exists now.")
@click.option("--rotate", type=SIZE, help="jsonl: begin another file at this size.")
@click.option(
    "--header", multiple=True, metavar="NAME: VALUE", help="http: one more header; @FILE has some."
)
@click.option(
    "--refused",
    type=click.Choice(["stop", "skip"]),
    help="http: what to do about a change that is refused with 4xx.  [default: stop]",
)
@click.option(
    "--retry",
    type=seconds(0.0),
    help="http, kafka: give up when the target takes nothing for this long.  [default: 5m]",
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="kafka: a setting of librdkafka."
)
@talks_to_a_node("Print one JSON object at the end.", several=True)
def mirror(
    target: str,
    state_path: Path | None,
    vbuckets: tuple[tuple[int, ...], ...],
    on_rollback: RollbackWord,
    until_now: bool,
    node: NodeAccess,
    as_json: bool,
    **own: Any,
) -> int:
    """Bring the changes of nodes to files, HTTP, SQLite or Kafka.

    It goes on where it ended, over restarts and failovers, and undoes what a node has lost. End it
    with Ctrl-C or SIGTERM.
    """
    kind, place = _kind(target)
    own["set"] = own.pop("settings")
    _check(kind, own, state_path)
    if kind == "-" and as_json:
        raise ConfigError("--json: standard output has the changes already: leave it out")
    with _refusals():
        sink = _sink(kind, place, own)
    try:
        with _refusals():
            state = sink.state or _state(kind, place, state_path)
        wanted = each_once(vbuckets) or None
        count = _run(sink, state, node, wanted, on_rollback, "now" if until_now else None)
    finally:
        sink.close()
    if as_json:
        click.echo(json.dumps({"changes": count, "skipped": getattr(sink, "skipped", 0)}))
    return 0


def _run(
    sink: Sink,
    state: StateStore | None,
    node: NodeAccess,
    vbuckets: Sequence[int] | None,
    on_rollback: RollbackWord,
    until: Until,
) -> int:
    """Follow the nodes until the end; returns how many changes came."""
    with told_on_standard_error() as teller:
        client = UprClient(
            node.places,
            sink,
            state=state,
            name=_NAME,
            vbuckets=vbuckets,
            on_rollback=on_rollback,
            noop_interval_s=NOOP_INTERVAL_S,
            tls=node.tls,
            credentials=node.credentials,
            connect_timeout_s=node.timeout_s,
            patience_s=node.timeout_s,
        )
        try:
            with client, _ended_by_signals(client, sink), suppress(SinkStopped):
                _follow(client, until, teller)
        finally:
            if state is not None:
                state.close()
        return sum(each.items for each in client.metrics().vbuckets.values())


def _follow(client: UprClient, until: Until, teller: Teller) -> None:
    with client.running_loop(until) as loop:
        for _ in loop.steps(None, None):
            if teller.waits and client.positions():
                teller.reached()


@contextmanager
def _ended_by_signals(client: UprClient, sink: Sink) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end it in order: what was delivered is saved."""

    def stop(*_: object) -> None:
        sink.stop()
        client.stop()

    former = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


# --- what is meant --------------------------------------------------------------------------------


def _kind(target: str) -> tuple[str, str]:
    """Return what kind of target it is, and what the sink is to be given."""
    kind, _, place = target.partition(":")
    kind = kind.lower()
    if target == "-" or (kind, place) == ("jsonl", "-"):
        return "-", ""
    if kind in ("http", "https"):
        return kind, target
    if kind in ("jsonl", "sqlite", "kafka") and place:
        return kind, place
    for each in _KINDS:
        if each.startswith(f"{kind}:"):
            raise ConfigError(f"--to {target}: say {each}")
    meant = nearest(kind, ["jsonl", "sqlite", "http", "https", "kafka"])
    hint = f"did you mean {meant}:{place or '...'}?" if meant else f"say {', '.join(_KINDS)}"
    raise ConfigError(f"--to {target}: there is no such target: {hint}")


def _check(kind: str, own: Mapping[str, Any], state_path: Path | None) -> None:
    for name, value in own.items():
        if value and kind not in _OWN[name]:
            raise ConfigError(f"--{name} is for {' and '.join(_OWN[name])}, not for {kind}")
    if state_path is not None and kind in ("jsonl", "sqlite"):
        raise ConfigError(f"--state: {kind} keeps positions with the data: leave it out")
    if state_path is None and kind in ("http", "https", "kafka"):
        raise ConfigError(f"{kind}: say --state FILE, in which positions are kept")


def _sink(kind: str, place: str, own: Mapping[str, Any]) -> Sink:
    """Return the sink; what one kind needs is imported for that kind only."""
    patience_s = own["retry"] or PATIENCE_S
    if kind == "-":
        from uprmc.sinks.json_stream import JsonStream

        return JsonStream(sys.stdout.buffer)
    if kind == "jsonl":
        from uprmc.sinks.json_file import JsonFile

        return JsonFile(place, name=_NAME, rotate_bytes=own["rotate"] or 0)
    if kind == "sqlite":
        from uprmc.sinks.sqlite_mirror import SqliteMirror

        return SqliteMirror(place, name=_NAME)
    if kind == "kafka":
        from uprmc.sinks.kafka import Kafka

        topic, at, brokers = place.rpartition("@")
        if not (topic and at and brokers):
            raise ConfigError(f"--to kafka:{place}: say kafka:TOPIC@HOST:PORT,...")
        return Kafka(topic, brokers, settings=_settings(own["set"]), patience_s=patience_s)
    from uprmc.sinks.http_post import HttpPost, Refused

    headers = dict(map(_header, _lines(own["header"])))
    refused: Refused = own["refused"] or "stop"
    return HttpPost(place, headers=headers, patience_s=patience_s, refused=refused)


def _state(kind: str, place: str, path: Path | None) -> StateStore | None:
    """Return positions that belong to this target; which hosts it has may change."""
    if path is None:
        return None
    whose = place.rpartition("@")[0] if kind == "kafka" else urlsplit(place).path
    return SqliteState(path, name=f"{_NAME} {kind}:{whose}")


def _settings(given: Sequence[str]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise ConfigError(f"--set {each}: say NAME=VALUE, such as security.protocol=SSL")
    return dict(each.split("=", 1) for each in given)


def _lines(given: Sequence[str]) -> Iterator[str]:
    for each in given:
        if each.startswith("@"):
            yield from filter(None, _text(each[1:], f"--header {each}").splitlines())
        else:
            yield each


def _text(path: str, option: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ConfigError(f"{option}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{option}: is no text") from None


@contextmanager
def _refusals() -> Iterator[None]:
    """Let what a target or its state cannot be, be an error of the command line."""
    try:
        yield
    except (SinkRefused, StateRefused) as error:
        raise ConfigError(str(error)) from None


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigError(f"--header {text}: say 'NAME: VALUE', or @FILE with such lines")
    return name.strip(), value.strip()
