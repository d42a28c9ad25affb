"""What `KvClient` makes of nodes that move vBuckets, refuse for now, vanish or talk nonsense."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable

import pytest

from interop.wire import GET, HEADER, SET, vbucket_of
from tests.client.fake_kv_node import (
    ALL_SEQNOS,
    BUSY,
    HANG_UP,
    NOT_MY_VBUCKET,
    TEMPORARY_FAILURE,
    FakeKvNode,
)
from tests.codec.frames import Frame, reply
from tests.codec.node import TIMEOUT_S
from uprmc.client.connection import NodeError
from uprmc.client.kv import WINDOW, KvClient, OutcomeUnknown, SomeFailed
from uprmc.errors import NotMyVBucket, OutOfMemory, TemporaryFailure, UnknownCommand
from uprmc.remote import directory
from uprmc.remote.blocking import RequestLine
from uprmc.remote.requests import NodeReply

DOCUMENTS = {b"key-%d" % number: b"value-%d" % number for number in range(2 * WINDOW + 10)}


def keys_of(vbucket: int, count: int) -> list[bytes]:
    return [key for key in DOCUMENTS if vbucket_of(key, 4) == vbucket][:count]


# --- trying again -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [TEMPORARY_FAILURE, BUSY])
def test_temporary_failures_are_tried_again(status: int) -> None:
    left = dict.fromkeys(list(DOCUMENTS)[::3], 2)

    def script(node: FakeKvNode, asked: Frame) -> object:
        if left.get(asked.key):
            left[asked.key] -= 1
            return reply(asked, status)
        return None

    with FakeKvNode(script=script) as node, KvClient(node.place) as kv:
        assert kv.set_many(DOCUMENTS).keys() == DOCUMENTS.keys()
        assert node.documents == DOCUMENTS
        assert node.asked.count(SET) == len(DOCUMENTS) + 2 * len(left), "nothing else is repeated"
        assert node.connections == 1


def test_a_failure_that_is_not_temporary_ends_when_the_time_is_up() -> None:
    first = next(iter(DOCUMENTS))

    def script(node: FakeKvNode, asked: Frame) -> object:
        return reply(asked, TEMPORARY_FAILURE) if asked.key == first else None

    with FakeKvNode(script=script) as node, KvClient(node.place, retry_s=0.1) as kv:
        with pytest.raises(TemporaryFailure, match="Temporary failure"):
            kv.set(first, b"v")
        with pytest.raises(SomeFailed) as told:
            kv.set_many(DOCUMENTS)
        assert list(told.value.failed) == [first]
        assert isinstance(told.value.failed[first], TemporaryFailure)
        assert told.value.done.keys() == DOCUMENTS.keys() - {first}
        assert node.asked.count(SET) < len(DOCUMENTS) + 30, "it waits between"


def test_time_runs_from_the_last_progress() -> None:
    """Each round settles one key more, and all rounds together take longer than the limit."""
    refused = list(DOCUMENTS)[:40]

    def script(node: FakeKvNode, asked: Frame) -> object:
        if asked.key not in refused:
            return None
        if asked.key == refused[-1]:
            refused.pop()
        return reply(asked, TEMPORARY_FAILURE)

    with FakeKvNode(script=script) as node, KvClient(node.place, retry_s=0.15) as kv:
        assert kv.get_many(list(refused)) == {}


@pytest.mark.acceptance("D26", "D33")
def test_a_vbucket_that_moved_is_asked_for_elsewhere() -> None:
    with FakeKvNode() as old, FakeKvNode([]) as new, KvClient([old.place, new.place]) as kv:
        kv.set_many(DOCUMENTS)
        old.active -= {2, 3}
        new.active |= {2, 3}
        kv.set_many(DOCUMENTS)
        moved = {key for key in DOCUMENTS if vbucket_of(key, 4) >= 2}
        assert new.documents.keys() == moved
        assert kv.get_many(DOCUMENTS).keys() == DOCUMENTS.keys()


def test_a_refusal_with_a_map_that_knows_terms_leads_to_the_next_node_at_once() -> None:
    """Several keys of each vBucket are refused in one round, and nobody is asked again."""
    keys = [*keys_of(0, 3), *keys_of(1, 3)]
    with FakeKvNode(term=1) as old, FakeKvNode(term=2) as new:
        new.active = set()
        chains: dict[str, object] = {
            "serverList": [old.place, new.place],
            "vBucketMap": [[1], [1], [0], [0]],
            "terms": [2, 2, 1, 1],
        }

        def script(node: FakeKvNode, asked: Frame) -> object:
            if asked.vbucket in node.active:
                return None
            value = json.dumps({"vBucketServerMap": chains}).encode()
            return reply(asked, NOT_MY_VBUCKET, value=value)

        old.script = script
        with KvClient([old.place, new.place]) as kv:
            surveys = len(old.requests(ALL_SEQNOS))
            old.active -= {0, 1}
            new.active |= {0, 1}
            assert kv.set_many(dict.fromkeys(keys, b"v")).keys() == set(keys)
            assert len(old.requests(ALL_SEQNOS)) == surveys
        assert new.documents.keys() == set(keys)


def test_a_vbucket_that_is_nowhere_for_a_moment_is_waited_for() -> None:
    rounds = []

    def script(node: FakeKvNode, asked: Frame) -> object:
        rounds.append(asked.key)
        if len(rounds) == 3:
            node.active.add(vbucket_of(b"k", 4))
            return None
        return reply(asked, NOT_MY_VBUCKET)

    with FakeKvNode(script=script) as node, KvClient(node.place) as kv:
        assert kv.set(b"k", b"v").cas == 7
        assert rounds == [b"k"] * 3


def test_other_nodes_are_learnt_from_the_map() -> None:
    with FakeKvNode([2, 3]) as second:
        port = second.place.rpartition(":")[2]
        with FakeKvNode([0, 1], others=[f"$HOST:{port}"]) as first, KvClient(first.place) as kv:
            kv.set_many(DOCUMENTS)
            assert first.documents | second.documents == DOCUMENTS
            assert second.documents.keys() == {k for k in DOCUMENTS if vbucket_of(k, 4) >= 2}


def test_a_map_with_endless_nodes_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "NODES_MAX", 5)
    others = [f"127.0.0.1:{number}" for number in range(1, 1000)]
    with FakeKvNode(others=others) as node, KvClient(node.place) as kv:
        assert len(kv._map.directory.places) == 5
        assert kv.get(b"k") is None


@pytest.mark.acceptance("D33")
def test_a_kept_connection_that_fails_is_no_silent_node() -> None:
    """The right node has restarted since the client connected: its old socket is dead. The other
    one was deposed and has come back, and says that it is active.
    """
    with FakeKvNode([], term=1) as deposed, FakeKvNode(term=2) as right:
        with KvClient([deposed.place, right.place], retry_s=5) as kv:
            kv.set(b"k", b"v")
            deposed.active = {0, 1, 2, 3}
            for number in range(8):
                right.hang_up()
                with contextlib.suppress(OutcomeUnknown):
                    kv.set(b"key-%d" % number, b"v")
                kv._map.refresh()
            assert right.connections > 8
        assert not deposed.documents


def test_a_lower_term_is_not_written_to_when_the_right_node_is_down() -> None:
    with FakeKvNode(term=1) as deposed, FakeKvNode(term=2) as right:
        with KvClient([deposed.place, right.place], retry_s=0.1) as kv:
            kv.set(b"k", b"v")
            right.stop()
            with pytest.raises((NotMyVBucket, OutcomeUnknown)):
                kv.set(b"k", b"v")
            with pytest.raises(NotMyVBucket, match="term 1, and there is a term 2") as told:
                kv.set(b"k", b"v")
            assert f"no node answers at {right.place}" in str(told.value)
        assert not deposed.documents


def test_a_node_that_tells_no_map_needs_to_be_helped() -> None:
    with FakeKvNode(vbuckets=None) as node:
        with pytest.raises(NodeError, match="say so with `vbuckets`"):
            KvClient(node.place)
        with KvClient(node.place, vbuckets=4) as kv:
            kv.set_many(DOCUMENTS)
        assert node.documents == DOCUMENTS


def test_one_node_of_several_may_be_away() -> None:
    with FakeKvNode() as node, KvClient(["127.0.0.1:1", node.place], retry_s=0.05) as kv:
        kv.set_many(DOCUMENTS)
        node.active = {0}
        with pytest.raises(NodeError, match=r"is active at none of .*; no node answers at"):
            kv.get(keys_of(3, 1)[0])


# --- a node that goes away ----------------------------------------------------------------------


def hangs_up_after(count: int) -> Callable[[FakeKvNode, Frame], object]:
    def script(node: FakeKvNode, asked: Frame) -> object:
        return HANG_UP if len(node.asked) == count + 1 else None

    return script


def test_changes_that_were_sent_and_not_answered_are_told() -> None:
    with FakeKvNode(script=hangs_up_after(100)) as node, KvClient(node.place) as kv:
        with pytest.raises(SomeFailed) as told:
            kv.set_many(DOCUMENTS)
        failed = told.value
        keys = list(DOCUMENTS)
        assert failed.unknown == list(failed.failed) == keys[100 : 100 + len(failed.failed)]
        assert 1 <= len(failed.unknown) <= WINDOW
        assert failed.done.keys() == DOCUMENTS.keys() - set(failed.unknown)
        assert f"the node at {node.place}" in str(failed)
        assert "whether the change was made is not known: read the key" in str(failed)
        assert node.documents.keys() == failed.done.keys(), "the rest went by another connection"
        assert node.connections == 2


def test_a_single_change_that_was_not_answered_is_told_and_not_repeated() -> None:
    with FakeKvNode(script=hangs_up_after(0)) as node, KvClient(node.place) as kv:
        with pytest.raises(OutcomeUnknown, match="whether the change was made is not known"):
            kv.delete(b"k")
        assert len(node.asked) == 1
        assert kv.delete(b"k") is None, "the next one dials again"


def test_reading_is_repeated() -> None:
    with FakeKvNode(script=hangs_up_after(100)) as node, KvClient(node.place) as kv:
        node.documents |= DOCUMENTS
        found = kv.get_many(DOCUMENTS)
        assert {key: document.value for key, document in found.items()} == DOCUMENTS
        assert node.connections == 2


def test_a_request_that_did_not_leave_whole_is_repeated_on_another_connection() -> None:
    """The node reads one byte of it and hangs up: it cannot have been carried out."""
    with FakeKvNode() as node, KvClient(node.place) as kv:
        documents = {b"small": b"v", b"large": b"v" * (64 << 20)}
        hung_up = []

        def script(node: FakeKvNode, asked: Frame) -> object:
            if not hung_up:
                hung_up.append(asked.key)
                node.lines[0].shutdown(socket.SHUT_RDWR)
            return None

        node.script = script
        try:
            kv.set_many(documents)
        except SomeFailed as told:
            assert told.unknown == [b"small"]  # noqa: PT017 - it may have been answered in time
        assert node.documents[b"large"] == documents[b"large"]


def test_a_node_that_falls_silent_is_given_up() -> None:
    with (
        FakeKvNode([0, 1], script=lambda node, asked: b"") as silent,
        FakeKvNode([2, 3]) as lively,
        KvClient([silent.place, lively.place], timeout_s=0.2, retry_s=0.1) as kv,
    ):
        with pytest.raises(SomeFailed) as told:
            kv.set_many(DOCUMENTS)
        assert {vbucket_of(key, 4) for key in told.value.unknown} == {0, 1}
        assert lively.documents.keys() == told.value.done.keys()
        assert f"the node at {silent.place} says nothing for 0.2 s" in str(told.value)
        with pytest.raises(NodeError, match="says nothing for"):
            kv.get(keys_of(0, 1)[0])


def test_a_node_that_is_gone_for_good_is_told_with_its_reason() -> None:
    with FakeKvNode() as node, KvClient(node.place, retry_s=0.1) as kv:
        kv.set(b"k", b"v")
        node.stop()
        with pytest.raises(
            NodeError, match=f"is active at none of .*; no node answers at {node.place}"
        ):
            kv.get(b"k")


def test_an_interrupted_wait_leaves_no_answers_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Control-C while answers are on their way: they would come with the next one's."""
    held: list[bytes] = []

    def script(node: FakeKvNode, asked: Frame) -> object:
        if node.connections > 1 or len(node.asked) == 1:
            return None
        held.append(node.usual(asked))
        return b"".join(held) if asked.key == b"next" else b""

    read = RequestLine.read

    def interrupted(line: RequestLine[NodeReply]) -> None:
        read(line)
        raise KeyboardInterrupt

    with FakeKvNode(script=script) as node, KvClient(node.place) as kv:
        monkeypatch.setattr(RequestLine, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kv.get_many(DOCUMENTS)
        monkeypatch.undo()
        assert kv.set(b"next", b"v").cas == 7


def test_what_is_answered_after_sending_failed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    pieces = []
    write = RequestLine.write

    def fails_once(line: RequestLine[NodeReply]) -> None:
        pieces.append(line)
        if len(pieces) != 2:
            write(line)
            return
        failed.set()
        line.window.next_piece()
        line._deaf = NodeError("the node is gone: Broken pipe")

    def script(node: FakeKvNode, asked: Frame) -> object:
        assert failed.wait(TIMEOUT_S)
        return None

    with FakeKvNode(script=script) as node, KvClient(node.place, timeout_s=0.2) as kv:
        monkeypatch.setattr("uprmc.client.kv.PIECE_BYTES", 1)
        monkeypatch.setattr(RequestLine, "write", fails_once)
        assert kv.set_many(DOCUMENTS).keys() == DOCUMENTS.keys()
        assert node.connections == 2


# --- answers that make no sense -----------------------------------------------------------------


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda asked: reply(asked, opaque=asked.opaque + 1),
        lambda asked: reply(asked, magic=0x80),
        lambda asked: HEADER.pack(0x81, GET, 0, 0, 0, 0, 0xFFFFFFFF, asked.opaque, 0),
        lambda asked: HEADER.pack(0x81, GET, 9, 9, 0, 0, 4, asked.opaque, 0) + b"abcd",
        lambda asked: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_frames_that_make_no_sense_end_the_connection_by_name(
    nonsense: Callable[[Frame], bytes],
) -> None:
    def script(node: FakeKvNode, asked: Frame) -> object:
        return nonsense(asked) if asked.key == b"odd" else None

    with FakeKvNode(script=script) as node, KvClient(node.place, retry_s=0.02) as kv:
        with pytest.raises((NodeError, OutcomeUnknown)) as told:
            kv.set(b"odd", b"v")
        assert f"the node at {node.place} sent an unexpected frame with magic" in str(told.value)
        assert kv.set(b"even", b"v").cas == 7


def test_an_answer_too_many_answers_nothing_else() -> None:
    """It comes with the answer to what was asked next."""
    first: list[bytes] = []

    def script(node: FakeKvNode, asked: Frame) -> object:
        answer = node.usual(asked)
        first.append(answer)
        return first[0] + answer if len(first) == 2 else answer

    with FakeKvNode(script=script) as node, KvClient(node.place) as kv:
        assert kv.delete(b"k") is None
        with pytest.raises(OutcomeUnknown, match=f"{node.place} sent an unexpected frame"):
            kv.set(b"k", b"v")
        assert kv.get(b"k") is not None


@pytest.mark.parametrize("extras", [b"", b"123", b"12345"])
def test_an_answer_without_its_parts_is_told(extras: bytes) -> None:
    def script(node: FakeKvNode, asked: Frame) -> object:
        return reply(asked, extras=extras)

    with FakeKvNode(script=script) as node, KvClient(node.place) as kv:
        for ask in (kv.get, kv.get_meta):
            with pytest.raises(NodeError, match=r"answer to opcode 0x.. makes no sense"):
                ask(b"k")
        with pytest.raises(SomeFailed, match="makes no sense"):
            kv.observe([b"k"])


def test_a_refusal_has_the_nodes_own_words_and_a_name() -> None:
    statuses = {b"memory": 0x82, b"unknown": 0x81, b"strange": 0x4242}

    def script(node: FakeKvNode, asked: Frame) -> object:
        return reply(asked, statuses[asked.key], value=b"so it is")

    with FakeKvNode(script=script) as node, KvClient(node.place) as kv:
        with pytest.raises(OutOfMemory, match="so it is"):
            kv.set(b"memory", b"v")
        with pytest.raises(UnknownCommand, match="so it is"):
            kv.get_meta(b"unknown")
        with pytest.raises(NodeError, match=r"the node refuses: so it is \(4242\)"):
            kv.get(b"strange")


def test_answers_may_come_in_any_pieces() -> None:
    """One byte at a time, and then many answers at once."""

    def script(node: FakeKvNode, asked: Frame) -> object:
        data = node.usual(asked)
        for byte in data[:-1]:
            node.lines[-1].sendall(struct.pack("B", byte))
        return data[-1:]

    documents = dict(list(DOCUMENTS.items())[:30])
    with FakeKvNode(script=script) as node, KvClient(node.place) as kv:
        kv.set_many(documents)
        found = kv.get_many(documents)
        assert {key: document.value for key, document in found.items()} == documents


def test_no_more_than_a_window_is_under_way() -> None:
    """The node answers nothing until nothing more comes."""
    held: list[bytes] = []

    def script(node: FakeKvNode, asked: Frame) -> object:
        held.append(node.usual(asked))
        if len(held) < WINDOW:
            return b""
        peer = node.lines[-1]
        peer.settimeout(0.1)
        with pytest.raises(TimeoutError):
            peer.recv(1, socket.MSG_PEEK)
        peer.settimeout(20)
        answers = b"".join(held)
        held.clear()
        return answers

    documents = {b"key-%d" % number: b"v" for number in range(2 * WINDOW)}
    with FakeKvNode(script=script) as node, KvClient(node.place) as kv:
        assert len(kv.set_many(documents)) == len(documents)
