"""TAP clients and masters by their habits, played by scripts: what each asks for, what it answers.

Habits are those that were seen of real peers: gomemcached never asks for flags in order and
believes OPAQUE 1 and 8; tap.py never acknowledges and falls over a NOOP; spymemcached puts a
random key into every acknowledgement; pump_tap's sink pushes with sections of 8 bytes.

Proves: each of them is served as it was by the servers of its time; a peer that never
acknowledges is neither sent more than it was promised nor holds anything up; nacks are sent
again in their newest state; a master's pushes keep CAS, revision, flags and expiry; bad pushes
and bad requests hurt nobody else.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from interop import tap_wire as t
from interop import upr_wire as u
from interop import wire as w
from interop.conftest import Start
from interop.server_process import ServerProcess
from interop.tap_copy import Document, TapCopy, TapReader, swapped
from interop.tap_nodes import apart, documents_of
from interop.tap_wire import TapFrame, TapWire
from interop.upr_wire import UprWire
from interop.wire import ClosedError, frame

pytestmark = pytest.mark.acceptance("D56")

VBUCKETS = 16
ALL = range(VBUCKETS)
VB = 3
LIVE = t.BACKFILL | t.SUPPORT_ACK
OPTIONS = (
    *("--vbuckets", str(VBUCKETS)),
    *("--set", "tap.ack_interval=10", "--set", "tap.ack_window=2"),
    *("--set", "tap.noop_interval_s=1", "--set", "tap.backoff_s=0.2"),
    *("--set", "tap.ack_grace_s=3"),
)
WINDOW = 10 * 2

Read = Callable[..., TapReader]


@pytest.fixture(scope="module")
def module_server(
    start: Start, tmp_path_factory: pytest.TempPathFactory, peer: str
) -> Iterator[ServerProcess]:
    if peer != "uprmc":
        pytest.skip("memcached does not speak TAP")
    with start(tmp_path_factory.mktemp("data"), *OPTIONS) as process:
        yield process
        process.stop()


@pytest.fixture
def kv(server: ServerProcess) -> Iterator[UprWire]:
    """For documents and vBuckets; all of them are active and empty."""
    assert server.upr is not None
    with UprWire(server.upr) as connection:
        for number in ALL:
            connection.set_state(number, u.ACTIVE)
        yield connection


@pytest.fixture
def read(server: ServerProcess, kv: UprWire) -> Iterator[Read]:
    """``read(name, flags)``: a client that reads a stream of the server."""
    assert server.upr is not None
    address = server.upr
    readers: list[TapReader] = []

    def run(
        name: bytes = b"",
        flags: int = 0,
        *,
        ack: Callable[[TapFrame], bytes] | None = t.answer,
        copy: TapCopy | None = None,
        **options: object,
    ) -> TapReader:
        request = t.connect(name, flags, **options)  # type: ignore[arg-type]
        readers.append(TapReader(address, request, ack=ack, copy=copy))
        return readers[-1]

    yield run
    for reader in readers:
        reader.close()


@pytest.fixture
def master(server: ServerProcess, kv: UprWire) -> Iterator[TapWire]:
    """A connection that pushes; vBucket 3 is a replica and empty."""
    assert server.upr is not None
    kv.remake(VB, u.REPLICA)
    with TapWire(server.upr) as connection:
        yield connection


def fill(kv: UprWire, vbuckets: range = ALL, each: int = 10) -> None:
    for number in vbuckets:
        stores = [
            w.store(w.SETQ, b"key-%d" % n, b"value-%d" % n, flags=0xDEADBEEF - n, vbucket=number)
            for n in range(each)
        ]
        assert kv.replies_until_noop(*stores) == []


def same(server: ServerProcess, reader: TapReader, vbuckets: range = ALL) -> list[str]:
    assert server.upr is not None
    return apart(documents_of(server.upr, vbuckets), reader.copy.of(vbuckets))


# --- gomemcached: never asks for flags in order -------------------------------------------------


def test_a_client_that_never_swaps_sees_the_bytes_of_its_time(kv: UprWire, read: Read) -> None:
    kv.command(w.store(w.SET, b"key", b"v", flags=0xDEADBEEF, vbucket=VB))
    reader = read(b"go", LIVE, copy=TapCopy(raw_flags=True))
    reader.until(lambda: (VB, b"key") in reader.copy.documents)
    assert reader.copy.documents[VB, b"key"].flags == swapped(0xDEADBEEF)


@pytest.mark.parametrize("flags", [0x54, 0x90, 0x100, 0x110, 0x150])
def test_optional_data_may_be_left_out(
    server: ServerProcess, kv: UprWire, read: Read, flags: int
) -> None:
    """As gomemcached does for CHECKPOINT and REGISTERED_CLIENT."""
    fill(kv)
    reader = read(b"go-%x" % flags, flags, vbuckets=list(ALL))
    reader.until(lambda: len(reader.copy.documents) == VBUCKETS * 10)
    kv.put(VB, b"live")
    reader.until(lambda: (VB, b"live") in reader.copy.documents)
    assert same(server, reader) == []
    kv.command(frame(t.DEREGISTER, b"go-%x" % flags))


def test_a_backfill_begins_and_ends_with_an_opaque(kv: UprWire, read: Read) -> None:
    fill(kv, range(3, 5))
    reader = read(b"feed", LIVE | t.LIST, vbuckets=[3, 4])
    order: list[tuple[int, int]] = []
    while len(order) < 4:
        found = reader.step()
        if found.opcode == t.OPAQUE and found.code in (t.INITIAL, t.CLOSE_BACKFILL):
            order.append((found.code, found.number))
        elif found.opcode == t.MUTATION:
            assert (t.INITIAL, found.number) in order
            assert (t.CLOSE_BACKFILL, found.number) not in order
    assert sorted(order) == [(1, 3), (1, 4), (8, 3), (8, 4)]
    assert reader.copy.kinds[t.OPAQUE, t.AUTO_NACK] == 1


def test_the_order_of_the_first_messages(kv: UprWire, read: Read) -> None:
    fill(kv, range(3, 4))
    reader = read(b"order", LIVE | t.LIST | t.CHECKPOINT, vbuckets=[3])
    first = [reader.step() for _ in range(3)]
    assert [each.code for each in first] == [t.AUTO_NACK, t.SYNC, t.INITIAL]
    assert all(each.wants_ack for each in first)
    assert reader.until_opaque(t.CLOSE_BACKFILL).wants_ack
    kv.put(VB, b"live")
    started = reader.step()
    assert (started.opcode, started.checkpoint, started.wants_ack) == (t.CHECKPOINT_START, 1, True)
    changed = reader.step()
    assert (changed.opcode, changed.key) == (t.MUTATION, b"live")
    assert changed.wants_ack  # nothing more is queued


def test_an_old_age_is_everything_and_a_future_one_is_nothing_old(kv: UprWire, read: Read) -> None:
    fill(kv, range(3, 4))
    reader = read(b"future", LIVE, oldest=t.NO_BACKFILL)
    assert reader.step().is_opaque(t.AUTO_NACK)
    kv.put(VB, b"live")
    found = reader.step()
    assert (found.opcode, found.key) == (t.MUTATION, b"live")
    for oldest in (0, int(time.time()) - 60):
        reader = read(b"", LIVE, oldest=oldest)
        reader.until(lambda: len(reader.copy.documents) == 11)  # noqa: B023


# --- tap.py: never acknowledges, falls over a NOOP ----------------------------------------------


def test_without_acks_asked_for_everything_comes(
    server: ServerProcess, kv: UprWire, read: Read
) -> None:
    fill(kv, each=100)
    reader = read(b"plain", t.BACKFILL, ack=None)
    reader.until(lambda: len(reader.copy.documents) == VBUCKETS * 100)
    assert same(server, reader) == []
    assert reader.copy.kinds[t.OPAQUE, t.AUTO_NACK] == 0


def test_who_asks_for_acks_and_never_sends_one_gets_no_document(kv: UprWire, read: Read) -> None:
    fill(kv)
    reader = read(b"silent", LIVE, ack=None)
    while reader.copy.kinds[t.NOOP] < 2:
        reader.step()
    assert {kind for kind in reader.copy.kinds if isinstance(kind, int)} == {t.NOOP}
    other = read(b"other", LIVE)
    other.until(lambda: len(other.copy.documents) == VBUCKETS * 10)


def test_no_more_than_a_window_is_sent(kv: UprWire, read: Read) -> None:
    """Only OPAQUE is acknowledged; items fill the window of 20 messages, then it stands."""
    fill(kv, each=30)
    opaques: Callable[[TapFrame], bytes] = lambda found: (  # noqa: E731
        t.answer(found) if found.opcode == t.OPAQUE else b""
    )
    reader = read(b"window", LIVE, ack=opaques)
    reader.until_closed()
    assert WINDOW - 10 <= reader.copy.kinds[t.MUTATION] <= WINDOW + 1


def test_a_silent_stream_gets_a_noop(kv: UprWire, read: Read) -> None:
    reader = read(b"idle", LIVE)
    while reader.copy.kinds[t.NOOP] < 2:
        reader.step()
    kv.put(VB, b"live")
    reader.until(lambda: (VB, b"live") in reader.copy.documents)


def test_an_answer_to_a_noop_is_ignored(kv: UprWire, read: Read) -> None:
    reader = read(b"polite", LIVE)
    while reader.copy.kinds[t.NOOP] < 2:
        if (found := reader.step()).opcode == t.NOOP:
            reader.send(t.answer(found))
    kv.put(VB, b"live")
    reader.until(lambda: (VB, b"live") in reader.copy.documents)


def test_a_client_that_hangs_up_at_a_noop_comes_back_by_its_name(kv: UprWire, read: Read) -> None:
    reader = read(b"falls", LIVE | t.REGISTERED)
    while reader.copy.kinds[t.NOOP] < 1:
        reader.step()
    reader.close()
    kv.put(VB, b"meanwhile")
    again = read(b"falls", LIVE | t.REGISTERED)
    again.until(lambda: (VB, b"meanwhile") in again.copy.documents)
    assert again.copy.kinds[t.OPAQUE, t.INITIAL] == 0
    kv.command(frame(t.DEREGISTER, b"falls"))


# --- spymemcached: acknowledgements with a key --------------------------------------------------


def test_acks_may_have_a_key_and_a_body(server: ServerProcess, kv: UprWire, read: Read) -> None:
    fill(kv, each=50)
    odd: Callable[[TapFrame], bytes] = lambda found: t.answer(  # noqa: E731
        found, key=str(uuid.uuid4()).encode(), value=b"thanks"
    )
    reader = read(b"spy", LIVE | t.FIX_FLAGS, ack=odd)
    reader.until(lambda: len(reader.copy.documents) == VBUCKETS * 50)
    assert same(server, reader) == []


def test_an_ack_of_the_captured_form(kv: UprWire, read: Read) -> None:
    """Vector 22, of OPAQUE 1."""
    packet = bytes.fromhex(
        "81440024000000000000002400000001000000000000000062393565316230652d343337362d3433"
        "61362d383034372d326265366566623836393965"
    )
    fill(kv, range(3, 4))
    reader = read(b"captured", LIVE, ack=None)
    assert reader.step().opaque == 1
    reader.send(packet)
    found = reader.step()
    assert found.is_opaque(t.INITIAL)


# --- who cannot keep up -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [t.TEMPORARY, t.BUSY])
def test_what_was_nacked_comes_again_in_its_newest_state(
    kv: UprWire, read: Read, status: int
) -> None:
    """Vector 18 with text; an older state never comes after a newer one."""
    reader = read(b"busy", LIVE, ack=None, oldest=t.NO_BACKFILL)
    reader.send(t.answer(reader.step()))
    kv.put(VB, b"key", b"old")
    found = reader.step()
    assert (found.key, found.value, found.wants_ack) == (b"key", b"old", True)
    kv.put(VB, b"key", b"new")
    reader.send(t.answer(found, status, value=b"Temporary failure"))
    values = []
    while not values or values[-1] != b"new":
        found = reader.step()
        assert found.opcode in (t.MUTATION, t.OPAQUE, t.NOOP)
        if found.opcode == t.MUTATION:
            values.append(found.value)
        if found.wants_ack:
            reader.send(t.answer(found))
    assert values in ([b"new"], [b"new", b"new"], [b"old", b"new"])


def test_a_client_that_nacks_now_and_then_gets_everything(
    server: ServerProcess, kv: UprWire, read: Read
) -> None:
    fill(kv, each=20)
    asked = 0

    def now_and_then(found: TapFrame) -> bytes:
        nonlocal asked
        asked += 1
        return t.answer(found, t.TEMPORARY if asked % 17 == 0 else w.OK)

    reader = read(b"tired", LIVE, ack=now_and_then)
    while reader.copy.kinds[t.NOOP] < 1:  # it has nothing more
        reader.step()
    assert asked > 2 * 17
    assert same(server, reader) == []


def test_any_other_error_ends_the_stream(kv: UprWire, read: Read) -> None:
    fill(kv, range(3, 4))
    reader = read(b"no", LIVE, ack=None)
    reader.send(t.answer(reader.step(), u.NOT_MY_VBUCKET))
    reader.until_closed()


def test_unacknowledged_messages_come_again_by_name(kv: UprWire, read: Read) -> None:
    """A registered client that loses its connection before it could acknowledge."""
    reader = read(b"again", LIVE | t.REGISTERED)
    reader.until(lambda: reader.copy.kinds[t.OPAQUE, t.CLOSE_BACKFILL] == 0)
    assert reader.step().opcode == t.OPAQUE
    kv.put(VB, b"first")
    reader.until(lambda: (VB, b"first") in reader.copy.documents)
    reader._ack = None
    kv.put(VB, b"second")
    reader.until(lambda: (VB, b"second") in reader.copy.documents)
    reader.close()
    again = read(b"again", LIVE | t.REGISTERED)
    again.until(lambda: (VB, b"second") in again.copy.documents)
    kv.command(frame(t.DEREGISTER, b"again"))


# --- side commands ------------------------------------------------------------------------------


def test_a_filter_is_changed_while_the_stream_runs(kv: UprWire, read: Read) -> None:
    fill(kv, range(3, 6))
    reader = read(b"filter", LIVE | t.LIST, vbuckets=[3, 4])
    reader.until(lambda: reader.copy.kinds[t.OPAQUE, t.CLOSE_BACKFILL] == 2)
    kv.command(frame(t.CHANGE_FILTER, b"filter", t.filter_of([(3, 0), (5, 0)])))
    reader.until(lambda: reader.copy.kinds[t.OPAQUE, t.FILTER_CHANGED] == 1)
    reader.until(lambda: len(reader.copy.of([5])) == 10)
    kv.put(4, b"unseen")
    kv.put(5, b"seen")
    reader.until(lambda: (5, b"seen") in reader.copy.documents)
    assert (4, b"unseen") not in reader.copy.documents
    unknown = frame(t.CHANGE_FILTER, b"nobody", t.filter_of([(3, 0)]))
    assert kv.call(unknown).number == w.INVALID
    assert kv.call(frame(t.CHANGE_FILTER, b"filter", b"\0\5")).number == w.INVALID


def test_deregistering_ends_the_stream(kv: UprWire, read: Read) -> None:
    reader = read(b"gone", LIVE | t.REGISTERED)
    reader.step()
    kv.command(frame(t.DEREGISTER, b"gone"))
    reader.until_closed()
    kv.command(frame(t.DEREGISTER, b"gone"))


def test_a_reset_chain_fills_every_stream_again(kv: UprWire, read: Read) -> None:
    fill(kv, range(3, 4))
    reader = read(b"chain", LIVE | t.LIST, vbuckets=[3])
    reader.until(lambda: reader.copy.kinds[t.OPAQUE, t.CLOSE_BACKFILL] == 1)
    kv.command(frame(t.RESET_CHAIN))
    reader.until(lambda: reader.copy.kinds[t.OPAQUE, t.CLOSE_BACKFILL] == 2)
    assert reader.copy.kinds[t.OPAQUE, t.INITIAL] == 2
    assert len(reader.copy.documents) == 10


# --- bad requests -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_bytes",
    [
        frame(t.CONNECT, b"n", extras=struct.pack(">I", t.DUMP | t.TAKEOVER)),
        frame(t.CONNECT, b"n", extras=struct.pack(">I", t.LIST)),
        frame(t.CONNECT, b"n", b"\0\5\0\1", struct.pack(">I", t.LIST)),
        frame(t.CONNECT, b"n", b"\0\0\0\2\0\1", struct.pack(">I", t.LIST | t.CHECKPOINT)),
        frame(t.CONNECT, b"n", bytes(7), struct.pack(">I", t.BACKFILL)),
        frame(t.CONNECT, b"n" * 300, extras=struct.pack(">I", t.DUMP)),
        frame(t.CONNECT, b"n", extras=b"\0\0\1"),
    ],
    ids=["dump-and-takeover", "no-list", "long-list", "torn-pairs", "torn-age", "name", "extras"],
)
def test_an_impossible_request_is_refused_and_the_connection_closed(
    server: ServerProcess, kv: UprWire, request_bytes: bytes
) -> None:
    assert server.upr is not None
    with TapWire(server.upr) as connection:
        connection.send(request_bytes)
        rest = connection.read_until_closed()
    if rest:
        found = TapFrame.of(rest)
        assert (found.is_reply, found.opcode) == (True, t.CONNECT)
        assert found.number in (t.NOT_SUPPORTED, w.INVALID)
    kv.put(VB, b"others go on")


# --- a master that pushes -----------------------------------------------------------------------

#: As pump_tap's sink sends it: a section of 8 bytes, header CAS 0, no acknowledgement wanted.
PUMP_TAPS_PUSH = bytes.fromhex(
    "80410007100000000000002a00000001000000000000000000080004ff00000001020304000000000000000000"
    "0000076c65676163793166726f6d2d6d6173746572"
)


def test_pump_taps_sink_fills_a_vbucket(kv: UprWire, master: TapWire) -> None:
    kv.remake(0, u.ACTIVE)
    assert master.push(PUMP_TAPS_PUSH) == []
    answer = kv.command(frame(w.GET, b"legacy1", vbucket=0))
    assert (answer.value, answer.extras) == (b"from-master", bytes.fromhex("01020304"))
    assert answer.cas


def test_a_master_fills_a_replica(server: ServerProcess, kv: UprWire, master: TapWire) -> None:
    messages = [
        t.opaque_message(t.AUTO_NACK, 0, 1),
        t.opaque_message(t.SYNC, 0, 2),
        t.vbucket_set(u.PENDING, VB, 4),
        t.opaque_message(t.INITIAL, VB, 6),
        t.mutation(VB, 8, b"k1", b"v1", rev=7, item_flags=0xDEADBEEF, cas=0x0102030405060708),
        t.mutation(
            VB,
            9,
            b"k2",
            b"v2",
            rev=8,
            item_flags=swapped(0x11223344),
            expiration=2_000_000_000,
            cas=99,
            flags=0,
        ),
        t.mutation(VB, 10, b"k3", b"v3", rev=2, cas=98),
        t.opaque_message(t.CLOSE_BACKFILL, VB, 12),
        t.checkpoint(t.CHECKPOINT_START, 1, VB, 14, deleted_rev=8),
        t.deletion(VB, 15, b"k3", rev=3, cas=97),
        t.mutation(VB, 16, b"k4", b"v4", rev=1, cas=96, flags=t.ACK | t.NETWORK_ORDER),
        t.checkpoint(t.CHECKPOINT_END, 1, VB, 17),
        t.vbucket_set(u.ACTIVE, VB, 18),
    ]
    answers = master.push(*messages)
    assert [each.opaque for each in answers] == [1, 2, 4, 6, 12, 14, 16, 17, 18]
    assert {each.number for each in answers} == {w.OK}
    assert {each.rest + each.extras for each in answers} == {b""}
    assert server.upr is not None
    assert documents_of(server.upr, [VB]) == {
        (VB, b"k1"): Document(b"v1", 0xDEADBEEF, 0, 0x0102030405060708, 7),
        (VB, b"k2"): Document(b"v2", 0x11223344, 2_000_000_000, 99, 8),
        (VB, b"k4"): Document(b"v4", 0, 0, 96, 1),
    }
    assert kv.command(frame(u.GET_VBUCKET, vbucket=VB)).value == struct.pack(">I", u.ACTIVE)


def test_an_older_revision_overwrites(kv: UprWire, master: TapWire) -> None:
    """A master is always right: there is no conflict resolution."""
    pushed = [t.mutation(VB, n, b"key", b"%d" % n, rev=10 - n, cas=n) for n in range(1, 6)]
    assert master.push(*pushed) == []
    kv.set_state(VB, u.ACTIVE)
    answer = kv.command(frame(w.GET, b"key", vbucket=VB))
    assert (answer.value, answer.cas) == (b"5", 5)


def test_a_master_of_1_8_sends_no_section(kv: UprWire, master: TapWire) -> None:
    messages = (
        t.mutation(VB, 1, b"key", b"value", rev=None, flags=t.NETWORK_ORDER, item_flags=5),
        t.mutation(VB, 2, b"gone", b"value", rev=None),
        t.deletion(VB, 3, b"gone", rev=None, flags=t.ACK),
    )
    assert [each.number for each in master.push(*messages)] == [w.OK]
    kv.set_state(VB, u.ACTIVE)
    answer = kv.command(frame(w.GET, b"key", vbucket=VB))
    assert (answer.value, answer.extras) == (b"value", struct.pack(">I", 5))
    assert answer.cas
    assert kv.call(frame(w.GET, b"gone", vbucket=VB)).number == w.NOT_FOUND


def test_errors_are_answered_though_nobody_asked(kv: UprWire, master: TapWire) -> None:
    kv.remake(4, u.DEAD)
    answers = master.push(
        t.mutation(4, 1, b"key", b"value"),
        t.mutation(900, 2, b"key", b"value"),
        t.mutation(VB, 3, b"key", b"value", ttl=0),
        t.mutation(VB, 4, b"key", b"value"),
    )
    assert [(each.opaque, each.number) for each in answers] == [
        (1, u.NOT_MY_VBUCKET),
        (2, u.NOT_MY_VBUCKET),
        (3, w.INVALID),
    ]


def test_an_initial_stream_empties_the_vbucket_under_a_new_history(
    server: ServerProcess, kv: UprWire, master: TapWire
) -> None:
    assert server.upr is not None
    master.push(t.mutation(VB, 1, b"old", b"value"))
    before = kv.texts(b"failovers %d" % VB)[f"vb_{VB}:0:id"]
    master.push(t.opaque_message(t.INITIAL, VB, 2), t.mutation(VB, 3, b"new", b"value"))
    assert kv.texts(b"failovers %d" % VB)[f"vb_{VB}:0:id"] != before
    master.push(t.opaque_message(t.CLOSE_BACKFILL, VB, 4))
    assert {key for _, key in documents_of(server.upr, [VB])} == {b"new"}


def test_a_flush_empties_every_vbucket(server: ServerProcess, kv: UprWire, master: TapWire) -> None:
    assert server.upr is not None
    fill(kv, range(5, 7))
    flushed = t.message(t.FLUSH, opaque=46, flags=t.ACK)
    assert [each.number for each in master.push(flushed)] == [w.OK]
    assert documents_of(server.upr, ALL) == {}


@pytest.mark.parametrize(
    "packet",
    [
        t.message(t.VBUCKET_SET, VB, 1, specific=struct.pack(">I", 9), flags=t.ACK),
        t.message(t.VBUCKET_SET, VB, 1, specific=b"\0\1", flags=t.ACK),
        t.message(t.CHECKPOINT_START, VB, 1, item=(0, 0), key=b"checkpoint_start", flags=t.ACK),
        t.message(t.MUTATION, VB, 1, specific=b"12345678", specific_length=99, item=(0, 0)),
        t.message(t.MUTATION, VB, 1, key=b"key"),
    ],
    ids=["state", "torn-state", "no-id", "long-section", "short-extras"],
)
def test_a_malformed_push_ends_the_connection(
    server: ServerProcess, kv: UprWire, master: TapWire, packet: bytes
) -> None:
    master.send(packet)
    rest = master.read_until_closed()
    assert not rest or TapFrame.of(rest).number != w.OK
    kv.put(1, b"others go on")


def test_an_unknown_opaque_is_acknowledged_and_ignored(master: TapWire) -> None:
    for code in (3, 5, 6, 77):
        assert [each.number for each in master.push(t.opaque_message(code, VB, code))] == [w.OK]


def test_ordinary_commands_still_work_beside_pushes(kv: UprWire, master: TapWire) -> None:
    master.push(t.mutation(VB, 1, b"key", b"value", cas=5))
    state = master.call(frame(u.GET_VBUCKET, vbucket=VB))
    assert state.packet[-4:] == struct.pack(">I", u.REPLICA)


def test_a_push_that_is_cut_short_leaves_the_vbucket_usable(
    server: ServerProcess, kv: UprWire
) -> None:
    assert server.upr is not None
    kv.remake(VB, u.REPLICA)
    for _ in range(2):
        with TapWire(server.upr) as connection:
            connection.push(
                t.opaque_message(t.INITIAL, VB, 1),
                *(t.mutation(VB, 2 + n, b"key-%d" % n, b"value") for n in range(50)),
            )
            connection.send(t.mutation(VB, 60, b"half", b"value" * 100)[:60])
    with TapWire(server.upr) as connection:
        connection.push(
            t.opaque_message(t.INITIAL, VB, 1),
            t.mutation(VB, 2, b"key", b"value"),
            t.opaque_message(t.CLOSE_BACKFILL, VB, 3),
        )
    assert {key for _, key in documents_of(server.upr, [VB])} == {b"key"}


def test_tap_on_a_connection_that_speaks_text_is_no_harm(server: ServerProcess) -> None:
    with TapWire(server.memcached) as connection:
        connection.talk(b"set key 0 0 1\r\nx\r\n", b"STORED\r\n")
        connection.send(PUMP_TAPS_PUSH + b"\r\n")
        with pytest.raises((ClosedError, AssertionError)):
            connection.expect(b"\x81")


def test_tap_is_off_when_it_is_set_off(
    start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("off")
    with start(directory, "--vbuckets", "16", "--set", "tap.enabled=no") as process:
        assert process.upr is not None
        with TapWire(process.upr) as connection:
            assert connection.call(t.connect(b"name", t.DUMP)).number == w.UNKNOWN
            assert connection.call(PUMP_TAPS_PUSH).number == w.UNKNOWN
            assert connection.call(frame(w.NOOP)).number == w.OK
        process.stop()
