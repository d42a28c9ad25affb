"""``uprmc tail`` with peers that misbehave, are old, or say what a node seldom says."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest

from interop.wire import REQUEST
from tests.cli.fake_node import (
    ALL_SEQNOS,
    BUFFER_ACK,
    CLOSE,
    CONTROL,
    DELETION,
    LOG,
    MUTATION,
    NOOP,
    SNAPSHOT_END,
    STREAM_REQUEST,
    Asked,
    FakeNode,
)
from tests.cli.here import Here, runner
from uprmc.cli import feed, tail
from uprmc.client import node_session
from uprmc.client.node_session import PIPELINE_MAX

NOT_OPENED = "refuses to open a stream connection"

#: How nonsense ends.
ADVICE = (
    ". Nothing of it was applied; what is saved is intact. Look at the node's version and log, "
    "then start again"
)

INVALID, ROLLBACK, UNKNOWN, NOT_MY_VBUCKET = 0x04, 0x23, 0x81, 0x07


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


def streaming(tell: Callable[[FakeNode], object]) -> Callable[[FakeNode, Asked], object]:
    """Return an answer to a stream request: granted, then what `tell` sends."""

    def granted(node: FakeNode, asked: Asked) -> object:
        node.reply(asked, value=LOG)
        return tell(node)

    return granted


def refusing(*names: bytes) -> Callable[[FakeNode, Asked], None]:
    def control(node: FakeNode, asked: Asked) -> None:
        node.reply(asked, INVALID if asked.key in names else 0)

    return control


def test_keep_alives_are_answered_with_their_opaque(here: Here) -> None:
    def probe(node: FakeNode) -> None:
        node.send(REQUEST, NOOP, opaque=0xDEADBEEF)

    def answered(node: FakeNode, asked: Asked) -> None:
        assert (asked.opcode, asked.number, asked.opaque) == (NOOP, 0, 0xDEADBEEF)
        node.end(0)

    with FakeNode(on_53=streaming(probe), on_response=answered) as node:
        ended = here("tail", "--until-now", "--node", node.place)
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    controls = {asked.key: asked.value for asked in node.seen if asked.opcode == CONTROL}
    assert controls[b"enable_noop"] == b"true"
    assert int(controls[b"connection_buffer_size"]) > 0


def test_every_byte_that_counts_is_acknowledged(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marker, mutation, end count; keep-alives and responses do not."""
    monkeypatch.setattr(node_session, "_ACK_PARTS", feed.BUFFER_BYTES)
    sizes: list[int] = []

    def tell(node: FakeNode) -> None:
        node.send(REQUEST, NOOP)
        node.marker(6, 6)
        node.mutation(6, b"12345")

    def acknowledged(node: FakeNode, asked: Asked) -> None:
        sizes.append(struct.unpack(">I", asked.extras)[0])
        if sum(sizes) == 44 + 55 + 1 + 5:
            node.end(0)

    with FakeNode(on_53=streaming(tell), on_5d=acknowledged, on_response=lambda *_: None) as node:
        ended = here("tail", "--until-now", "--node", node.place)
    assert ended.code == 0
    assert sum(sizes) == 105


def test_silence_ends_tail_with_one_line(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "NOOP_INTERVAL_S", 0.02)
    monkeypatch.setattr(node_session, "_SILENCE_SLACK_S", 0.01)
    monkeypatch.setattr(tail, "_LOOK_MS", 5)
    with FakeNode(on_53=lambda *_: None) as node:
        ended = here("tail", "--node", node.place)
    assert ended.code == 1
    assert ended.line() == f"the node at {node.place} is silent for 0.05 s"
    intervals = {asked.value for asked in node.seen if asked.key == b"set_noop_interval"}
    assert intervals == {b"0.02"}


def test_a_node_that_knows_no_interval_may_be_silent(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "NOOP_INTERVAL_S", 0.001)
    monkeypatch.setattr(node_session, "_SILENCE_SLACK_S", 0.0)
    monkeypatch.setattr(tail, "_LOOK_MS", 5)

    def late(node: FakeNode) -> None:
        assert not node.more_to_read()  # waits for it, and meanwhile says nothing
        node.end(0)

    with FakeNode(on_53=streaming(late), on_5e=refusing(b"set_noop_interval")) as node:
        assert here("tail", "--until-now", "--node", node.place).code == 0


