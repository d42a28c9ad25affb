"""Nodes to back up and to restore to, what can happen to them, and an independent judge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from interop.server_process import ServerProcess, start_uprmc
from tests.bulk.here import changes
from uprmc.client.connection import NodeConnection
from uprmc.client.handler import SET, Change
from uprmc.client.kv import KvClient
from uprmc.client.lease import Lease
from uprmc.columnar.access import Access
from uprmc.jobs.engines import LocalEngine
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.management import COMPACT_EXTRAS, SEQNO_PERSISTENCE_EXTRAS
from uprmc.protocol.opcodes import Opcode

VBUCKETS = 16
HERE = LocalEngine(1)


class State(NamedTuple):
    """What has to be the same of a key. A deletion's time and kind are the node's own affair."""

    document: bool
    value: bytes | None
    rev: int
    cas: int
    flags: int
    expiry: int


def start(data: Path, *options: str, vbuckets: int = VBUCKETS) -> ServerProcess:
    return start_uprmc(data, "--vbuckets", str(vbuckets), "--no-sync", *options)


def access_to(server: ServerProcess) -> Access:
    return Access((str(server.upr),))


def state_of(change: Change) -> State:
    if change.op == SET:
        return State(True, change.value, change.rev, change.cas, change.flags, change.expiry)
    return State(False, None, change.rev, change.cas, 0, 0)


def states(server: ServerProcess) -> dict[bytes, State]:
    """Return every key of a node, deletions too, read by the other client."""
    return {key: state_of(change) for key, change in changes(server).items()}


def documents(server: ServerProcess) -> dict[bytes, State]:
    return {key: state for key, state in states(server).items() if state.document}


def store(server: ServerProcess, found: Mapping[bytes, bytes], **rest: int) -> None:
    with KvClient(str(server.upr)) as kv:
        kv.set_many(found, **rest)


def ask(server: ServerProcess, opcode: Opcode, vbucket: int = 0, extras: bytes = b"") -> None:
    with NodeConnection(str(server.upr)) as connection:
        answer = connection.ask(RequestFrame(opcode, extras=extras, vbucket=vbucket))
        assert answer.status == 0


def flush(server: ServerProcess) -> None:
    ask(server, Opcode.FLUSH)


def stop_persistence(server: ServerProcess) -> None:
    ask(server, Opcode.STOP_PERSISTENCE)


def compact(server: ServerProcess) -> None:
    """Drop every deletion for good, but a vBucket's newest change."""
    persist(server)
    for vbucket in high_seqnos(server):
        ask(server, Opcode.COMPACT_DB, vbucket, COMPACT_EXTRAS.pack(0, 0, 1, bytes(7)))


def high_seqnos(server: ServerProcess) -> dict[int, int]:
    with Lease(str(server.upr), [], 10) as lease:
        return {number: each.high_seqno for number, each in lease.vbuckets.items()}


def persist(server: ServerProcess) -> None:
    """Wait until everything is on disk."""
    for vbucket, seqno in high_seqnos(server).items():
        ask(server, Opcode.SEQNO_PERSISTENCE, vbucket, SEQNO_PERSISTENCE_EXTRAS.pack(seqno))
