"""The pages about streams and management tell the truth; see ``tests/documents.py`` for how."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import (
    EXTENSIONS,
    MANAGEMENT,
    PROTOCOL,
    ROOT,
    STATISTICS,
    STREAMS,
    Example,
    HandDrivenNode,
    HexReader,
    Talk,
    examples,
    identified,
    names,
    replay,
    rows,
    section,
)
from uprmc.errors import RangeExceeded
from uprmc.kv.admin import _PARAMETERS
from uprmc.kv.connection_commands import _GRANTED, _KNOWN_FLAGS, NAME_MAX_BYTES
from uprmc.model import SEQNO_MAX, FailoverEntry, SnapshotRange, VBucketState
from uprmc.protocol.control import CONTROLS
from uprmc.protocol.management import WithMetaOption
from uprmc.protocol.opcodes import EndReason, Feature, MarkerFlag, OpenFlag, StreamFlag
from uprmc.protocol.upr_extensions import COOKIE_MAX_BYTES, STREAM_OPTIONS_MAX_BYTES
from uprmc.protocol.upr_many import STREAM_REQUESTS_MAX_BYTES
from uprmc.protocol.watermarks_many import REPORTS_MAX_BYTES
from uprmc.rollback import ConsumerPosition, Rule, VBucketHoldings, check_range, rollback_point
from uprmc.upr.peer import Due, KeepAlive

_PAGES = {
    "protocol": PROTOCOL,
    "management": MANAGEMENT,
    "streams": STREAMS,
    "extensions": EXTENSIONS,
}


# --- examples -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flushed_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandDrivenNode]:
    made = HandDrivenNode(tmp_path_factory.mktemp("flushed") / "data")
    yield made
    made.close()


@pytest.fixture
def node(flushed_node: HandDrivenNode) -> HandDrivenNode:
    flushed_node.empty()
    return flushed_node


def _play(node: HandDrivenNode, example: Example) -> None:
    talk = Talk(node, by_key=False)
    reader = HexReader()
    try:
        replay(talk, example, lambda lines: talk.send(reader.request(lines)), reader.check)
    finally:
        talk.hang_up()


@pytest.mark.parametrize("example", identified("hex", streams=STREAMS, extensions=EXTENSIONS))
def test_every_example_of_a_stream_goes_as_written(node: HandDrivenNode, example: Example) -> None:
    _play(node, example)


@pytest.mark.parametrize("example", identified("hex", streams=STREAMS, extensions=EXTENSIONS))
def test_a_connection_that_is_lost_leaves_no_connection_and_no_permit_behind(
    node: HandDrivenNode, example: Example
) -> None:
    _play(node, example)
    hub = node.node.upr
    assert (hub.producers, hub.consumers, hub.backfills.used) == ({}, {}, 0)


def test_an_example_that_shows_a_wrong_byte_is_noticed(node: HandDrivenNode) -> None:
    example = next(examples(STREAMS))
    last = example.lines[-1]
    spoilt = (*example.lines[:-1], last.replace("0", "1", 1))
    with pytest.raises(AssertionError):
        _play(node, Example(example.kind, example.line, spoilt))


def test_an_example_that_leaves_out_a_frame_is_noticed(node: HandDrivenNode) -> None:
    example = next(e for e in examples(STREAMS) if any("< 80 55" in line for line in e.lines))
    with pytest.raises(AssertionError):
        _play(node, Example(example.kind, example.line, example.lines[:-2]))


# --- tables -------------------------------------------------------------------------------------


def _numbers(text: str, base: int = 16) -> dict[int, str]:
    """Return number -> meaning of a table whose first column holds numbers in backquotes."""
    found = {}
    for row in rows(text):
        for number in re.findall(r"`([0-9a-f]{2})`", row[0]):
            found[int(number, base)] = row[1]
    return found


def test_every_option_of_control_is_told() -> None:
    assert sorted(names(section(STREAMS, "### CONTROL"))) == sorted(
        name.decode() for name in CONTROLS
    )


def test_every_flag_is_told() -> None:
    assert sum(_numbers(section(STREAMS, "### OPEN"))) == _KNOWN_FLAGS
    assert set(map(int, OpenFlag)) == set(_numbers(section(STREAMS, "### OPEN")))
    told = section(STREAMS, "### STREAM_REQUEST")
    assert set(_numbers(told[told.index("| flag |") :])) == set(map(int, StreamFlag))
    assert set(_numbers(section(STREAMS, "### SNAPSHOT_MARKER"))) == set(map(int, MarkerFlag))


def test_every_reason_of_a_streams_end_is_told() -> None:
    text = section(STREAMS, "### STREAM_END")
    told = {int(row[0]) for row in rows(text) if row[0].isdigit() and len(row) == 3} - {4}
    others = {3, 4, 7, 8}
    assert "3, 4, 7 and 8 are other servers'" in text
    assert told - others | others == set(map(int, EndReason))


def test_every_feature_that_is_granted_is_told() -> None:
    told = {row[0].strip("`"): row[1] for row in rows(section(PROTOCOL, "### HELLO"))}
    assert told == {Feature(number).name: f"`{number:04x}`" for number in _GRANTED}


def test_every_parameter_is_told_with_its_setting() -> None:
    told = {
        row[0].strip("`"): row[1].strip("`") for row in rows(section(MANAGEMENT, "### SET_PARAM"))
    }
    assert told == {name: parameter.setting for name, parameter in _PARAMETERS.items()}


def test_every_option_of_versions_with_metadata_is_told() -> None:
    text = section(MANAGEMENT, "### SET_WITH_META, ADD_WITH_META, DEL_WITH_META")
    assert set(_numbers(text)) == set(map(int, WithMetaOption))


def test_fixed_limits_are_told() -> None:
    told = {row[0]: row[1] for row in rows(section(STREAMS, "## Limits"))}
    assert told["name of a connection"] == f"{NAME_MAX_BYTES} bytes, fixed"
    assert told["value of a stream request"] == f"{STREAM_OPTIONS_MAX_BYTES} bytes, fixed"
    assert told["value of STREAM_REQUESTS"] == f"{STREAM_REQUESTS_MAX_BYTES} bytes, fixed"
    assert told["value of HWT_REPORTS"] == f"{REPORTS_MAX_BYTES} bytes, fixed"
    assert told["cookie"] == f"{COOKIE_MAX_BYTES} bytes, fixed"


# --- the rollback decision ----------------------------------------------------------------------


def _uuid(name: str) -> int:
    return 0 if name == "0" else ord(name)


def _decided(row: list[str], rule: Rule) -> str:
    log = tuple(
        FailoverEntry(_uuid(name), int(seqno))
        for name, seqno in (entry.split("@") for entry in row[0].split())
    )
    begin, end = map(int, row[5].split(".."))
    position = ConsumerPosition(int(row[4]), SnapshotRange(begin, end), _uuid(row[3]))
    flags = int(row[6], 16)
    try:
        check_range(position, SEQNO_MAX)
    except RangeExceeded:
        return "`0022`"
    point = rollback_point(
        position,
        VBucketHoldings(log, int(row[1]), int(row[2])),
        strict_uuid=bool(flags & StreamFlag.STRICT_UUID),
        ignore_purged=bool(flags & StreamFlag.IGNORE_PURGED),
        rule=rule,
    )
    return "accepted" if point is None else str(point)


@pytest.mark.parametrize("row", rows(section(STREAMS, "### How the server decides")), ids=" ".join)
def test_the_rollback_table_is_what_the_server_decides(row: list[str]) -> None:
    assert row[7:] == [_decided(row, Rule.CURRENT), _decided(row, Rule.V3_0_0)]


# --- what only words say ------------------------------------------------------------------------


def _stream_request(vbucket: int, start: int, uuid: int, value: bytes = b"") -> bytes:
    numbers = (0, start, SEQNO_MAX, uuid, start, start)
    extras = b"".join(number.to_bytes(8, "big") for number in numbers)
    head = bytes.fromhex("80 53 0000 30 00") + vbucket.to_bytes(2, "big")
    return head + (48 + len(value)).to_bytes(4, "big") + bytes(12) + extras + value


_SET_A = (
    bytes.fromhex("80 11 0001 08 00 0005 0000000a 00000000 0000000000000000") + bytes(8) + b"a1"
)
_DELETE_A = bytes.fromhex("80 14 0001 00 00 0005 00000001 00000000 0000000000000000") + b"a"
_OPEN = bytes.fromhex("80 50 0001 08 00 0000 00000009 00000000 0000000000000000") + (
    bytes.fromhex("00000000 00000001") + b"x"
)
_CONTROL_LEASES = (
    bytes.fromhex("80 5e 000c 00 00 0000 00000010 00000000 0000000000000000") + b"uprmc_leasestrue"
)


def test_a_stream_from_a_lease_is_answered_the_log_that_the_lease_holds(
    node: HandDrivenNode,
) -> None:
    talk = Talk(node, by_key=False)
    talk.send(_SET_A)
    held = node.node.bucket.vbuckets[5].failover_log[0].uuid
    lease, _ = node.node.upr.leases.acquire([5], 60)
    node.node.bucket.flush(0, lambda durable: None)
    talk.send(_OPEN + _CONTROL_LEASES)
    talk.take()
    talk.send(_stream_request(5, 0, 0, b'{"lease":"%016x"}' % lease.id))
    assert talk.take()[24:32] == held.to_bytes(8, "big")
    node.node.upr.leases.release(lease.id)
    talk.hang_up()


@pytest.mark.parametrize(("rule", "answer"), [("current", "0023"), ("3.0.0", "0000")])
def test_by_the_rule_of_2014_a_stream_may_miss_deletions_that_were_dropped(
    tmp_path: Path, rule: str, answer: str
) -> None:
    changes: dict[str, object] = {"upr.rollback_rule": rule, "engine.vbuckets": 16}
    node = HandDrivenNode(tmp_path / "data", **changes)
    talk = Talk(node, by_key=False)
    talk.send(_SET_A + _DELETE_A + _SET_A.replace(b"a1", b"b1"))
    talk.write_to_disk()
    compact = bytes.fromhex("80 b3 0000 18 00 0005 00000018 00000000 0000000000000000")
    talk.send(compact + bytes(16) + b"\x01" + bytes(7))
    talk.write_to_disk()
    assert node.node.bucket.vbuckets[5].purge_seqno == 2
    talk.send(_OPEN)
    talk.take()
    talk.send(_stream_request(5, 1, node.node.bucket.vbuckets[5].failover_log[0].uuid))
    answered = talk.take()
    assert answered[6:8].hex() == answer
    assert (b"\x80\x57" in answered) is (rule == "3.0.0")
    assert b"\x80\x55" not in answered
    talk.hang_up()
    node.close()


def test_after_a_flush_who_has_nothing_is_let_in_and_who_has_something_starts_over(
    node: HandDrivenNode,
) -> None:
    talk = Talk(node, by_key=False)
    talk.send(_SET_A + _OPEN)
    former = node.node.bucket.vbuckets[5].failover_log[0].uuid
    node.node.bucket.flush(0, lambda durable: None)
    talk.take()
    talk.send(_stream_request(5, 1, former))
    refused = talk.take()
    assert (refused[6:8].hex(), refused[24:]) == ("0023", bytes(8))
    talk.send(_stream_request(5, 0, former))
    accepted = talk.take()
    assert accepted[6:8].hex() == "0000"
    assert accepted[24:32] != former.to_bytes(8, "big")
    talk.hang_up()


def test_a_pending_vbucket_is_listed_unless_a_state_is_named_and_is_not_streamed(
    node: HandDrivenNode,
) -> None:
    node.node.bucket.set_state(900, VBucketState.PENDING)
    talk = Talk(node, by_key=False)
    talk.send(bytes.fromhex("80 48 0000 00 00 0000 00000000 00000000 0000000000000000"))
    listed = {number for number, _ in struct.iter_unpack(">HQ", talk.take()[24:])}
    talk.send(bytes.fromhex("80 48 0000 04 00 0000 00000004 00000000 0000000000000000 00000001"))
    active = {number for number, _ in struct.iter_unpack(">HQ", talk.take()[24:])}
    assert listed - active == {900}
    talk.send(_OPEN)
    talk.take()
    talk.send(_stream_request(900, 0, 0))
    assert talk.take()[6:8].hex() == "0007"
    talk.hang_up()


@pytest.mark.parametrize("before", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("interval", [0.1, 1.0, 2.5, 20.0])
def test_keep_alives_and_the_end_come_as_late_as_told_and_not_later(
    interval: float, before: float
) -> None:
    """The last frame goes out `before` seconds before second 1, the peer answers one probe."""
    alive = KeepAlive(interval)
    alive.enable(True)
    alive.tick(0, 0)
    told = []
    for now in range(1, 100):
        due = alive.tick(now, 1000)
        if due is not Due.NOTHING:
            told.append(now)
        if len(told) == 1:
            alive.answered()
        if due is Due.HANG_UP:
            break
    first, second, end = told
    assert first - (1 - before) <= interval + 2
    assert second - first <= interval + 1
    assert end - second <= interval + 1


# --- statistics ---------------------------------------------------------------------------------


def _connected(node: HandDrivenNode) -> list[Talk]:
    """Open a producer and a consumer with a stream each, and a lease."""
    talks = [Talk(node, by_key=False), Talk(node, by_key=False)]
    talks[0].send(_SET_A + _OPEN + _stream_request(5, 0, 0))
    talks[1].send(_OPEN.replace(b"\x01x", b"\x00y"))
    node.node.bucket.set_state(900, VBucketState.REPLICA)
    add = bytes.fromhex("80 51 0000 04 00 0384 00000004 00000000 0000000000000000")
    talks[1].send(add + bytes(4))
    node.node.upr.leases.acquire([5], 60)
    return talks


def _plain(name: str) -> str:
    name = re.sub(r"^(eq_\w+?q):[xy]:", r"\1:NAME:", name)
    name = re.sub(r":stream_\d+_", ":stream_N_", name)
    return re.sub(r"^lease_[0-9a-f]{16}", "lease_ID", name)


@pytest.mark.parametrize(
    ("heading", "words"),
    [
        ("## `stats upr`, `stats dcp`", "upr"),
        ("## `stats leases`", "leases"),
        ("## `stats dcp-vbtakeover`", "dcp-vbtakeover 5 x"),
    ],
)
def test_the_tables_of_statistics_of_streams_have_every_name(
    node: HandDrivenNode, heading: str, words: str
) -> None:
    talks = _connected(node)
    group = node.node.statistics.group(words)
    assert group is not None
    told = names(section(STATISTICS, heading))
    assert len(told) == len(set(told))
    assert set(told) == {_plain(name) for name, _ in group}
    node.node.upr.leases.release_views()
    for talk in talks:
        talk.hang_up()


def test_the_names_of_today_are_those_of_2014_with_another_prefix(node: HandDrivenNode) -> None:
    talks = _connected(node)
    then, today = node.node.statistics.group("upr"), node.node.statistics.group("dcp")
    assert then is not None
    assert today is not None
    assert [re.sub("^(ep_|eq_)upr", r"\1dcp", name) for name, _ in then] == [
        name for name, _ in today
    ]
    node.node.upr.leases.release_views()
    for talk in talks:
        talk.hang_up()


@pytest.mark.parametrize("group", ["upragg", "dcpagg"])
def test_the_table_of_sums_has_every_name(node: HandDrivenNode, group: str) -> None:
    found = node.node.statistics.group(group)
    assert found is not None
    told = names(section(STATISTICS, "## `stats upragg`, `stats dcpagg`"))
    assert {name.replace("PREFIX", "_total") for name in told} == {name for name, _ in found}


# --- links --------------------------------------------------------------------------------------


def _anchors(document: str) -> set[str]:
    """Return the names that headings can be linked by, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", document, flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_every_link_between_pages_leads_somewhere(page: str) -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    for target, anchor in re.findall(r"\]\(([\w.-]*\.md)?(?:#([\w-]+))?\)", texts[page]):
        text = texts[target or page]
        assert not anchor or anchor in _anchors(text), f"{target}#{anchor}"
