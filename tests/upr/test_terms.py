"""Terms on the wire: who is told them, who is refused for one, and what a deposed active does.

Source: contracts of the systems to come, section 1.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from tests.upr.peer import (
    ACTIVE,
    DEAD,
    FAILOVER_LOG,
    INVALID,
    LATER,
    NOT_MY_VBUCKET,
    OK,
    PENDING,
    REPLICA,
    SET_VBUCKET,
    STREAM_END,
    STREAM_REQUEST,
    Peer,
    Rig,
    fill,
    frame,
    hello,
    only,
    opening,
    stream_request,
    upr_rig,
    uuid_of,
)
from uprmc.engine.vbucket import VBucket
from uprmc.kv.cluster_map import ServedMap
from uprmc.model import FailoverEntry

SEQNOS, GET_LOG, SET_MAP, GET_MAP, TELL_TERMS = 0x48, 0x96, 0xB4, 0xB5, 0xDB
JSON, TERMS = 0x0B, 0x5501
MAX_TERM = 2**63 - 1


@pytest.fixture
def rig() -> Rig:
    return upr_rig(engine__vbuckets=4)


def versed(rig: Rig, name: bytes = b"versed") -> Peer:
    """A peer that was granted terms."""
    peer = Peer(rig)
    greeting, opened = peer.say(hello(JSON, TERMS), opening(name))
    assert greeting.value == struct.pack(">HH", JSON, TERMS)
    assert opened.status == OK
    return peer


def vbucket(rig: Rig, number: int = 0) -> VBucket:
    return rig.bucket.vbuckets[number]


def set_state(rig: Rig, number: int, state: int) -> None:
    extras = struct.pack(">I", state)
    assert Peer(rig).ask(frame(SET_VBUCKET, extras=extras, vbucket=number)).status == OK


def term_in(extras: bytes) -> int:
    (term,) = struct.unpack(">Q", extras)
    return int(term)


# --- who is told --------------------------------------------------------------------------------


def test_a_vbucket_that_begins_active_has_term_1_and_any_other_0(rig: Rig) -> None:
    assert vbucket(rig).term == 1
    del rig.bucket.vbuckets[2]
    set_state(rig, 2, REPLICA)
    assert vbucket(rig, 2).term == 0


def test_logs_streams_and_seqnos_come_with_terms_after_hello(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = versed(rig)
    set_state(rig, 1, REPLICA)
    set_state(rig, 1, ACTIVE)
    assert term_in(peer.ask(frame(FAILOVER_LOG, vbucket=1)).extras) == 2
    assert term_in(peer.ask(frame(GET_LOG, vbucket=1)).extras) == 2
    rows = struct.iter_unpack(">HQQ", peer.ask(frame(SEQNOS)).value)
    assert list(rows) == [(0, 3, 1), (1, 0, 2), (2, 0, 1), (3, 0, 1)]
    answer = peer.say(stream_request(1))[0]
    assert (answer.status, term_in(answer.extras)) == (OK, 2)
    assert answer.log[0][0] == uuid_of(rig, 1)


def test_who_did_not_ask_sees_nothing_of_terms(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = Peer.modern(rig)
    assert peer.ask(frame(FAILOVER_LOG)).extras == b""
    assert peer.ask(frame(GET_LOG)).extras == b""
    assert len(peer.ask(frame(SEQNOS)).value) == 4 * 10
    assert peer.say(stream_request(0))[0].extras == b""


def test_a_connection_without_hello_may_ask_by_control(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.controls(uprmc_terms=b"true")
    assert term_in(peer.say(stream_request(0, value={"term": 1}))[0].extras) == 1
    assert peer.ask(frame(FAILOVER_LOG)).extras == b""  # a manager may ask on the same connection


def test_the_cluster_map_tells_terms_and_is_new_when_one_rises() -> None:
    rig = upr_rig(engine__vbuckets=2)
    rig.services.control.cluster_map = ServedMap(lambda: {"upr": "127.0.0.1:12001"})
    peer = Peer(rig)

    def told() -> Any:
        return json.loads(peer.ask(frame(GET_MAP)).value)

    first = told()
    assert first["vBucketServerMap"]["terms"] == [1, 1]
    set_state(rig, 1, REPLICA)
    set_state(rig, 1, ACTIVE)
    second = told()
    assert second["vBucketServerMap"]["terms"] == [1, 2]
    assert second["rev"] > first["rev"]


# --- who is refused -----------------------------------------------------------------------------


def test_a_term_up_to_ours_is_let_in_whatever_history_it_names(rig: Rig) -> None:
    peer = versed(rig)
    assert peer.say(stream_request(0, value={"term": 1}))[0].status == OK
    assert peer.say(stream_request(1, value={"term": 0}))[0].status == OK


def test_a_strangers_higher_term_is_refused_and_changes_nothing(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = versed(rig)
    asked = stream_request(0, 3, uuid=0xDEAD, value={"term": MAX_TERM})
    assert peer.ask(asked).status == NOT_MY_VBUCKET
    assert peer.ask(stream_request(0, value={"term": 2})).status == NOT_MY_VBUCKET
    assert vbucket(rig).state == ACTIVE
    assert rig.bucket.stats.vbuckets_deposed == 0


@pytest.mark.parametrize("by_version", [False, True])
def test_a_higher_term_of_our_own_history_deposes(rig: Rig, by_version: bool) -> None:
    fill(rig, 0, 3)
    peer, reader = versed(rig), Peer.open(rig, b"reader")
    reader.stream(0)
    deposed: list[VBucket] = []
    rig.bucket.on_deposed = deposed.append
    value: dict[str, Any] = {"term": 2}
    if by_version:
        peer.controls(uprmc_versions=b"true")
        value["known_versions"] = [
            {"id": f"{0xBEEF:016x}", "seq": 3},
            {"id": f"{uuid_of(rig, 0):016x}", "seq": 0},
        ]
    uuid = 0xBEEF if by_version else uuid_of(rig, 0)
    answer = peer.ask(stream_request(0, 3, uuid=uuid, value=value))
    assert answer.status == NOT_MY_VBUCKET
    assert vbucket(rig).state == DEAD
    assert (vbucket(rig).term, vbucket(rig).known_term) == (1, 2)
    assert deposed == [vbucket(rig)]
    assert rig.bucket.stats.vbuckets_deposed == 1
    assert only(reader.drain(), STREAM_END)[0].reason == 2
    assert vbucket(rig, 1).state == ACTIVE


def test_a_deposed_vbucket_that_is_made_active_again_is_above_who_deposed_it(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = versed(rig)
    peer.ask(stream_request(0, 3, uuid=uuid_of(rig, 0), value={"term": 7}))
    set_state(rig, 0, ACTIVE)
    assert vbucket(rig).term == 8


def test_a_replica_refuses_goes_on_and_is_promoted_above_what_it_was_shown(rig: Rig) -> None:
    fill(rig, 0, 3)
    set_state(rig, 0, REPLICA)
    peer = versed(rig)
    asked = stream_request(0, 3, uuid=uuid_of(rig, 0), value={"term": 5})
    assert peer.ask(asked).status == NOT_MY_VBUCKET
    assert (vbucket(rig).state, vbucket(rig).term) == (REPLICA, 1)
    set_state(rig, 0, ACTIVE)
    assert vbucket(rig).term == 6


@pytest.mark.parametrize("state", [DEAD, PENDING])
def test_what_is_not_served_learns_all_the_same(rig: Rig, state: int) -> None:
    fill(rig, 0, 3)
    set_state(rig, 0, state)
    peer = versed(rig)
    asked = stream_request(0, 3, uuid=uuid_of(rig, 0), value={"term": 5})
    assert peer.ask(asked).status == NOT_MY_VBUCKET
    set_state(rig, 0, ACTIVE)
    assert vbucket(rig).term == 6


def test_before_the_node_knows_what_it_has_nobody_deposes_it(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = versed(rig)
    rig.bucket.shut_traffic_out()
    asked = stream_request(0, 3, uuid=uuid_of(rig, 0), value={"term": 5})
    assert peer.ask(asked).status == LATER
    assert vbucket(rig).known_term == 1


@pytest.mark.parametrize(
    ("greeted", "value"),
    [
        (False, {"term": 1}),
        (True, {"term": -1}),
        (True, {"term": "2"}),
        (True, {"term": MAX_TERM + 1}),
    ],
)
def test_a_term_out_of_place_or_out_of_range_is_refused(
    rig: Rig, greeted: bool, value: dict[str, Any]
) -> None:
    peer = versed(rig) if greeted else Peer.modern(rig)
    if not greeted:
        peer.controls(uprmc_versions=b"true")
    answer = peer.ask(stream_request(0, uuid=uuid_of(rig, 0), value=value))
    assert (answer.opcode, answer.status) == (STREAM_REQUEST, INVALID)
    assert vbucket(rig).state == ACTIVE


# --- a manager tells ----------------------------------------------------------------------------


def tell(rig: Rig, *rows: tuple[int, int, int]) -> int:
    value = b"".join(struct.pack(">HQQ", *row) for row in rows)
    return Peer(rig).ask(frame(TELL_TERMS, value=value)).status


def test_whoever_shares_the_history_may_tell_of_promotions_without_a_stream(rig: Rig) -> None:
    ours = uuid_of(rig, 1)
    not_news = (2, 1, uuid_of(rig, 2))
    assert tell(rig, (0, 9, 4711), (1, 2, 4711), (1, 2, ours), not_news, (99, 5, 1)) == OK
    assert [vbucket(rig, number).state for number in range(3)] == [ACTIVE, DEAD, ACTIVE]
    assert vbucket(rig, 1).known_term == 2
    set_state(rig, 1, ACTIVE)
    assert vbucket(rig, 1).term == 3


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (struct.pack(">HQQ", 0, 2**63 - 1, 4711) * 1_024, OK),
        (struct.pack(">HQQ", 0, 2**63 - 1, 4711) * 1_025, INVALID),
        (struct.pack(">HQQ", 0, 2**63, 1), INVALID),
        (bytes(17), INVALID),
        (b"", INVALID),
    ],
)
def test_what_is_told_has_a_form_and_a_limit(rig: Rig, value: bytes, status: int) -> None:
    assert Peer(rig).ask(frame(TELL_TERMS, value=value)).status == status
    assert vbucket(rig).state == ACTIVE


def a_map(terms: Any) -> bytes:
    return frame(SET_MAP, value=json.dumps({"vBucketServerMap": {"terms": terms}}).encode())


def test_a_map_that_tells_higher_terms_deposes_and_one_of_equal_ones_does_not(rig: Rig) -> None:
    set_state(rig, 2, REPLICA)
    assert Peer(rig).ask(a_map([1, 4, 9, 0, 77])).status == OK
    states = [each.state for _, each in sorted(rig.bucket.vbuckets.items())]
    assert states == [ACTIVE, DEAD, REPLICA, ACTIVE]
    set_state(rig, 2, ACTIVE)
    assert vbucket(rig, 2).term == 10


@pytest.mark.parametrize("terms", ["1", {"0": 1}, [1.5], [-1], [True], [MAX_TERM + 1], [1] * 65537])
def test_a_map_whose_terms_are_none_is_refused_as_a_whole(rig: Rig, terms: Any) -> None:
    peer = Peer(rig)
    assert peer.ask(a_map(terms)).status == INVALID
    assert vbucket(rig).known_term == 1
    assert b"vBucketServerMap" not in peer.ask(frame(GET_MAP)).value


def test_a_map_with_terms_is_taken_when_the_node_knows_what_it_has(rig: Rig) -> None:
    rig.bucket.warm = False
    assert Peer(rig).ask(a_map([5])).status == 0x86
    assert vbucket(rig).state == ACTIVE


# --- what promotes ------------------------------------------------------------------------------


def test_only_becoming_active_raises_the_term(rig: Rig) -> None:
    terms = []
    for state in (ACTIVE, REPLICA, DEAD, REPLICA, ACTIVE, ACTIVE, DEAD, ACTIVE):
        set_state(rig, 0, state)
        terms.append(vbucket(rig).term)
    assert terms == [1, 1, 1, 1, 2, 2, 2, 3]


def test_an_emptied_vbucket_keeps_its_term(rig: Rig) -> None:
    set_state(rig, 0, REPLICA)
    set_state(rig, 0, ACTIVE)
    fill(rig, 0, 3)
    vbucket(rig).reset(77)
    assert vbucket(rig).failover_log == (FailoverEntry(77, 0),)
    assert vbucket(rig).term == 2
