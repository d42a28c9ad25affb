"""A master, a pushed replica and somebody who follows it by UPR, against a model of the master.

The master has one vBucket, and a queue of checkpoints in which each key stands once. Connections
break, what was not acknowledged is sent again, the node's commits are small and crash at any
moment. However that goes, whoever follows by UPR holds, at the end of each snapshot, a state that
the master had at the end of a backfill or of a checkpoint; and when everything has been sent, both
copies are the master's.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.contents import table_of
from tests.tap_adapter.push_rig import (
    ACK,
    ACTIVE,
    NETWORK_ORDER,
    OK,
    REPLICA,
    PushRig,
    delete,
    end,
    mutation,
    opaque,
    start,
)
from tests.upr import peer as upr
from tests.upr.peer import MARKER, MUTATION, Frame, Peer


class Doc(NamedTuple):
    value: bytes
    flags: int
    expiry: int
    cas: int
    rev: int


Docs = dict[bytes, Doc]


class Queued(NamedTuple):
    """One message of the master: an item (`doc` is ``None`` if deleted), or where it stands."""

    kind: str
    key: bytes = b""
    doc: Doc | None = None
    rev: int = 0
    number: int = 0
    state: frozenset[tuple[bytes, Doc]] = frozenset()


class Follower:
    """An indexer: takes snapshots, remembers each whole one, falls back to one if it is told to."""

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.docs: Docs = {}
        self.seqno = self.end = 0
        self.uuid = 0
        self.whole: dict[int, Docs] = {0: {}}
        self.seen: list[frozenset[tuple[bytes, Doc]]] = []

    def follow(self, rig: PushRig) -> None:
        """Take everything that there is now."""
        for _ in range(4):
            if self.peer is None:
                self._connect(rig)
            assert self.peer is not None
            for frame in self.peer.drain():
                self._take(frame)
            if self.peer is not None:
                return
        raise AssertionError("the stream never stands")

    def _connect(self, rig: PushRig) -> None:
        self.peer = Peer.open(rig.rig)
        request = upr.stream_request(0, self.seqno, uuid=self.uuid)
        answer, *frames = self.peer.say(request)
        if answer.status == upr.ROLLBACK:
            point = int.from_bytes(answer.value, "big")
            self.seqno = self.end = max(each for each in self.whole if each <= point)
            self.docs = dict(self.whole[self.seqno])
            self.whole = {each: docs for each, docs in self.whole.items() if each <= self.seqno}
            request = upr.stream_request(0, self.seqno, uuid=self.uuid)
            answer, *frames = self.peer.say(request)
        assert answer.status == OK, hex(answer.status)
        self.uuid = answer.log[0][0]
        for frame in frames:
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        if frame.opcode == upr.STREAM_END:
            assert self.seqno == self.end, "a stream ended in mid-snapshot"
            self.peer = None
        elif frame.opcode == MARKER:
            self.end = frame.end
        else:
            self._take_item(frame)

    def _take_item(self, frame: Frame) -> None:
        if frame.opcode == MUTATION:
            self.docs[frame.key] = Doc(frame.value, frame.flags, frame.expiry, frame.cas, frame.rev)
        else:
            self.docs.pop(frame.key, None)
        self.seqno = frame.seqno
        if self.seqno == self.end:
            self.whole[self.seqno] = dict(self.docs)
            self.seen.append(frozenset(self.docs.items()))


KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])


class Machine(RuleBasedStateMachine):
    """See the module docstring.

    Attributes:
        docs: what the master holds.
        queue: what it has still to send; `unacked` was sent.
        allowed: states that may be seen by who follows us.
        lost: whether the node has lost what the master believes to be there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rig = PushRig(REPLICA, engine__vbuckets=1, flush__batch_items=2)
        self.rig.rig.flush()
        self.follower = Follower()
        self.docs: Docs = {}
        self.revs: dict[bytes, int] = {}
        self.queue: list[Queued] = []
        self.unacked: list[Queued] = []
        self.allowed = {frozenset[tuple[bytes, Doc]]()}
        self.checkpoint = 0
        self.sequence = 0
        self.cas = 1_000
        self.lost = False
        self.backfill()

    # --- the master -----------------------------------------------------------------------------

    @rule(key=KEYS, value=st.binary(max_size=3), flags=st.integers(0, 2**32 - 1))
    def write(self, key: bytes, value: bytes, flags: int) -> None:
        self.cas += 1
        rev = self.revs[key] = self.revs.get(key, 0) + 1
        self.docs[key] = Doc(value, flags, 2_000_000_000 + rev, self.cas, rev)
        self._enqueue(Queued("item", key, self.docs[key], rev))

    @rule(key=KEYS)
    def remove(self, key: bytes) -> None:
        if self.docs.pop(key, None) is not None:
            rev = self.revs[key] = self.revs[key] + 1
            self._enqueue(Queued("item", key, None, rev))

    def _enqueue(self, item: Queued) -> None:
        """Each key stands once in the open checkpoint, where it was changed last."""
        for place in range(len(self.queue) - 1, -1, -1):
            if self.queue[place].kind != "item":
                break
            if self.queue[place].key == item.key:
                del self.queue[place]
        self.queue.append(item)

    @rule()
    def close_checkpoint(self) -> None:
        state = frozenset(self.docs.items())
        self.queue.append(Queued("end", number=self.checkpoint, state=state))
        self.checkpoint += 1
        self.queue.append(Queued("start", number=self.checkpoint))

    @rule()
    def backfill(self) -> None:
        """Begin anew, as a master does that has lost the place."""
        self.checkpoint += 1
        self.unacked = []
        self.queue = [
            Queued("opaque", number=1),
            *(Queued("item", key, doc, doc.rev) for key, doc in self.docs.items()),
            Queued("opaque", number=8, state=frozenset(self.docs.items())),
            Queued("start", number=self.checkpoint),
        ]
        self.lost = False
        self._greet()

    # --- the connection -------------------------------------------------------------------------

    def _greet(self) -> None:
        self.rig.reconnect()
        self.rig.push(opaque(0), opaque(2))

    @precondition(lambda self: not self.lost)
    @rule(count=st.integers(1, 12), acks=st.integers(0, 2**12))
    def send(self, count: int, acks: int) -> None:
        for place in range(min(count, len(self.queue))):
            self._send(self.queue.pop(0), ack=bool(acks >> place & 1))

    def _send(self, queued: Queued, *, ack: bool) -> None:
        self.sequence += 1
        ack = ack or queued.kind != "item"
        if queued.kind != "item":
            self.unacked = []  # the gate: what is before it has been acknowledged
        if queued.kind == "end" or queued.number == 8:
            self.allowed.add(queued.state)
        answer = self.rig.take(self._frame(queued, ACK if ack else 0))
        if ack:
            assert answer is not None
            assert (answer.status, answer.opaque) == (OK, self.sequence)
            self.unacked = []
        else:
            assert answer is None
            self.unacked.append(queued)

    def _frame(self, queued: Queued, flags: int) -> bytes:
        kind, doc, sequence = queued.kind, queued.doc, self.sequence
        if kind == "opaque":
            return opaque(queued.number, flags=flags, opaque=sequence)
        if kind != "item":
            make = start if kind == "start" else end
            return make(queued.number, flags=flags, opaque=sequence)
        if doc is None:
            return delete(queued.key, rev=queued.rev, flags=flags, opaque=sequence)
        swapped = int.from_bytes(doc.flags.to_bytes(4, "little"), "big")
        in_order = bool(sequence & 1)
        return mutation(
            queued.key,
            doc.value,
            rev=doc.rev,
            item_flags=doc.flags if in_order else swapped,
            expiration=doc.expiry,
            cas=doc.cas,
            flags=flags | (NETWORK_ORDER if in_order else 0),
            opaque=sequence,
        )

    @precondition(lambda self: not self.lost)
    @rule()
    def cut(self) -> None:
        """The master comes again by its name; what was not acknowledged is sent again."""
        self.queue = self.unacked + self.queue
        self.unacked = []
        self._greet()

    # --- the node -------------------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        flusher = self.rig.bucket.flusher
        if flush := flusher.begin():
            flusher.commit(flush)
            flusher.finish(flush)

    @rule()
    def crash(self) -> None:
        self.rig.crash()
        self.follower.peer = None
        self.lost = True

    @rule()
    def promote_and_demote(self) -> None:
        """What was half is the active's own state then; the master has to begin anew."""
        self.rig.bucket.set_state(0, ACTIVE)
        live = {item for item in table_of(self.rig.vbucket).values() if not item.life}
        self.allowed.add(
            frozenset(
                (item.key, Doc(item.value or b"", item.flags, item.expiry, item.cas, item.rev))
                for item in live
            )
        )
        self.follower.follow(self.rig)
        self.rig.bucket.set_state(0, REPLICA)
        self.lost = True

    @rule()
    def follow(self) -> None:
        self.follower.follow(self.rig)

    # --- judges ---------------------------------------------------------------------------------

    @invariant()
    def nothing_half_was_seen(self) -> None:
        seen, self.follower.seen = self.follower.seen, []
        assert set(seen) <= self.allowed

    @invariant()
    def the_node_is_sound(self) -> None:
        self.rig.check()

    def teardown(self) -> None:
        if self.lost:
            self.backfill()
        self.close_checkpoint()
        self.send(len(self.queue), 0)
        self.follow()
        assert self.follower.docs == self.docs
        self.nothing_half_was_seen()


Machine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@pytest.mark.acceptance("D56")
class TestMachine(Machine.TestCase):
    """The machine above, run by hypothesis."""
