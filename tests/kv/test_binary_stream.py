"""What holds for any stream: how it is cut, which way a command takes, how fast the peer reads."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contents import table_of
from tests.kv.binary_peer import Peer, answer, counter, error, frame, get_hit, store, u32
from tests.kv.harness import Rig, drained, talk, talk_in_pieces
from uprmc.kv.binary import BinarySession

GET, SET, ADD, REPLACE, DELETE, INCR, DECR, QUIT, FLUSH, GETQ, NOOP, VERSION = range(12)
GETK, GETKQ, APPEND, PREPEND, STAT, SETQ = 0x0C, 0x0D, 0x0E, 0x0F, 0x10, 0x11
HELLO, TOUCH, GAT, GETL, UNLOCK = 0x1F, 0x1C, 0x1D, 0x94, 0x95

KEYS = [b"a", b"bb", b"ccc"]

#: CAS values of the first writes after noon of the harness's clock, and one that never matches.
FIRST_CAS = 1_705_320_000 * 10**9
cases = st.sampled_from([0, 0, 0, FIRST_CAS + 1, FIRST_CAS + 2, FIRST_CAS + 5, 7])
keys = st.sampled_from(KEYS)
values = st.sampled_from([b"", b"5", b"abc", b"x" * 300, b"{}"])
opaques = st.integers(0, 2**32 - 1)
vbuckets = st.sampled_from([0, 1, 2, 3, 4])


def with_datatype(request: bytes, datatype: int) -> bytes:
    return request[:5] + bytes([datatype]) + request[6:]


gets = st.builds(
    lambda opcode, key, opaque, vbucket, cas: frame(
        opcode, key, opaque=opaque, vbucket=vbucket, cas=cas
    ),
    st.sampled_from([GET, GET, GET, GETQ, GETK, GETKQ, DELETE, GETL, UNLOCK]),
    keys,
    opaques,
    vbuckets,
    cases,
)
stores = st.builds(
    lambda opcode, key, value, flags, expiration, opaque, vbucket, cas, datatype: with_datatype(
        store(
            opcode,
            key,
            value,
            flags=flags,
            expiration=expiration,
            opaque=opaque,
            vbucket=vbucket,
            cas=cas,
        ),
        datatype,
    ),
    st.sampled_from([SET, SET, SET, SETQ, ADD, REPLACE]),
    keys,
    values,
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 0, 1, 100, 2_592_001, 2**32 - 1]),
    opaques,
    vbuckets,
    cases,
    st.sampled_from([0, 0, 1, 3]),
)
#: The length of extended metadata that tells where a version was made, and two such: a valid one
#: and one that names nothing.
NMETA = bytes([0, 20])
ORIGINS = [b"\x01\xe0\x00\x10" + struct.pack(">QQ", *origin) for origin in ((5, 1), (5, 0))]


def value_of(opcode: int, value: bytes, options: bytes, flags: int) -> bytes:
    """Return what follows the key of a version: nothing of a deletion, but its metadata."""
    own = b"" if opcode == 0xA8 else value
    return own + ORIGINS[flags > 7] if options == NMETA else own


#: SET, SETQ, ADD and DEL_WITH_META, mostly such as the first is sent by a restore.
versions = st.builds(
    lambda opcode, key, value, meta, options, opaque, vbucket, cas, datatype: with_datatype(
        frame(
            opcode,
            key,
            value_of(opcode, value, options, meta[0]),
            struct.pack(">IIQQ", *meta) + options,
            opaque=opaque,
            vbucket=vbucket,
            cas=cas,
        ),
        datatype,
    ),
    st.sampled_from([0xA2, 0xA2, 0xA2, 0xA3, 0xA3, 0xA4, 0xA8]),
    st.sampled_from([*KEYS, *KEYS, b"d" * 250, b"d" * 251]),
    st.sampled_from([b"", b"5", b"x" * 300, b"x" * 960, b"x" * 980]),
    st.tuples(
        st.sampled_from([0, 7, 2**32 - 1]),
        st.sampled_from([0, 0, 1, FIRST_CAS // 10**9 + 60, 2**32 - 1]),
        st.sampled_from([0, 1, 2, 2, 3, 9, 2**63 - 1, 2**63]),
        st.sampled_from([0, 1, 5, FIRST_CAS + 2, FIRST_CAS + 10**12, 2 * FIRST_CAS, 2**64 - 1]),
    ),
    st.sampled_from([b"", b"", b"", NMETA, NMETA, NMETA, u32(8), u32(12), bytes(2)]),
    opaques,
    vbuckets,
    st.sampled_from([0, 0, 0, 0, 5, FIRST_CAS + 1]),
    st.sampled_from([0, 0, 0, 1]),
)
others = st.one_of(
    st.builds(
        lambda opcode, key, value, cas: frame(opcode, key, value, cas=cas),
        st.sampled_from([APPEND, PREPEND]),
        keys,
        values,
        cases,
    ),
    st.builds(counter, st.sampled_from([INCR, DECR]), keys, st.integers(0, 9)),
    st.builds(lambda key, s: frame(TOUCH, key, extras=u32(s)), keys, st.integers(0, 99)),
    st.builds(
        lambda features: frame(HELLO, value=struct.pack(f">{len(features)}H", *features)),
        st.lists(st.sampled_from([3, 4, 7, 0x0B]), max_size=4),
    ),
    st.builds(
        lambda opcode, body: frame(opcode, value=body),
        st.sampled_from([0x30, 0xFE]),
        st.binary(max_size=40),
    ),
    st.sampled_from([frame(NOOP), frame(VERSION), frame(STAT), frame(STAT, b"nope")]),
)
#: Frames of which most close the connection.
wrong = st.sampled_from(
    [
        frame(GET, b"a", b"value"),
        frame(GET, b""),
        frame(GET, b"k" * 251),
        store(SET, b"", b"v"),
        frame(SET, b"a", b"v", u32(1)),
        frame(NOOP, b"k"),
        frame(QUIT),
        frame(0x17),
        frame(GET, b"a", key_length=9),
        frame(NOOP, magic=0x81),
        store(SET, b"a", b"v" * 3_000),
        store(SETQ, b"a", b"v" * 1_000),
        frame(APPEND, b"a", b"v" * 3_000),
    ]
)
frames = st.one_of(gets, stores, versions, others)


def small_rig(rule: str = "revision") -> Rig:
    rig = Rig(kv__max_item_bytes=1_024, engine__vbuckets=4, engine__conflict_resolution=rule)
    rig.fetch_at_once()  # for tombstones
    return rig


def state(rig: Rig) -> list[object]:
    """Everything that a stream of commands leaves behind.

    How many tombstones are read depends on what arrives together.
    """
    rig.check()
    return [
        [count for count in rig.bucket.stats.items() if count[0] != "bg_meta_fetched"],
        rig.bucket.account.used,
        rig.bucket.account.timetable.entries,
        *[
            (sorted(table_of(v).items()), v.high_seqno, v.max_cas, sorted(v.locks.items()))
            for v in rig.bucket.vbuckets.values()
        ],
    ]


@settings(max_examples=200)
@given(
    st.lists(st.one_of(frames, frames, frames, wrong), max_size=12),
    st.lists(st.integers(0, 4_000), max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_any_split_of_the_stream_gives_the_same_replies(
    requests: list[bytes], cuts: list[int], by_key: bool, at_once: bool
) -> None:
    data = b"".join(requests)
    whole, parts = small_rig(), small_rig()
    once, often = Peer(whole, by_key=by_key), Peer(parts, by_key=by_key)
    said = once.say(data)
    way = answered if at_once else talk
    assert talk_in_pieces(often.session, data, cuts, way) == said
    assert often.closed is once.closed
    assert state(parts) == state(whole)


def answered(session: BinarySession, data: bytes) -> bytes:
    """Send `data` and take what the session says at once, or else as ever."""
    replies = session.answer(data)
    if replies is None:
        return drained(session)
    assert session.buffered() == (0, 0)
    assert (session.closing, session.input_full, session.successor) == (False, False, None)
    assert session.data_to_send(1_000) == []
    return replies


@settings(max_examples=40)
@given(st.lists(st.one_of(frames, wrong), max_size=6), st.booleans())
def test_one_byte_at_a_time_gives_the_same_replies(requests: list[bytes], by_key: bool) -> None:
    data = b"".join(requests)
    whole, parts = small_rig(), small_rig()
    once, often = Peer(whole, by_key=by_key), Peer(parts, by_key=by_key)
    said = once.say(data)
    assert talk_in_pieces(often.session, data, list(range(len(data)))) == said
    assert state(parts) == state(whole)


def the_long_way(session: BinarySession, request: bytes) -> bytes:
    """Carry out one whole frame without the short ways of the loop."""
    if not session.closing:
        session.bucket.tick()
        while not (used := session._one(request, 0, len(request))):
            assert not session._waiting
        assert used == len(request)
    return drained(session)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.one_of(frames, wrong), st.integers(0, 3)), max_size=15),
    st.booleans(),
    st.sampled_from([None, "full disk", "short memory"]),
)
def test_the_short_ways_answer_the_same_bytes_and_leave_the_same_behind(
    steps: list[tuple[bytes, int]], by_key: bool, trouble: str | None
) -> None:
    short, long = small_rig(), small_rig()
    first, second = Peer(short, by_key=by_key), Peer(long, by_key=by_key)
    for place, (request, seconds) in enumerate(steps):
        for rig in (short, long):
            rig.clock.time += seconds
            if place == 7:
                limit = {"full disk": -1, "short memory": 0}.get(trouble or "")
                if limit is not None:
                    rig.bucket.account.write_limit = limit
                    rig.bucket.account._disk_reason = "full" if limit < 0 else ""
        assert first.say(request) == the_long_way(second.session, request), request
        assert first.closed is second.closed
        assert state(short) == state(long)


@given(st.lists(frames, min_size=5, max_size=15))
def test_seqnos_above_those_of_the_core_are_left_to_the_rules(requests: list[bytes]) -> None:
    """A source may send any seqno up to 2^63 - 1; the next one is ours."""
    short, long = small_rig(), small_rig()
    for rig in (short, long):
        for vbucket in rig.bucket.vbuckets.values():
            vbucket.high_seqno = 2**63 - 1
    first, second = Peer(short, by_key=True), Peer(long, by_key=True)
    for request in requests:
        assert first.say(request) == the_long_way(second.session, request), request
    assert state(short) == state(long)


@settings(max_examples=60)
@given(
    st.lists(st.one_of(frames, frames, wrong), min_size=3, max_size=9),
    st.integers(4, 20),
    st.booleans(),
    st.booleans(),
)
def test_a_long_pipeline_is_answered_as_one_frame_after_the_other(
    requests: list[bytes], rounds: int, by_key: bool, by_timestamp: bool
) -> None:
    """Several portions of what the core looks at together, some ended by what it leaves."""
    rule = "timestamp" if by_timestamp else "revision"
    whole, single = small_rig(rule), small_rig(rule)
    once, often = Peer(whole, by_key=by_key), Peer(single, by_key=by_key)
    pipeline = [request for request in requests for _ in range(rounds)] + requests * rounds
    said = once.say(b"".join(pipeline))
    assert b"".join(map(often.say, pipeline)) == said
    assert once.closed is often.closed
    assert state(whole) == state(single)


@settings(max_examples=60)
@given(st.lists(frames, max_size=20), st.lists(st.integers(0, 4_000), max_size=5))
def test_ejecting_everything_at_any_time_changes_no_reply(
    requests: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(requests)
    resident, ejecting = small_rig(), small_rig()
    expected = Peer(resident).say(data)
    session = Peer(ejecting).session
    said = b""
    places = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    for start, end in pairwise(places):
        ejecting.flush()
        for vbucket in ejecting.bucket.vbuckets.values():
            for item in list(table_of(vbucket).values()):
                if item.value is not None:
                    vbucket.eject(item.key)
        session.receive_data(data[start:end])
        said += drained(session)
    assert said == expected


# --- a peer that does not read ------------------------------------------------------------------

LIMIT = 64 * 1024
VALUE = b"v" * 10_000


def held_bytes(session: BinarySession) -> int:
    """What the session keeps for its peer, counted anew."""
    assert sum(map(len, session._out)) == session._unsent
    assert sum(map(len, session._chunks)) == session._held
    return session._unsent + session._held


@pytest.fixture
def stuck() -> Peer:
    rig = Rig(kv__max_unsent_bytes=LIMIT)
    peer = Peer(rig)
    peer.put(b"v", VALUE)
    peer.put(b"n", b"0")
    return peer


Requests = Callable[[Peer], tuple[list[bytes], list[bytes]]]


def large_hits(peer: Peer) -> tuple[list[bytes], list[bytes]]:
    hit = get_hit(GET, VALUE, peer.ask(frame(GET, b"v"))[0].cas)
    return [frame(GET, b"v")] * 500, [hit] * 500


def misses(peer: Peer) -> tuple[list[bytes], list[bytes]]:
    return [frame(GET, b"nk")] * 20_000, [error(GET, 1)] * 20_000


def refusals(peer: Peer) -> tuple[list[bytes], list[bytes]]:
    return [store(SET, b"n", b"1", cas=1)] * 40_000, [error(SET, 2)] * 40_000


def long_way_refusals(peer: Peer) -> tuple[list[bytes], list[bytes]]:
    return [store(ADD, b"n", b"1")] * 20_000, [error(ADD, 2)] * 20_000


def noops(peer: Peer) -> tuple[list[bytes], list[bytes]]:
    return [frame(NOOP)] * 20_000, [answer(NOOP)] * 20_000


@pytest.mark.parametrize("kind", [large_hits, misses, refusals, long_way_refusals, noops])
@pytest.mark.parametrize("budget", [100, 64 * 1024])
def test_a_peer_that_does_not_read_costs_bounded_memory_and_then_gets_everything(
    stuck: Peer, kind: Requests, budget: int
) -> None:
    requests, replies = kind(stuck)
    session = stuck.session
    data = b"".join(requests)
    chunk = 64 * 1024
    most = LIMIT + len(VALUE) + 100 + chunk
    taken: list[bytes] = []
    position = 0
    while position < len(data):
        if not session.input_full:  # as the adapter does
            session.receive_data(data[position : position + chunk])
            position += chunk
            assert held_bytes(session) <= most
            continue
        pieces = session.data_to_send(budget)
        assert pieces or not session.input_full
        taken += pieces
        assert held_bytes(session) <= most
    taken.append(drained(session, budget))
    assert b"".join(taken) == b"".join(replies)
    assert not session.input_full
    assert held_bytes(session) == 0
    assert stuck.say(frame(NOOP)) == answer(NOOP)


def test_commands_behind_the_limit_are_not_carried_out_yet(stuck: Peer) -> None:
    stuck.session.receive_data(frame(GET, b"v") * 10 + counter(INCR, b"n", 1))
    assert stuck.session.input_full
    assert Peer(stuck.rig).value(b"n") == b"0"
    drained(stuck.session)
    assert Peer(stuck.rig).value(b"n") == b"1"


def test_what_is_to_be_dropped_is_dropped_even_then(stuck: Peer) -> None:
    stuck.session.receive_data(frame(GET, b"v") * 7 + frame(0xFD, body_length=2_000_000))
    left, said = 2_000_000, b""
    while left:
        if stuck.session.input_full:
            said += b"".join(stuck.session.data_to_send(LIMIT))
            continue
        stuck.session.receive_data(b"x" * 50_000)
        left -= 50_000
        held_bytes(stuck.session)
    assert (said + drained(stuck.session)).endswith(error(0xFD, 0x81))
    assert stuck.session._held == 0
    assert stuck.say(frame(NOOP)) == answer(NOOP)


def test_a_quit_behind_unread_replies_closes_after_them(stuck: Peer) -> None:
    stuck.session.receive_data(frame(GET, b"v") * 20 + frame(QUIT))
    assert not stuck.closed
    said = drained(stuck.session)
    assert said.endswith(answer(QUIT))
    assert stuck.closed


def test_waiting_for_the_disk_and_for_the_peer_together(stuck: Peer) -> None:
    keys = [b"key%d" % number for number in range(50)]
    for key in keys:
        stuck.put(key, key * 1_000)
    stuck.rig.eject(*keys)
    stuck.session.receive_data(b"".join(frame(GETK, key) for key in keys) + frame(NOOP))
    said = b""
    while stuck.session.input_full:
        stuck.rig.fetch()
        said += b"".join(stuck.session.data_to_send(3_000))
        assert held_bytes(stuck.session) < LIMIT + 10_000
    said += drained(stuck.session)
    expected = [get_hit(GETK, key * 1_000, stuck.rig.item(key).cas, key=key) for key in keys]
    assert said == b"".join(expected) + answer(NOOP)


def test_a_peer_that_hangs_up_while_stuck_leaves_nothing(stuck: Peer) -> None:
    stuck.session.receive_data(frame(GET, b"v") * 100)
    stuck.session.connection_lost()
    assert held_bytes(stuck.session) == 0
    assert stuck.session.data_to_send(LIMIT) == []
