"""The rollback decision: every worked case of the protocol reference, under both rules."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from uprmc.errors import InvalidArguments, RangeExceeded
from uprmc.model import SEQNO_MAX, FailoverEntry, FailoverLog, SnapshotRange
from uprmc.rollback import (
    ConsumerPosition,
    Rule,
    VBucketHoldings,
    check_range,
    check_reach,
    check_versions,
    history_of,
    rollback_point,
    shared_until,
)

A, B, C, D, E = 0xA, 0xB, 0xC, 0xD, 0xE
UUIDS = {"A": A, "B": B, "C": C, "D": D, "E": E, "0": 0}

FLAG_DISK, FLAG_LATEST, FLAG_STRICT, FLAG_IGNORE_PURGED = 0x02, 0x04, 0x20, 0x80


def log_of(text: str) -> FailoverLog:
    """Read "B@100 A@0"."""
    pairs = (entry.split("@") for entry in text.split())
    return tuple(FailoverEntry(UUIDS[uuid], int(seqno)) for uuid, seqno in pairs)


class Request(NamedTuple):
    position: ConsumerPosition
    end_seqno: int = SEQNO_MAX
    flags: int = 0


def answer(
    request: Request, held: VBucketHoldings, rule: Rule = Rule.CURRENT, persisted: int = 0
) -> str:
    """What a producer answers: the order of checks in section 2.4, with the flags applied."""
    position, end, flags = request

    def reach(end: int) -> int:
        if flags & FLAG_DISK:
            return persisted
        return held.high_seqno if flags & FLAG_LATEST else end

    try:
        if rule is Rule.V3_0_0:
            end = reach(end)
        check_range(position, end)
        point = rollback_point(
            position,
            held,
            strict_uuid=bool(flags & FLAG_STRICT),
            ignore_purged=bool(flags & FLAG_IGNORE_PURGED),
            rule=rule,
        )
        if point is not None:
            return f"ROLLBACK {point}"
        end = reach(end)
        check_reach(position.start_seqno, end, held.high_seqno)
    except RangeExceeded:
        return "ERANGE"
    return "OK then END" if position.start_seqno >= end else "OK"


# Number, log, high, purge, uuid, start, snapshot, end, flags, 3.0.0's answer, today's answer.
WORKED_CASES = """
 1 | A@0             |  50 |   0 | 0 |   0 |   0..0   | max | 0    | OK           | OK
 2 | A@0             |  50 |   0 | D |   0 |   0..0   | max | 0    | OK           | OK
 3 | A@0             |  50 |   0 | D |   0 |   0..0   | max | 0x20 | OK           | ROLLBACK 0
 4 | A@0             |  50 |   0 | A |  50 |  50..50  | max | 0    | OK           | OK
 5 | A@0             |  50 |   0 | A |  20 |  20..20  | max | 0    | OK           | OK
 6 | A@0             |  50 |   0 | A |  20 |  10..30  | max | 0    | OK           | OK
 7 | A@0             |  50 |   0 | 0 |  20 |  20..20  | max | 0    | ROLLBACK 0   | ROLLBACK 0
 8 | A@0             |  50 |   0 | D |  20 |  20..20  | max | 0    | ROLLBACK 0   | ROLLBACK 0
 9 | A@0             |  50 |   0 | A |  60 |  60..60  | max | 0    | ROLLBACK 50  | ROLLBACK 50
