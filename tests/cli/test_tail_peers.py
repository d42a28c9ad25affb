"""``uprmc tail`` with peers that misbehave, are old, or say what a node seldom says."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest

from tests.cli.fake_node import (
    CLOSE,
    DELETION,
    LOG,
    SNAPSHOT_END,
    FakeNode,
)
from tests.cli.here import Here, runner
from tests.codec.frames import Frame

NOT_OPENED = "refuses to open a stream connection"
AND_NAME = "and the consumer's name"

#: How nonsense ends.
ADVICE = (
    ". Nothing of it was applied; what is saved is intact. Look at the node's version and log, "
    "then start again"
)

INVALID, UNKNOWN, NO_MEMORY = 0x04, 0x81, 0x82


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


def streaming(tell: Callable[[FakeNode], object]) -> Callable[[FakeNode, Frame], object]:
    """Return an answer to a stream request: granted, then what `tell` sends."""

    def granted(node: FakeNode, asked: Frame) -> object:
        node.reply(asked, value=LOG)
        return tell(node)

    return granted


def refusing(*names: bytes) -> Callable[[FakeNode, Frame], None]:
    def control(node: FakeNode, asked: Frame) -> None:
        node.reply(asked, INVALID if asked.key in names else 0)

    return control


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
    assert ended.err == ""
    begin, one, two, end = map(json.loads, ended.out.splitlines())
    assert (begin["op"], end["op"]) == ("snapshot-begin", "snapshot-end")
    assert (one["op"], one["value"], one["vb_uuid"]) == ("set", "v", str(0xABC))
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


def test_what_came_before_the_end_is_printed(here: Here) -> None:
    def tell(node: FakeNode) -> object:
        node.marker(6, 9)
        node.mutation(6)
        node.end(2)
        return CLOSE

    with FakeNode(on_53=streaming(tell)) as node:
        ended = here("tail", "--json", "--once", "--node", node.place)
    assert ended.code == 1
    assert json.loads(ended.out)["seqno"] == 6
    assert ended.err.endswith("the stream of vBucket 0 ended with reason 2\n")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            {"on_50": lambda node, asked: node.reply(asked, UNKNOWN, b"Unknown command")},
            f"the node at PLACE {NOT_OPENED}: Unknown command (0081); see its log {AND_NAME}",
        ),
        (
            {"on_48": lambda node, asked: node.reply(asked, value=b"torn")},
            "the node at PLACE sent a torn list of seqnos",
        ),
        (
            {"on_53": lambda node, asked: node.reply(asked, NO_MEMORY)},
            "vBucket 0: PLACE does not stream it: Out of memory (0082)",
        ),
        (
            {"on_53": streaming(lambda node: node.mutation(5))},
            "the node at PLACE sent nonsense: vBucket 0: seqno 5 before any snapshot" + ADVICE,
        ),
        (
            {"on_53": streaming(lambda node: node.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"))},
            "an HTTP server answers at PLACE, not an upr listener: name the node's upr listener",
        ),
    ],
)
def test_whatever_a_peer_says_is_one_line_and_exit_code_1(
    here: Here, answers: dict[str, Callable[[FakeNode, Frame], object]], said: str
) -> None:
    with FakeNode(**answers) as node:
        ended = here("tail", "--once", "--node", node.place)
    assert ended.code == 1
    assert ended.line() == said.replace("PLACE", node.place)
