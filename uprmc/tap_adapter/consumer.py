"""The consumer's side of TAP: a legacy master pushes its messages into our vBuckets.

Job: carry out what a message asks, and answer by the rules of such consumers: when an ACK is asked
for, and whenever a message was refused. `engine.replica` takes the versions.

Neighbours: a binary session hands the messages of its connection in; `Boundaries` knows which
snapshot is open; `Pushes` is where all connections are counted.

What a refusal does to the master: 0x86 has it send the message again after a pause, anything else
has it hang up at once. So 0x86 is for what passes: no room, a full disk, warm-up, and a document
that a client of ours has locked (a foreign write would break the promise made to him; locks lapse
within seconds). For what does not pass:

==========================================================  ======================================
ttl 0, value left out, mad CAS or revision, bad key         0x04
value above ``kv.max_item_bytes``                           0x03
vBucket missing, dead, or filled from another node by UPR   0x07 and the cluster map
version of a backfill for an active vBucket                 0x07 and the cluster map
not what the protocol allows                                `OutOfPlace`: hang up without a word
==========================================================  ======================================

Note: OPAQUE 1 empties an active vBucket, too, although the vBucket then gets nothing of a backfill
that follows checkpoints; servers of 2.x do the same. An ACK means "in memory": the master does not
learn what a crash takes away after it, as in TAP everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from uprmc.engine.replica import begin_again, flush_all, outrank, overwrite
from uprmc.engine.vbucket import VBucket
from uprmc.errors import (
    CommandError,
    DiskRefuses,
    InvalidArguments,
    Locked,
    NotMyVBucket,
    OutOfMemory,
    OutOfPlace,
    RangeExceeded,
    RemoteProtocolError,
    TemporaryFailure,
    TooLarge,
)
from uprmc.model import Item, Life, VBucketState
from uprmc.protocol.opcodes import KEY_MAX_BYTES, STATUS_TEXT, Opcode, Status
from uprmc.protocol.tap import (
    TAP_CHECKPOINT_VALUE,
    TAP_MUTATION_SPECIFIC,
    TAP_REVISION_SPECIFIC,
    TAP_WORD_SPECIFIC,
    TapFlag,
    TapMessage,
    TapOpaque,
    decode_message,
    tap_answer,
)
from uprmc.tap_adapter.translate import swapped_flags
from uprmc.upr.hub import Hub

# --- versions -------------------------------------------------------------------------------------
# What UPR would say and TAP cannot: seqnos, the name of the history, where snapshots
# end unless checkpoints are used, that a deletion was an expiry, datatypes.
#
# Note: flags of items come with their bytes swapped unless the message says otherwise;
# `translate` swaps them on the way out.


#: Plain numbers: an enum's operations cost a microsecond each.
_ACK, _NO_VALUE = int(TapFlag.ACK), int(TapFlag.NO_VALUE)
_NETWORK_BYTE_ORDER = int(TapFlag.NETWORK_BYTE_ORDER)

#: nru of a document whose sender says none, and the highest there is.
_NRU_DEFAULT, _NRU_COLDEST = 2, 3


def is_plain(message: TapMessage) -> bool:
    """Tell whether a message names no revision: it is then a client's ordinary set or delete."""
    return len(message.specific) < TAP_REVISION_SPECIFIC.size


def version_in(message: TapMessage) -> Item:
    """Return the version that a MUTATION or DELETE brings; its seqno is still to be given.

    CAS, revision, flags and expiration are kept. Without a CAS (0) it gets one here. Revision 0 of
    a deletion counts as 1.
    """
    specific, plain = message.specific, is_plain(message)
    rev = 0 if plain else TAP_REVISION_SPECIFIC.unpack_from(specific)[0]
    cas = 0 if plain else message.cas
    if message.opcode == Opcode.TAP_DELETE:
        gone = 0 if plain else rev or 1
        return Item(message.key, None, 0, 0, cas, 0, gone, life=Life.DELETED)
    flags, nru = message.item_flags, _NRU_DEFAULT
    if not message.flags & _NETWORK_BYTE_ORDER:
        flags = swapped_flags(flags)
    if len(specific) >= TAP_MUTATION_SPECIFIC.size:
        _, named = TAP_MUTATION_SPECIFIC.unpack_from(specific)
        nru = named if named <= _NRU_COLDEST else _NRU_DEFAULT
    return Item(message.key, message.value, flags, message.expiration, cas, 0, rev, nru=nru)