def test_a_node_of_2014_that_knows_fewer_options_is_followed(here: Here) -> None:
    """No HELLO, no interval, no expirations, none of our extensions; deletions without times."""

    def tell(node: FakeNode) -> None:
        node.marker(6, 7)
        node.mutation(6)
        node.tell(DELETION, struct.pack(">QQH", 7, 2, 0), key=b"k")
        node.end(0)

    control = refusing(b"set_noop_interval", b"enable_expiry_opcode", b"uprmc_snapshot_end")
    hello = {"on_1f": lambda node, asked: node.reply(asked, UNKNOWN, b"Unknown command")}
    with FakeNode(on_53=streaming(tell), on_5e=control, **hello) as node:
        ended = here("tail", "--until-now", "--snapshots", "--json", "--node", node.place)
    assert ended.code == 0
    assert ended.err == "uprmc: this node does not tell where snapshots end\n"
    begin, one, two = map(json.loads, ended.out.splitlines())
    assert begin["op"] == "snapshot-begin"
    assert (one["op"], one["value"], one["vb_uuid"]) == ("set", "v", 0xABC)
    assert (two["op"], two["deleted_at"]) == ("delete", 0)


def test_each_snapshot_ends_with_the_number_of_its_own_changes(here: Here) -> None:
    """One that was announced again with a later end is one; a last change may be missing."""

    def tell(node: FakeNode) -> None:
        node.marker(6, 7)
        node.mutation(6)
        node.mutation(7)
        node.marker(8, 8)
        node.mutation(8)
        node.marker(9, 10)
        node.mutation(9)
        node.marker(9, 12)
        node.mutation(11)
        node.tell(SNAPSHOT_END, struct.pack(">QI", 12, 2))
        node.marker(13, 13)
        node.mutation(13)
        node.end(0)

    with FakeNode(on_53=streaming(tell)) as node:
        ended = here("tail", "--until-now", "--snapshots", "--json", "--node", node.place)
    found = [json.loads(line) for line in ended.out.splitlines()]
    ends = [(row["end"], row["items"]) for row in found if row["op"] == "snapshot-end"]
    assert ends == [(7, 2), (8, 1), (12, 2), (13, 1)]