10 | A@0             |  50 |   0 | A |  60 |  40..70  | max | 0    | ROLLBACK 40  | ROLLBACK 40
11 | A@0             |  50 |   0 | A |  70 |  40..70  | max | 0    | ROLLBACK 40  | ROLLBACK 50
12 | A@0             |  50 |   0 | A |  50 |  50..80  | max | 0    | OK           | OK
13 | A@0             |  50 |   0 | A |  45 |  45..80  | max | 0    | OK           | OK
14 | A@0             |  50 |   0 | A |  45 |  40..80  | max | 0    | ROLLBACK 40  | ROLLBACK 40
15 | B@100 A@0       | 150 |   0 | A |  90 |  90..90  | max | 0    | OK           | OK
16 | B@100 A@0       | 150 |   0 | A | 100 | 100..100 | max | 0    | OK           | OK
17 | B@100 A@0       | 150 |   0 | A | 130 | 130..130 | max | 0    | ROLLBACK 100 | ROLLBACK 100
18 | B@100 A@0       | 150 |   0 | A | 110 |  90..120 | max | 0    | ROLLBACK 90  | ROLLBACK 90
19 | B@100 A@0       | 150 |   0 | A |  95 |  90..100 | max | 0    | OK           | OK
20 | C@250 B@100 A@0 | 400 |   0 | A | 180 | 180..180 | max | 0    | ROLLBACK 100 | ROLLBACK 100
21 | C@250 B@100 A@0 | 400 |   0 | B | 180 | 180..180 | max | 0    | OK           | OK
22 | C@60 A@0        |  80 |   0 | B |  70 |  70..70  | max | 0    | ROLLBACK 0   | ROLLBACK 0
23 | A@0             | 500 | 200 | A | 150 | 150..150 | max | 0    | OK           | ROLLBACK 0
24 | A@0             | 500 | 200 | A | 220 | 180..260 | max | 0    | OK           | OK
25 | A@0             | 500 | 200 | A | 200 | 200..200 | max | 0    | OK           | OK
26 | A@0             | 500 | 200 | A | 150 | 150..150 | max | 0x80 | OK           | OK
27 | A@0             | 500 | 200 | A |   0 |   0..0   | max | 0    | OK           | OK
28 | A@0             |  50 |   0 | A |   9 |   9..9   | 3   | 0    | ERANGE       | ERANGE
29 | A@0             |  50 |   0 | A |   9 |  10..12  | max | 0    | ERANGE       | ERANGE
30 | A@0             |  50 |   0 | A |   9 |   3..8   | max | 0    | ERANGE       | ERANGE
31 | A@0             |  50 |   0 | A |   5 |   5..5   | 0   | 0    | ERANGE       | ERANGE
32 | A@0             |  50 |   0 | A |  50 |  50..50  | max | 0x4  | OK then END  | OK then END
"""


def worked_cases() -> list[tuple[Request, VBucketHoldings, str, str]]:
    cases = []
    for line in WORKED_CASES.strip().splitlines():
        _, log, high, purge, uuid, start, snapshot, end, flags, old, today = map(
            str.strip, line.split("|")
        )
        position = ConsumerPosition(
            int(start), SnapshotRange(*map(int, snapshot.split(".."))), UUIDS[uuid]
        )
        end_seqno = SEQNO_MAX if end == "max" else int(end)
        request = Request(position, end_seqno, int(flags, 16))
        cases.append((request, VBucketHoldings(log_of(log), int(high), int(purge)), old, today))
    return cases


CASES = worked_cases()
NUMBERS = [f"row {number}" for number in range(1, 33)]


@pytest.mark.acceptance("P08", "P18", "P19", "X19")
@pytest.mark.parametrize(("request_", "held", "old", "today"), CASES, ids=NUMBERS)
def test_a_worked_case_has_its_answer(
    request_: Request, held: VBucketHoldings, old: str, today: str
) -> None:
    assert answer(request_, held) == today
    assert answer(request_, held, Rule.V3_0_0) == old


def test_all_worked_cases_are_there() -> None:
    assert len(CASES) == 32


def at(start: int, uuid: int, versions: str = "") -> ConsumerPosition:
    """A consumer that holds a whole snapshot up to `start`."""
    return ConsumerPosition(start, SnapshotRange(start, start), uuid, log_of(versions))


def test_a_start_above_the_high_seqno_is_a_rollback_today_and_was_out_of_range() -> None:
    request = Request(at(60, A), flags=FLAG_LATEST)
    held = VBucketHoldings(log_of("A@0"), 50, 0)
    assert answer(request, held) == "ROLLBACK 50"
    assert answer(request, held, Rule.V3_0_0) == "ERANGE"


def test_a_start_above_what_is_on_disk_is_out_of_range_with_the_disk_flag() -> None:
    request = Request(at(40, A), flags=FLAG_DISK)
    assert answer(request, VBucketHoldings(log_of("A@0"), 50, 0), persisted=30) == "ERANGE"
    assert answer(request, VBucketHoldings(log_of("A@0"), 50, 0), persisted=40) == "OK then END"


@pytest.mark.parametrize(("start", "end", "high"), [(51, SEQNO_MAX, 50), (9, 8, 50)])
def test_a_start_out_of_reach_is_refused(start: int, end: int, high: int) -> None:
    with pytest.raises(RangeExceeded):
        check_reach(start, end, high)


def test_reach_includes_its_ends() -> None:
    check_reach(50, 50, 50)
    check_range(ConsumerPosition(5, SnapshotRange(5, 5), A), 5)


@pytest.mark.acceptance("P12")
@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("versions", ["", "D@0", "D@9 E@3", "B@100 A@0"])
@pytest.mark.parametrize("purge", [0, 40])
def test_since_zero_is_always_accepted(rule: Rule, versions: str, purge: int) -> None:
    known = log_of(versions)
    position = at(0, known[0].uuid if known else 0, versions)
    assert (
        rollback_point(position, VBucketHoldings(log_of("C@20 A@0"), 50, purge), rule=rule) is None
    )


def test_a_strict_uuid_of_none_asks_for_nothing() -> None:
    held = VBucketHoldings(log_of("A@0"), 50, 0)
    assert rollback_point(at(0, 0), held, strict_uuid=True) is None
    assert rollback_point(at(0, A), held, strict_uuid=True) is None
    assert rollback_point(at(0, A), held._replace(purge_seqno=9), strict_uuid=True) is None
    assert rollback_point(at(0, D), held, strict_uuid=True, rule=Rule.V3_0_0) is None


def test_a_strict_uuid_is_also_found_among_known_versions() -> None:
    held = VBucketHoldings(log_of("A@0"), 50, 0)
    assert rollback_point(at(0, D, "D@0 A@0"), held, strict_uuid=True) is None
    assert rollback_point(at(0, D, "D@0 E@0"), held, strict_uuid=True) == 0


# --- several known versions ---------------------------------------------------------------------


@pytest.mark.acceptance("P07", "P09")
def test_after_two_missed_branches_a_consumer_with_its_versions_keeps_what_is_shared() -> None:
    """A consumer followed A, then B from 100, then C from 130, and holds 150.

    B and C were lost with their nodes. A replica that had A up to 120 took over as D, and later
    went on as E.
    """
    held = VBucketHoldings(log_of("E@200 D@120 A@0"), 240, 0)
    assert rollback_point(at(150, C), held) == 0
    assert rollback_point(at(150, C, "C@130 B@100 A@0"), held) == 100


@pytest.mark.acceptance("P09")
def test_the_server_may_be_the_one_that_left_the_shared_branch_first() -> None:
    held = VBucketHoldings(log_of("E@200 D@70 A@0"), 240, 0)
    assert rollback_point(at(150, C, "C@130 B@100 A@0"), held) == 70
    assert rollback_point(at(60, C, "C@130 B@100 A@0"), held) is None


def test_a_half_received_snapshot_beyond_what_is_shared_falls_back_to_its_start() -> None:
    held = VBucketHoldings(log_of("D@120 A@0"), 240, 0)
    position = ConsumerPosition(95, SnapshotRange(90, 110), B, log_of("B@100 A@0"))
    assert rollback_point(position, held) == 90


def test_known_versions_do_not_outweigh_the_purge_point() -> None:
    position = at(90, B, "B@100 A@0")
    assert rollback_point(position, VBucketHoldings(log_of("D@120 A@0"), 240, 91)) == 0
    assert (
        rollback_point(position, VBucketHoldings(log_of("D@120 A@0"), 240, 91), ignore_purged=True)
        is None
    )
    assert rollback_point(position, VBucketHoldings(log_of("D@120 A@0"), 240, 90)) is None


# Client's log and high seqno, server's log and high seqno, what they share (None: nothing).
LOG_PAIRS = [
    ("A@0", 50, "A@0", 50, 50),
    ("A@0", 20, "A@0", 50, 20),
    ("A@0", 60, "A@0", 50, 50),
    ("A@0", 50, "D@0", 50, None),
    ("A@0", 90, "B@100 A@0", 150, 90),
    ("A@0", 100, "B@100 A@0", 150, 100),
    ("A@0", 130, "B@100 A@0", 150, 100),
    ("B@100 A@0", 150, "A@0", 130, 100),
    ("B@100 A@0", 150, "A@0", 80, 80),
    ("B@100 A@0", 150, "B@100 A@0", 120, 120),
    ("A@0", 180, "C@250 B@100 A@0", 400, 100),
    ("B@100 A@0", 180, "C@250 B@100 A@0", 400, 180),
    ("B@100 A@0", 300, "C@250 B@100 A@0", 400, 250),
    ("B@100 A@0", 150, "C@120 A@0", 200, 100),
    ("B@120 A@0", 150, "C@100 A@0", 200, 100),
    ("B@60 A@0", 70, "C@60 A@0", 80, 60),
    ("C@130 B@100 A@0", 150, "E@200 D@120 A@0", 240, 100),
    ("C@130 B@100 A@0", 150, "E@200 D@110 B@100 A@0", 240, 110),
    ("C@100 B@100 A@0", 150, "D@100 B@100 A@0", 240, 100),
    ("E@300 D@250", 350, "C@250 B@100 A@0", 400, None),
]


@pytest.mark.acceptance("D14")
@pytest.mark.parametrize(("ours", "our_high", "theirs", "their_high", "shared"), LOG_PAIRS)
def test_two_logs_are_compared_alike_from_both_sides(
    ours: str, our_high: int, theirs: str, their_high: int, shared: int | None
) -> None:
    client, server = log_of(ours), log_of(theirs)
    assert shared_until(client, our_high, server, their_high) == shared, "client's side"
    assert shared_until(server, their_high, client, our_high) == shared, "server's side"
    position = at(our_high, client[0].uuid, ours)
    point = rollback_point(position, VBucketHoldings(server, their_high, 0))
    assert (our_high if point is None else point) == (shared or 0), "the server's answer"


def test_there_are_twenty_log_pairs() -> None:
    assert len(LOG_PAIRS) == 20


@pytest.mark.acceptance("P07")
@pytest.mark.parametrize(
    "versions",
    [
        pytest.param("C@3 B@2 A@1 D@0", id="more than three"),
        pytest.param("B@100 C@0", id="another uuid in front"),
        pytest.param("C@100 A@50 A@0", id="a uuid twice"),
        pytest.param("C@100 0@0", id="uuid 0"),
        pytest.param("C@100 A@101", id="a seqno that rises"),
    ],
)
def test_a_list_that_is_no_failover_log_is_refused(versions: str) -> None:
    with pytest.raises(InvalidArguments):
        check_versions(at(200, C, versions), limit=3)


@pytest.mark.parametrize("versions", ["", "C@0", "C@100 B@100 A@0"])
def test_a_failover_log_within_the_limit_is_read(versions: str) -> None:
    check_versions(at(200, C, versions), limit=3)


@pytest.mark.parametrize(
    ("log", "seqno", "uuid"),
    [
        ("C@20 B@10 A@0", 21, "C"),
        ("C@20 B@10 A@0", 20, "B"),
        ("C@20 B@10 A@0", 11, "B"),
        ("C@20 B@10 A@0", 10, "A"),
        ("C@20 B@10 A@0", 1, "A"),
        ("C@20 B@10 A@0", 0, "0"),  # the beginning is in every history
        ("C@20 B@10", 10, "B"),  # older than all that is kept: the oldest
        ("C@20 B@10", 1, "B"),
        ("C@20", 20, "C"),
        ("", 7, "0"),  # nothing is known of it
    ],
)
def test_a_seqno_belongs_to_the_history_that_began_below_it(
    log: str, seqno: int, uuid: str
) -> None:
    assert history_of(log_of(log), seqno) == UUIDS[uuid]