# --- push boundaries ------------------------------------------------------------------------------
# Where a pushing master's snapshots begin and end, as its messages tell on one connection.
#
# A master's backfill is one snapshot, and each of its checkpoints is one. Whatever lies between is
# no state that the master had, so none who follows our copy by UPR may see it: the vBucket
# is "receiving" (`VBucket.receiving`) from the first such version until a boundary comes.
#
# OPAQUE 8                  the backfill is whole
# CHECKPOINT_START, id > 0  the backfill is whole; so is a checkpoint of a lower id that was opened
#                           here. The same id again says nothing: it is sent again from its start
# CHECKPOINT_END            the checkpoint is whole
# VBUCKET_SET active        whole, unless a backfill is going on: in a takeover it is the last
#                           message
#
# A master that follows no checkpoints (no OPAQUE 2) and is in no backfill says nothing of this
# kind. Its order is that of its own queue, so every version is a boundary as good as any; also its
# ACK flags mark none, for most of them mean no more than that so many messages have gone by.
#
# Note: **a lost connection ends nothing.** A backfill or checkpoint that was received in part stays
# so, on disk too, through restarts of this node. A master that comes back sends what was not
# acknowledged and goes on to the next boundary, or begins again with OPAQUE 1. The id of the
# checkpoint is then not known, so any END is accepted. If the master never comes back, consumers of
# this node stay at the newest complete state until an operator decides about the copy: the vBucket
# is made active (SET_VBUCKET, VBUCKET_SET, FAILOVER; this begins a branch at that state, and
# everything received is passed on), or another master fills it. A replica whose UPR source has died
# in the middle of a snapshot does the same. No time-out could do better: it would pass on a part as
# if it were complete.


class Boundaries:
    """The snapshots of one pushing master.

    It never holds more than one entry for each vBucket of the bucket.
    """

    def __init__(self) -> None:
        #: Whether the master has said that it tells its checkpoints.
        self.follows_checkpoints = False
        self._backfills: set[int] = set()
        self._open: dict[int, int] = {}
        self._ended: dict[int, int] = {}

    def is_inside(self, number: int) -> bool:
        """Tell whether a version that comes now has more to follow until a state is whole."""
        return self.follows_checkpoints or number in self._backfills or number in self._open

    def is_backfill(self, number: int) -> bool:
        """Tell whether a backfill is going on."""
        return number in self._backfills

    def open_checkpoint(self, number: int) -> int | None:
        """Return the id of the checkpoint that is open, if one was opened on this connection."""
        return self._open.get(number)

    # --- what comes; the result says whether what is open is whole now --------------------------

    def begin_backfill(self, number: int) -> None:
        """The vBucket was emptied; what comes fills it."""
        self._backfills.add(number)
        self._open.pop(number, None)
        self._ended.pop(number, None)

    def end_backfill(self, number: int) -> bool:
        """The master has sent all of the backfill; it is no boundary within a checkpoint."""
        self._backfills.discard(number)
        return not self._open.get(number)

    def start(self, number: int, checkpoint_id: int) -> bool:
        """The master begins a checkpoint; id 0 is a backfill that it is getting itself."""
        before = self._open.get(number)
        whole = before is not None and before < checkpoint_id
        if checkpoint_id and number in self._backfills:
            self._backfills.discard(number)
            whole = True
        self._open[number] = checkpoint_id
        self._ended.pop(number, None)
        return whole

    def end(self, number: int, checkpoint_id: int) -> bool:
        """The master has sent all of a checkpoint.

        Raises:
            OutOfPlace: another one is open, or was ended last, and none was opened since.
        """
        expected = self._open.get(number, self._ended.get(number, checkpoint_id))
        if expected != checkpoint_id:
            raise OutOfPlace(
                f"vBucket {number}: checkpoint {checkpoint_id} ends, {expected} is the open one"
            )
        self._open.pop(number, None)
        self._ended[number] = checkpoint_id
        return number not in self._backfills

    def promote(self, number: int) -> bool:
        """The master has given the vBucket away to us; nothing of it comes any more."""
        whole = number not in self._backfills
        self.forget(number)
        return whole

    def forget(self, number: int) -> None:
        """Nothing is open any more."""
        self._backfills.discard(number)
        self._open.pop(number, None)
        self._ended.pop(number, None)


# --- pushes ---------------------------------------------------------------------------------------
# Everybody who pushes into this node by TAP, for statistics; and which checkpoints are whole here.
#
# Names and meaning of the counters are those of ep-engine's consumers: each message counts once,
# under its kind or, if it was refused, under its kind's ``_failed``.