def test_extended_metadata_is_no_part_of_the_value(here: Here) -> None:
    def tell(node: FakeNode) -> None:
        node.marker(6, 6)
        node.mutation(6, b"value" + b"meta!", nmeta=5)
        node.end(0)

    with FakeNode(on_53=streaming(tell)) as node:
        ended = here("tail", "--until-now", "--json", "--node", node.place)
    assert json.loads(ended.out)["value"] == "value"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (2, "vBucket 0: the stream ended after seqno 5: the vBucket's state changed"),
        (5, "vBucket 0: the stream ended after seqno 5: the node could not read its disk"),
        (77, "vBucket 0: the stream ended after seqno 5: reason 77"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--until-now"]])
def test_a_stream_that_ends_early_is_a_failure(
    here: Here, reason: int, said: str, options: list[str]
) -> None:
    with FakeNode(on_53=streaming(lambda node: node.end(reason))) as node:
        ended = here("tail", *options, "--node", node.place)
    assert ended.code == 1
    assert ended.line() == f"{said}; no stream is left"


def test_what_came_before_the_end_is_printed(here: Here) -> None:
    def tell(node: FakeNode) -> object:
        node.marker(6, 9)
        node.mutation(6)
        node.end(2)
        return CLOSE

    with FakeNode(on_53=streaming(tell)) as node:
        ended = here("tail", "--json", "--node", node.place)
    assert ended.code == 1
    assert json.loads(ended.out)["seqno"] == 6


def test_until_now_is_incomplete_when_one_of_the_streams_ends_early(here: Here) -> None:
    def two(node: FakeNode, asked: Asked) -> None:
        node.reply(asked, value=struct.pack(">HQHQ", 0, 5, 1, 5))

    def stream(node: FakeNode, asked: Asked) -> None:
        node.reply(asked, value=LOG)
        if asked.number == 1:
            node.end(2)  # of vBucket 0
            node.send(REQUEST, NOOP)

    def heard(node: FakeNode, asked: Asked) -> None:
        node.end(0, 1)

    with FakeNode(on_48=two, on_53=stream, on_response=heard) as node:
        ended = here("tail", "--until-now", "--node", node.place)
    assert ended.code == 1
    assert ended.err.splitlines() == [
        "uprmc: vBucket 0: the stream ended after seqno 5: the vBucket's state changed",
        "uprmc: incomplete: vBucket 0 ended early",
    ]


def test_a_rollback_that_leads_nowhere_is_not_obeyed_for_ever(here: Here) -> None:
    def never(node: FakeNode, asked: Asked) -> None:
        node.reply(asked, ROLLBACK, struct.pack(">Q", 5))

    with FakeNode(on_53=never) as node:
        ended = here("tail", "--from", 5, "--on-rollback", "obey", "--node", node.place)
    assert ended.code == 1
    assert ended.line().endswith("it agrees only up to 5, which makes no sense")
    assert sum(asked.opcode == STREAM_REQUEST for asked in node.seen) == 1


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            {"on_50": lambda node, asked: node.reply(asked, UNKNOWN, b"Unknown command")},
            f"the node at PLACE {NOT_OPENED}: Unknown command; see its log and the consumer's name",
        ),
        (
            {"on_48": lambda node, asked: node.reply(asked, 0x86)},
            "asking for seqnos at PLACE was refused: Temporary failure",
        ),
        (
            {"on_48": lambda node, asked: node.reply(asked, value=b"torn")},
            "the node at PLACE sent a torn list of seqnos",
        ),
        (
            {"on_54": lambda node, asked: node.reply(asked, value=b"torn")},
            "the node at PLACE sent nonsense: vBucket 0: a failover log of 4 bytes" + ADVICE,
        ),
        (
            {"on_53": lambda node, asked: node.reply(asked, NOT_MY_VBUCKET)},
            "vBucket 0: neither active nor a replica on this node",
        ),
        (
            {"on_53": lambda node, asked: node.reply(asked, 0x82)},
            "vBucket 0: the stream was refused: Out of memory",
        ),
        (
            {"on_53": lambda node, asked: node.reply(asked, 0x1234)},
            "vBucket 0: the stream was refused: status 0x1234",
        ),
        (
            {"on_53": lambda node, asked: node.reply(asked, ROLLBACK, b"torn")},
            "the node at PLACE sent nonsense: opcode 0x53 of a strange length",
        ),
        (
            {"on_53": streaming(lambda node: node.mutation(5))},
            "the node at PLACE sent nonsense: vBucket 0: seqno 5 before any snapshot" + ADVICE,
        ),
        (
            {"on_53": streaming(lambda node: node.tell(MUTATION, b"short"))},
            "the node at PLACE sent nonsense: opcode 0x57: unpack requires a buffer of 31 bytes"
            + ADVICE,
        ),
        (
            {"on_53": streaming(lambda node: node.raw(b"HTTP/1.1 400 Bad Request\r\n"))},
            "an HTTP server answers at PLACE, not an upr listener: name the node's upr listener",
        ),
        (
            {"on_53": streaming(lambda node: CLOSE)},
            "the node at PLACE closed the connection",
        ),
    ],
)
def test_whatever_a_peer_says_is_one_line_and_exit_code_1(
    here: Here, answers: dict[str, Callable[[FakeNode, Asked], object]], said: str
) -> None:
    with FakeNode(**answers) as node:
        ended = here("tail", "--node", node.place)
    assert ended.code == 1
    assert ended.line() == said.replace("PLACE", node.place)


def test_stream_requests_are_not_sent_faster_than_they_are_answered(here: Here) -> None:
    """1,024 at once could fill the buffers of both ends while each waits for the other to read."""
    count = 1_024
    everything = b"".join(struct.pack(">HQ", number, 0) for number in range(count))
    waiting: list[Asked] = []

    def stream(node: FakeNode, asked: Asked) -> None:
        waiting.append(asked)
        if len(waiting) == PIPELINE_MAX:
            assert not node.more_to_read()
            for each in waiting:
                node.reply(each, value=LOG)
                node.end(0, each.number)
            waiting.clear()

    with FakeNode(
        on_48=lambda node, asked: node.reply(asked, value=everything), on_53=stream
    ) as node:
        ended = here("tail", "--until-now", "--node", node.place)
    assert ended.code == 0
    asked_for = [asked.number for asked in node.seen if asked.opcode == STREAM_REQUEST]
    assert asked_for == list(range(count))


def test_nothing_is_asked_of_states_that_nobody_named(here: Here) -> None:
    """By default only active vBuckets are followed; named ones may be replicas."""
    for options, state in (([], 1), (["--vbucket", "0"], 0)):
        with FakeNode(on_53=streaming(lambda node: node.end(0))) as node:
            assert here("tail", "--until-now", *options, "--node", node.place).code == 0
        *_, asked = (asked for asked in node.seen if asked.opcode == ALL_SEQNOS)
        assert struct.unpack(">I", asked.extras) == (state,)
        assert not [asked for asked in node.seen if asked.opcode == BUFFER_ACK]
