"""Who reports many vBuckets needs few frames; what the node says of each is understood."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.codec.frames import Frame
from tests.columnar.read_peer import FakeNode
from uprmc.columnar.access import Access
from uprmc.columnar.registration import BulkRegistration, unregister
from uprmc.protocol.header import encode_response
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.errors import NodeNonsense, Refused
from uprmc.remote.registering import Instance

REPORTS_KEY = b"uprmc_hwt_reports"
REFUSED = struct.Struct(">HHQQQQ")

Row = tuple[int, int, int, int, int, int]


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode(dict.fromkeys(range(4), 3)) as found:
        yield found


def access(node: FakeNode) -> Access:
    return Access((node.place,), connect_timeout_s=2.0, read_timeout_s=2.0, retries=0)


def answer(frame: Frame, *refused: Row, follows: bool = False) -> bytes:
    return encode_response(
        frame.opcode,
        extras=struct.pack(">II", 60, follows),
        value=b"".join(REFUSED.pack(*row) for row in refused),
        opaque=frame.opaque,
    )


def registered(node: FakeNode, **more: Any) -> BulkRegistration:
    found = BulkRegistration(access(node), Instance(b"me"), restarts=True, **more)
    found.begin(lambda _: (3, 0xABCD), dict.fromkeys(range(4), node.place))
    return found


def reported(frame: Frame) -> list[tuple[int, int]]:
    rows = struct.iter_unpack(">HHQQ", frame.value)
    return [(vbucket, watermark) for vbucket, _, watermark, _ in rows]


def test_all_vbuckets_of_a_node_are_registered_by_one_frame(node: FakeNode) -> None:
    node.instead[Opcode.HWT_REPORTS] = lambda frame: (
        answer(frame, follows=True) + answer(frame)  # the second once the rows are on disk
    )
    registered(node)
    (frame,) = node.requests(Opcode.HWT_REPORTS)
    assert reported(frame) == [(number, 3) for number in range(4)]
    assert not node.count(Opcode.HWT_REPORT)


@pytest.mark.acceptance("X19")
def test_only_a_vbucket_whose_deletions_are_gone_is_registered_again_from_zero(
    node: FakeNode,
) -> None:
    gone = (2, Status.ROLLBACK, 0, 980, 3, 1_400_000_000)
    branch = (3, Status.ROLLBACK, 1, 0, 0, 0)
    node.instead[Opcode.HWT_REPORTS] = lambda frame: answer(frame, gone, branch)
    found = registered(node)
    (again,) = node.requests(Opcode.HWT_REPORT)
    assert (again.vbucket, again.extras[:8]) == (2, bytes(8))
    assert found.told(3) == ""


def test_a_vbucket_that_is_not_there_is_registered_where_it_is_found_next(node: FakeNode) -> None:
    moved = (1, Status.NOT_MY_VBUCKET, 0, 0, 0, 0)
    node.instead[Opcode.HWT_REPORTS] = lambda frame: answer(frame, moved)
    found = registered(node)
    found.begin(lambda _: (3, 0xABCD), dict.fromkeys(range(4), node.place))
    (again,) = node.requests(Opcode.HWT_REPORT)
    assert again.vbucket == 1


def test_a_node_that_takes_one_report_at_a_time_gets_one_for_each_vbucket(node: FakeNode) -> None:
    node.instead[Opcode.UPR_CONTROL] = _refuses_reports
    registered(node)
    assert [each.vbucket for each in node.requests(Opcode.HWT_REPORT)] == [0, 1, 2, 3]
    assert not node.count(Opcode.HWT_REPORTS)


def _refuses_reports(frame: Frame) -> bytes:
    refuses = frame.key == REPORTS_KEY
    status = Status.INVALID_ARGUMENTS if refuses else Status.SUCCESS
    return encode_response(frame.opcode, status, opaque=frame.opaque)


def test_rows_are_removed_by_one_frame_and_those_that_were_there_are_named(node: FakeNode) -> None:
    missing = (2, Status.KEY_NOT_FOUND, 0, 0, 0, 0)
    node.instead[Opcode.HWT_REPORTS] = lambda frame: (
        answer(frame, follows=True) + answer(frame, missing)
    )
    assert unregister(access(node), b"me") == [0, 1, 3]
    assert node.count(Opcode.HWT_REPORTS) == 1


def test_a_row_that_may_not_be_removed_is_an_error(node: FakeNode) -> None:
    another = (2, Status.KEY_EXISTS, 0, 0, 0, 0)
    node.instead[Opcode.HWT_REPORTS] = lambda frame: answer(frame, another)
    with pytest.raises(Refused, match=r"me at .*, vBucket 2: .* stop it first"):
        unregister(access(node), b"me")


def test_a_torn_answer_is_no_answer(node: FakeNode) -> None:
    node.instead[Opcode.HWT_REPORTS] = lambda frame: encode_response(
        frame.opcode, extras=b"x", opaque=frame.opaque
    )
    with pytest.raises(NodeNonsense, match="torn"):
        unregister(access(node), b"me")