@dataclass(slots=True)
class PushCounters:
    """Messages of a master, by kind."""

    num_mutation: int = 0
    num_mutation_failed: int = 0
    num_delete: int = 0
    num_delete_failed: int = 0
    num_flush: int = 0
    num_flush_failed: int = 0
    num_opaque: int = 0
    num_opaque_failed: int = 0
    num_vbucket_set: int = 0
    num_vbucket_set_failed: int = 0
    num_checkpoint_start: int = 0
    num_checkpoint_start_failed: int = 0
    num_checkpoint_end: int = 0
    num_checkpoint_end_failed: int = 0
    # messages that mean nothing here: malformed ones, which end the connection, and OPAQUE codes
    # that are unknown (these are in `num_opaque`, too).
    num_unknown: int = 0

    def count(self, opcode: int, *, failed: bool) -> None:
        """Count a message of 0x41 to 0x47."""
        name = _NAMES[opcode][failed]
        setattr(self, name, getattr(self, name) + 1)

    def add(self, other: PushCounters) -> None:
        """Add another connection's counters."""
        for name, number in other.rows():
            setattr(self, name, getattr(self, name) + number)

    def rows(self) -> list[tuple[str, int]]:
        """Return names and numbers, in ep-engine's spelling."""
        return [(each.name, getattr(self, each.name)) for each in fields(self)]


_NAMES: dict[int, tuple[str, str]] = {
    opcode: (f"num_{word}", f"num_{word}_failed")
    for opcode, word in (
        (Opcode.TAP_MUTATION, "mutation"),
        (Opcode.TAP_DELETE, "delete"),
        (Opcode.TAP_FLUSH, "flush"),
        (Opcode.TAP_OPAQUE, "opaque"),
        (Opcode.TAP_VBUCKET_SET, "vbucket_set"),
        (Opcode.TAP_CHECKPOINT_START, "checkpoint_start"),
        (Opcode.TAP_CHECKPOINT_END, "checkpoint_end"),
    )
}


class Pushes:
    """All connections that push into this node by TAP.

    One for each node; connections are bounded by its listeners.
    """

    def __init__(self) -> None:
        #: Connections that have pushed something and are open, oldest first.
        self.pushers: list[TapConsumer] = []
        self.past = PushCounters()  # what was counted by those that are gone
        self.connections = 0  # how many there have been
        self._closed: dict[int, tuple[int, int]] = {}

    def join(self, pusher: TapConsumer) -> None:
        """Take a connection in and give it a name."""
        self.connections += 1
        pusher.name = f"push_{self.connections}"
        self.pushers.append(pusher)

    def leave(self, pusher: TapConsumer) -> None:
        """Forget a connection; harmless when it is forgotten."""
        if pusher in self.pushers:
            self.pushers.remove(pusher)
            self.past.add(pusher.counters)

    @property
    def total(self) -> PushCounters:
        """What has been counted since the start."""
        total = PushCounters()
        total.add(self.past)
        for pusher in self.pushers:
            total.add(pusher.counters)
        return total

    def checkpoint_closed(self, vbucket: VBucket, checkpoint_id: int) -> None:
        """A checkpoint of the master is whole here."""
        self._closed[vbucket.id] = (vbucket.failover_log[0].uuid, checkpoint_id)

    def last_closed(self, vbucket: VBucket) -> int:
        """Return the id of the master's last checkpoint that is whole here, 0 = not known.

        A master that learns it goes on after it. It is known as long as nothing has happened to
        the vBucket in between, in this process only: what it had before a restart may not all
        have been on disk.
        """
        uuid, checkpoint_id = self._closed.get(vbucket.id, (0, 0))
        same = uuid == vbucket.failover_log[0].uuid and vbucket.state != VBucketState.ACTIVE
        return checkpoint_id if same else 0


# --- consumer -------------------------------------------------------------------------------------


_ACTIVE = VBucketState.ACTIVE

_STATUSES: dict[type[CommandError], Status] = {
    InvalidArguments: Status.INVALID_ARGUMENTS,
    Locked: Status.TEMPORARY_FAILURE,
    NotMyVBucket: Status.NOT_MY_VBUCKET,
    OutOfMemory: Status.TEMPORARY_FAILURE,
    RangeExceeded: Status.NOT_MY_VBUCKET,
    TemporaryFailure: Status.TEMPORARY_FAILURE,
    DiskRefuses: Status.TEMPORARY_FAILURE,
    TooLarge: Status.TOO_LARGE,
}


def _no_map() -> bytes:
    return b""


