"""``uprmc observe``: whether the present version of a document is on disk."""

from __future__ import annotations

import json
import os
import time

import click

from uprmc.cli.arguments import seconds
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import readable
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.errors import ConfigError, RemoteProtocolError
from uprmc.model import vbucket_of
from uprmc.protocol.binary import (
    KeyObservation,
    ObservedKey,
    decode_observe_reply,
    encode_observe_request,
)
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import KEY_MAX_BYTES, ObservedState, Opcode, Status
from uprmc.remote.json_fields import text_or_base64

#: How often `--wait` asks, in seconds, whatever the node recommends.
_POLL_MIN_S, _POLL_MAX_S = 0.005, 0.5

_WORDS = {
    ObservedState.NOT_PERSISTED: "not persisted",
    ObservedState.PERSISTED: "persisted",
    ObservedState.NOT_FOUND: "not found",
    ObservedState.LOGICALLY_DELETED: "deleted, not persisted",
}
_UNSETTLED = (ObservedState.NOT_PERSISTED, ObservedState.LOGICALLY_DELETED)


@click.command()
@click.argument("key")
@click.option(
    "--vbuckets",
    "vbucket",
    type=click.IntRange(0, 0xFFFF),
    help="vBucket of the document.  [default: computed from the key]",
)
@click.option("--wait", is_flag=True, help="Wait until the newest change is on disk.")
@click.option(
    "--timeout",
    "timeout_s",
    type=seconds(),
    default="30s",
    show_default=True,
    help="Longest time to wait with --wait.",
)
@talks_to_a_node("Print one JSON object.", timeout=False)
def observe(
    key: str, vbucket: int | None, wait: bool, timeout_s: float, node: NodeAccess, as_json: bool
) -> None:
    """Print whether a document is on disk, and its CAS.

    With --wait, the command ends as soon as the newest change of the document is on disk, even if
    that change is a deletion. If --timeout is reached first, the exit code is 1.
    """
    name = os.fsencode(key)
    if not 1 <= len(name) <= KEY_MAX_BYTES:
        raise ConfigError(f"a key has 1 to {KEY_MAX_BYTES} bytes, this one {len(name)}")
    deadline = time.monotonic() + (timeout_s if wait else 0.0)
    with node.connected() as connection:
        number = _vbucket_by_key(connection, name) if vbucket is None else vbucket
        found, rest_s = _ask(connection, number, name)
        while found.state in _UNSETTLED and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(rest_s, left_s))
            found, rest_s = _ask(connection, number, name)
    if wait and found.state in _UNSETTLED:
        words = _words(found.state)
        raise NodeError(f"{readable(name)} in vBucket {number}: {words} after {timeout_s:g} s")
    _print(found, as_json)


def _vbucket_by_key(connection: NodeConnection, key: bytes) -> int:
    """Return where a key belongs on a node with that many vBuckets."""
    count = connection.vbuckets()
    if not count:
        raise NodeError(
            "the node does not report how many vBuckets it has: name one with --vbuckets"
        )
    return vbucket_of(key, count)


def _ask(connection: NodeConnection, number: int, key: bytes) -> tuple[KeyObservation, float]:
    """Return what is known of the key, and in how many seconds to ask again."""
    value = encode_observe_request([ObservedKey(number, key)])
    answer = connection.ask(RequestFrame(Opcode.OBSERVE, value=value, vbucket=number))
    if answer.status == Status.NOT_MY_VBUCKET:
        raise NodeError(f"vBucket {number} is not on this node, or dead")
    if answer.status:
        raise NodeError(f"observing {readable(key)} was refused: {answer.reason}")
    try:
        (found,) = decode_observe_reply(answer.value)
    except (RemoteProtocolError, ValueError) as error:
        raise NodeError(f"the node's answer makes no sense: {error}") from None
    return found, min(max((answer.cas >> 32) / 1e3, _POLL_MIN_S), _POLL_MAX_S)


def _words(state: int) -> str:
    return _WORDS[ObservedState(state)] if state in _WORDS else f"state {state:#04x}"


def _print(found: KeyObservation, as_json: bool) -> None:
    words = _words(found.state)
    if as_json:
        place = {"vbucket": found.vbucket, **text_or_base64("key", found.key)}
        click.echo(json.dumps({**place, "state": words, "cas": str(found.cas)}))
        return
    click.echo(f"{readable(found.key)}  vBucket {found.vbucket}  {words}  CAS {found.cas}")