class TapConsumer:
    """Carries out the messages of one master; one for each connection that pushes."""

    def __init__(
        self,
        hub: Hub,
        pushes: Pushes | None = None,
        cluster_map: Callable[[], bytes | None] = _no_map,
    ) -> None:
        """Begin with the first message of a connection.

        Args:
            hub: the node's; it tells what is filled by UPR.
            pushes: where the connection is listed; close it, then.
            cluster_map: returns what stands in the answer 0x07.
        """
        self.name = "push"  # for statistics
        self.counters = PushCounters()
        self.nacks = self.acks = 0  # messages that were answered with an error, or success
        self.last_refusal = ""  # why the last message was refused, "" while none was
        #: The master has said (OPAQUE 0) that it asks for ACKs and knows what to do with errors.
        #: They are answered in any case.
        self.understands_nacks = False
        self._hub = hub
        self._bucket = hub.bucket
        self._max_value_bytes = hub.bucket.settings.kv.max_item_bytes
        self._pushes = pushes or Pushes()
        self._pushes.join(self)
        self._cluster_map = cluster_map
        self._boundaries = Boundaries()

    @property
    def follows_checkpoints(self) -> bool:
        """Whether the master tells its checkpoints."""
        return self._boundaries.follows_checkpoints

    def close(self) -> None:
        """The connection is gone. What is half received stays so: see `Boundaries`."""
        self._pushes.leave(self)

    # --- a message ------------------------------------------------------------------------------

    def take(
        self,
        opcode: int,
        vbucket: int,
        opaque: int,
        cas: int,
        extras: bytes,
        key_length: int,
        rest: bytes,
    ) -> bytes | None:
        """Take a message; returns the whole answer, ``None`` = it has none.

        Args:
            opcode: 0x41 to 0x47.
            vbucket: of the header; it counts, whatever the key.
            opaque: of the header.
            cas: of the header.
            extras: as long as the header says.
            key_length: of the header.
            rest: the body after the extras.

        Raises:
            OutOfPlace: hang up.
        """
        try:
            message = decode_message(opcode, vbucket, opaque, cas, extras, key_length, rest)
        except RemoteProtocolError as error:
            self.counters.num_unknown += 1
            raise OutOfPlace(str(error)) from None
        try:
            self._carry_out(message)
        except CommandError as error:
            self.counters.count(opcode, failed=True)
            return self._refusal(message, error)
        except OutOfPlace:
            self.counters.count(opcode, failed=True)
            raise
        self.counters.count(opcode, failed=False)
        if not message.flags & _ACK:
            return None
        self.acks += 1
        return tap_answer(opcode, opaque)

    def _refusal(self, message: TapMessage, error: CommandError) -> bytes:
        self.nacks += 1
        status = _STATUSES.get(type(error), Status.INVALID_ARGUMENTS)
        self.last_refusal = f"vBucket {message.vbucket}: {error}"
        text = STATUS_TEXT[status]
        if status == Status.NOT_MY_VBUCKET:
            text = self._cluster_map() or text
        return tap_answer(message.opcode, message.opaque, status, text)

    def _carry_out(self, message: TapMessage) -> None:
        if not message.ttl:
            raise InvalidArguments("no hops are left")
        if not self._bucket.traffic:
            raise TemporaryFailure("not serving")
        if message.flags & _NO_VALUE and message.opcode == Opcode.TAP_MUTATION:
            raise InvalidArguments("a document without its value")
        _ACTIONS[message.opcode](self, message)

    # --- versions -------------------------------------------------------------------------------

    def _overwrite(self, message: TapMessage) -> None:
        version = version_in(message)
        if not 0 < len(version.key) <= KEY_MAX_BYTES:
            raise InvalidArguments(f"a key of {len(version.key)} bytes")
        if version.value is not None and len(version.value) > self._max_value_bytes:
            raise TooLarge(version.key)
        vbucket = self._vbucket(message.vbucket)
        boundaries = self._boundaries
        if vbucket.state == _ACTIVE and self._fills_by_checkpoints(vbucket.id):
            raise NotMyVBucket("it is active, and this is a backfill")
        inside, plain = boundaries.is_inside(vbucket.id), is_plain(message)
        overwrite(self._bucket, vbucket, version, plain=plain, within_snapshot=inside)

    def _fills_by_checkpoints(self, number: int) -> bool:
        boundaries = self._boundaries
        return boundaries.follows_checkpoints and boundaries.is_backfill(number)

    def _vbucket(self, number: int) -> VBucket:
        vbucket = self._bucket.vbuckets.get(number)
        if vbucket is None or vbucket.state == VBucketState.DEAD:
            raise NotMyVBucket("missing or dead")
        self._check_unfilled(number)
        return vbucket

    def _check_unfilled(self, number: int) -> None:
        if self._hub.is_filled(number):
            raise NotMyVBucket("it is filled from another node by UPR")

    # --- beginnings and ends --------------------------------------------------------------------

    def _flush(self, message: TapMessage) -> None:
        """Empty everything, as a client's flush_all: what follows another node gets it again."""
        flush_all(self._bucket)

    def _opaque(self, message: TapMessage) -> None:
        number, code = message.vbucket, -1
        if len(message.specific) == TAP_WORD_SPECIFIC.size:
            (code,) = TAP_WORD_SPECIFIC.unpack(message.specific)
        if code == TapOpaque.INITIAL_VBUCKET_STREAM:  # empty it, a backfill follows
            vbucket = self._vbucket(number)
            self._boundaries.begin_backfill(vbucket.id)
            begin_again(self._bucket, vbucket)
        elif code == TapOpaque.CLOSE_BACKFILL:
            found = self._bucket.vbuckets.get(number)
            if found is not None and self._boundaries.end_backfill(number):
                self._complete(found)
        elif code == TapOpaque.ENABLE_CHECKPOINT_SYNC:
            self._boundaries.follows_checkpoints = True
        elif code == TapOpaque.ENABLE_AUTO_NACK:
            self.understands_nacks = True
        elif code not in _KNOWN_OPAQUES:
            self.counters.num_unknown += 1

    def _set_state(self, message: TapMessage) -> None:
        number, specific = message.vbucket, message.specific
        if len(specific) != TAP_WORD_SPECIFIC.size:
            raise OutOfPlace(f"a vBucket's state in {len(specific)} bytes")
        (state,) = TAP_WORD_SPECIFIC.unpack(specific)
        if state not in _STATES:
            raise OutOfPlace(f"{state} is no state of a vBucket")
        self._check_unfilled(number)
        vbucket = self._bucket.vbuckets.get(number)
        if state == _ACTIVE and vbucket is not None and self._boundaries.promote(number):
            vbucket.complete_snapshot()
        self._bucket.set_state(number, VBucketState(state))

    def _open_checkpoint(self, message: TapMessage) -> None:
        checkpoint_id, rev = _checkpoint_id(message), 0
        if len(message.specific) == TAP_REVISION_SPECIFIC.size:
            (rev,) = TAP_REVISION_SPECIFIC.unpack(message.specific)
        vbucket = self._vbucket(message.vbucket)
        if vbucket.state == _ACTIVE:
            return
        outrank(vbucket, rev)
        before = self._boundaries.open_checkpoint(vbucket.id)
        if self._boundaries.start(vbucket.id, checkpoint_id):
            self._complete(vbucket, before)

    def _close_checkpoint(self, message: TapMessage) -> None:
        checkpoint_id = _checkpoint_id(message)
        vbucket = self._vbucket(message.vbucket)
        if vbucket.state != _ACTIVE and self._boundaries.end(vbucket.id, checkpoint_id):
            self._complete(vbucket, checkpoint_id)

    def _complete(self, vbucket: VBucket, checkpoint_id: int | None = None) -> None:
        if self._hub.is_filled(vbucket.id):
            return
        vbucket.complete_snapshot()
        if checkpoint_id:
            self._pushes.checkpoint_closed(vbucket, checkpoint_id)


def _checkpoint_id(message: TapMessage) -> int:
    if len(message.value) != TAP_CHECKPOINT_VALUE.size:
        raise OutOfPlace(f"a checkpoint's id in {len(message.value)} bytes")
    return int(TAP_CHECKPOINT_VALUE.unpack(message.value)[0])


_STATES = frozenset(VBucketState)
_KNOWN_OPAQUES = frozenset({*TapOpaque, 5, 6})

_ACTIONS: dict[int, Callable[[TapConsumer, TapMessage], None]] = {
    Opcode.TAP_MUTATION: TapConsumer._overwrite,
    Opcode.TAP_DELETE: TapConsumer._overwrite,
    Opcode.TAP_FLUSH: TapConsumer._flush,
    Opcode.TAP_OPAQUE: TapConsumer._opaque,
    Opcode.TAP_VBUCKET_SET: TapConsumer._set_state,
    Opcode.TAP_CHECKPOINT_START: TapConsumer._open_checkpoint,
    Opcode.TAP_CHECKPOINT_END: TapConsumer._close_checkpoint,
}
