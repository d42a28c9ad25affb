"""Writing rows to the nodes: the one implementation behind the sinks, load and restore.

    writer = Writer(options, partition, attempt)
    for batch in batches:
        writer.write(batch)
    report = writer.finish()

A batch is cut into pieces; a piece is packed (`requests`), carried out (`rounds`),
judged, and kept until it is on disk if that was asked for.
Only then comes the next one, so the order of the rows is the order of the changes of every key.

Every row comes to something: `TaskReport` has the counters, and rows that cannot be written are
errors, never left out in silence.

Note: a writer that raised has done some of its rows, which is not taken back. A task
is repeated as a whole; every mode but insert of what others write too then ends in the same state.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from uprmc.columnar.errors import BadRow, NoVBucket, TooManyErrors
from uprmc.columnar.nodes import BulkNodes
from uprmc.columnar.report import (
    FIRST_ERRORS_MAX,
    VALUE_SHOWN_BYTES,
    ErrorFile,
    ErrorRow,
    TaskReport,
)
from uprmc.columnar.requests import PIECE_ROWS, Piece, cas_in, packed, pieces, value_in
from uprmc.columnar.write_options import WriteOptions
from uprmc.errors import RemoteProtocolError
from uprmc.protocol.binary import (
    GET_REPLY_EXTRAS,
    OBSERVE_SEQNO_REQUEST,
    STORE_EXTRAS,
    decode_observe_seqno,
)
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode, Status, status_name, status_text
from uprmc.remote.blocking import NodeConnection, RequestLine, run
from uprmc.remote.errors import Busy, ClientError, NodeNonsense, NodeUnreachable, Refused
from uprmc.remote.requests import REPEATED, NodeReply, Reader, Verdict, Window, verdict
from uprmc.remote.retry import Backoff, Left, RetryPolicy, until_done

# --- rounds --------------------------------------------------------------------------------------
# Requests until each is carried out or refused for good, in rounds, by the nodes that own them.
#
# After a round, what time or another node makes good goes into the next: temporary failures, a
# vBucket that has moved (the nodes are asked again what they have), and all that a lost connection
# left open.
#
# **The last request for a key wins, as if there had been no trouble.** When one is repeated, all
# later ones for the same key are repeated behind it, those that went well too. They are in the same
# piece, because a piece ends before the next begins.
#
# Note: limits count from the last progress, not from the beginning. A node that takes a few
# rows at a time is slow, not dead.


class Requests(NamedTuple):
    """What is asked."""

    frames: Sequence[bytes]  # whole requests; the opaque of each is its place
    # what orders them: equal keys keep their order. Empty = nothing is ordered.
    keys: Sequence[bytes]
    vbuckets: np.ndarray  # where each belongs


class WriteRounds:
    """Sends requests in rounds until each has its final answer.

    The nodes' connections are used for nothing else meanwhile.
    """

    def __init__(
        self,
        options: WriteOptions,
        nodes: BulkNodes,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.repeated = 0  # requests that were sent once more
        self._options = options
        self._nodes = nodes
        self._clock = clock
        self._sleep = sleep

    def answers(
        self,
        requests: Requests,
        places: Sequence[int] | None = None,
        read: Reader[int] | None = None,
    ) -> dict[int, int]:
        """Return what was answered, by place; what is quiet about success is not in it.

        Args:
            requests, places: what is asked; places ascending, ``None`` = all.
            read: makes a number of an answer; temporary statuses must be returned as they are.

        Raises:
            NodeUnreachable, NoVBucket, Refused: there was no progress for too long.
            NodeNonsense, LoginFailed, TlsFailed, VBucketsChanged: this will not get better.
        """
        todo: Sequence[int] = range(len(requests.frames)) if places is None else places
        answers: dict[int, int] = {}
        reason: ClientError | None = None

        def ask(todo: Sequence[int]) -> Left:
            nonlocal reason
            self.repeated += len(todo) if reason else 0
            again, reason, look = self._round(requests, todo, answers, read)
            left = _with_later_ones(requests.keys, todo, again) if again else ()
            for place in left:
                answers.pop(place, None)
            return Left(left, len(again), look)

        options = self._options
        policy = RetryPolicy(
            Backoff(options.retry_backoff_s, options.retry_backoff_max_s),
            retries=options.retries,
            patience_s=options.retry_deadline_s,
        )
        if todo and until_done(todo, ask, self._look_around, policy, self._clock, self._sleep):
            assert reason is not None
            raise reason
        return answers

    def _round(
        self,
        requests: Requests,
        todo: Sequence[int],
        answers: dict[int, int],
        read: Reader[int] | None,
    ) -> tuple[set[int], ClientError, bool]:
        """Ask once. Return what is to be repeated, why, and whether to ask for owners again."""
        lines, again, why = self._lines(requests, todo, read)
        look = bool(again)
        try:
            run(lines, self._options.access.read_timeout_s)
        except BaseException:
            self._nodes.close()  # answers are still on their way
            raise
        for line in lines:
            for place, answer in line.window.answers.items():
                if answer in REPEATED:
                    again.add(place)
                    look = look or verdict(answer) is Verdict.ELSEWHERE
                    why = why or _refused(line.connection.place, answer)
                else:
                    answers[place] = answer
            again.update(line.window.unsettled())
            if line.lost is not None:
                self._nodes.drop(line.connection.place)
                if not isinstance(line.lost, NodeUnreachable):
                    raise line.lost
                why, look = line.lost, True
        return again, why or NodeUnreachable("nothing was sent"), look

    def _lines(
        self, requests: Requests, todo: Sequence[int], read: Reader[int] | None
    ) -> tuple[list[RequestLine[int]], set[int], ClientError | None]:
        """Spread requests over the nodes; return those without a node, too, and why."""
        options = self._options
        lines: list[RequestLine[int]] = []
        homeless: set[int] = set()
        why: ClientError | None = None
        for place, order in self._by_owner(requests.vbuckets, todo).items():
            try:
                if not place:
                    raise _homeless(requests.vbuckets, order)
                connection = self._nodes.connection(place)
            except (NodeUnreachable, Busy, NoVBucket) as error:
                homeless.update(order)
                why = error
                continue
            limits = options.window, options.window_bytes
            window = Window(requests.frames, order, *limits, read, quiet=True)
            lines.append(RequestLine(connection, window))
        return lines, homeless, why

    def _by_owner(self, vbuckets: np.ndarray, todo: Sequence[int]) -> dict[str, Sequence[int]]:
        owners = self._nodes.owners
        distinct = np.unique(vbuckets if len(todo) == len(vbuckets) else vbuckets[list(todo)])
        places = {owners.get(int(vbucket), "") for vbucket in distinct}
        if len(places) == 1:
            return {places.pop(): todo}
        found: dict[str, list[int]] = {}
        numbers = vbuckets.tolist()
        for place in todo:
            found.setdefault(owners.get(numbers[place], ""), []).append(place)
        return dict(found)

    def _look_around(self) -> None:
        with suppress(NodeUnreachable, Busy):  # the next round tells, if it is still so
            self._nodes.refresh()


def _with_later_ones(keys: Sequence[bytes], todo: Sequence[int], again: set[int]) -> Sequence[int]:
    """Return what is to be repeated together with all later requests for the same keys."""
    if not keys or len(again) == len(todo):
        return sorted(again)
    repeated: set[bytes] = set()
    found: list[int] = []
    for place in todo:
        if place in again or keys[place] in repeated:
            repeated.add(keys[place])
            found.append(place)
    return found


def _refused(place: str, status: int) -> Refused:
    return Refused(f"{place} keeps answering: {status_text(status)}")


def _homeless(vbuckets: np.ndarray, order: Sequence[int]) -> NoVBucket:
    return NoVBucket(f"vb={int(vbuckets[order[0]])} is active on no node that answers")


# --- result classifier ----------------------------------------------------------------------------
# What an answer means for a row: an error, or something that is as good as done.
#
# | mode | answer | outcome |
# |---|---|---|
# | append-meta | data exists | conflict: the version that is there wins |
# | insert | data exists | existed, if the same document is there; otherwise an error |
# | a row with a CAS | data exists | existed, if the same document is there; otherwise a conflict |
# | a row with a CAS that stores | not found | conflict |
# | replace | not found | missing |
# | delete, or a row that deletes | not found | missing |
# | any | anything else but success | an error |
#
# Note: between the refusal of an insert and the look at what took its place, that document
# may have gone. Then the insert is tried again.


#: Attempts at an insert whose key is taken one moment and free the next.
INSERT_TRIES = 5

#: Documents that are compared at a time: their values are all on their way to us.
COMPARED_MAX = 64

_DELETING = frozenset((Opcode.DELETEQ, Opcode.DELQ_WITH_META))

# What comparing tells; no statuses of the wire.
_SAME, _OTHER = 0x10000, 0x10001

#: What a row that names a CAS is told if its document has another one.
_CONFLICTS = frozenset((_OTHER, Status.KEY_EXISTS, Status.KEY_NOT_FOUND))


class ResultClassifier:
    """Carries out pieces and says what came of each row; `fail` gets those not to be written."""

    def __init__(
        self, options: WriteOptions, rounds: WriteRounds, fail: Callable[[ErrorRow], None]
    ) -> None:
        self._options = options
        self._rounds = rounds
        self._fail = fail

    def carry_out(self, piece: Piece, places: Sequence[int]) -> dict[int, str]:
        """Send requests of a piece, in their order; return what came of those not applied.

        The outcomes are names of counters of the report. Raises as `WriteRounds.answers`, and
        whatever `fail` raises.
        """
        outcomes: dict[int, str] = {}
        for part in self._parts(piece, places):
            statuses = self._rounds.answers(_requests(piece), part)
            if self._compares:
                statuses = self._looked_at(piece, statuses)
            for place, status in sorted(statuses.items()):
                outcomes[place] = self._outcome(piece, place, status)
        return outcomes

    @property
    def _compares(self) -> bool:
        """Tell whether a refusal may come from what an earlier attempt has written."""
        return self._options.mode == "insert" or self._options.cas_column is not None

    def _parts(self, piece: Piece, places: Sequence[int]) -> list[Sequence[int]]:
        """Cut so that a repeated insert or swap does not meet a later one of the same key."""
        keys = piece.keys
        if not self._compares or len(set(keys)) == len(keys):
            return [places]
        parts: list[Sequence[int]] = []
        seen: set[bytes] = set()
        begin = 0
        for number, place in enumerate(places):
            if keys[place] in seen:
                parts.append(places[begin:number])
                begin, seen = number, set()
            seen.add(keys[place])
        return [*parts, places[begin:]]

    def _outcome(self, piece: Piece, place: int, status: int) -> str:
        mode, opcode = self._options.mode, piece.frames[place][1]
        if status == _SAME:
            return "existed"
        if status == Status.KEY_NOT_FOUND and opcode in _DELETING:
            return "missing"
        if cas_in(piece.frames[place]):
            if status in _CONFLICTS and self._options.on_conflict == "count":
                return "conflicts"
        elif status == Status.KEY_NOT_FOUND and opcode == Opcode.REPLACEQ:
            return "missing"
        if status == Status.KEY_EXISTS and mode == "append-meta" and not self._options.force:
            return "conflicts"
        self._fail(_error_row(piece, place, status))
        return "errors"

    # --- inserts and swaps that find another document ---------------------------------------------

    def _looked_at(self, piece: Piece, statuses: dict[int, int]) -> dict[int, int]:
        """Replace `KEY_EXISTS` by what the comparison tells."""
        found = dict(statuses)
        for _ in range(INSERT_TRIES):
            taken = sorted(
                place
                for place, status in found.items()
                if status == Status.KEY_EXISTS and piece.frames[place][1] not in _DELETING
            )
            if not taken:
                break
            gone: list[int] = []
            for begin in range(0, len(taken), COMPARED_MAX):
                for place, result in self._compared(piece, taken[begin : begin + COMPARED_MAX]):
                    if result == Status.KEY_NOT_FOUND and self._options.mode == "insert":
                        gone.append(place)
                    else:
                        found[place] = result
            if gone:
                for place in gone:
                    del found[place]
                found.update(self._rounds.answers(_requests(piece), gone))
        return found

    def _compared(self, piece: Piece, places: list[int]) -> list[tuple[int, int]]:
        """Return of each whether the document that is there is the one to be inserted."""

        def read(number: int, reply: NodeReply) -> int:
            extras = reply.extras
            if reply.status:
                return reply.status
            frame = piece.frames[places[number]]
            if len(extras) != GET_REPLY_EXTRAS.size:
                raise NodeNonsense(f"an answer to GET with {len(extras)} bytes of extras")
            (flags,) = GET_REPLY_EXTRAS.unpack(extras)
            own_flags, _ = STORE_EXTRAS.unpack_from(frame, HEADER_BYTES)
            return _SAME if flags == own_flags and reply.value == value_in(frame) else _OTHER

        frames = [
            RequestFrame(Opcode.GET, piece.keys[place], vbucket=int(piece.vbuckets[place])).encode(
                number
            )
            for number, place in enumerate(places)
        ]
        asked = Requests(frames, (), piece.vbuckets[places])
        answers = self._rounds.answers(asked, read=read)
        return [(places[number], result) for number, result in sorted(answers.items())]


def _requests(piece: Piece) -> Requests:
    return Requests(piece.frames, piece.keys, piece.vbuckets)


def _error_row(piece: Piece, place: int, status: int) -> ErrorRow:
    if cas_in(piece.frames[place]) and status in _CONFLICTS:
        gone = status == Status.KEY_NOT_FOUND
        code, status = "CONFLICT", Status.KEY_NOT_FOUND if gone else Status.KEY_EXISTS
        reason = "the document is gone" if gone else "the document has another CAS"
    elif status in (_OTHER, Status.KEY_EXISTS):
        code, status = "EXISTS", Status.KEY_EXISTS
        reason = "another document has this key"
    else:
        code, reason = "REFUSED", f"the node answers: {status_text(status)}"
        if status == Status.ACCESS_DENIED:
            with_meta = "WITH_META" in Opcode(piece.frames[place][1]).name
            reason += f": needs {'replicate' if with_meta else 'write'}"
    return ErrorRow(
        int(piece.rows[place]),
        code,
        reason,
        piece.keys[place],
        value_in(piece.frames[place])[:VALUE_SHOWN_BYTES],
        int(piece.vbuckets[place]),
        status_name(status),
    )


# --- persisting -----------------------------------------------------------------------------------
# What was answered for is held until it is on disk, and sent again when a node has lost it.
#
# A node answers before it has written to disk. When it is killed and comes back it lacks the last
# changes of each vBucket, and says so: the vBucket goes on in a new history (another vb_uuid). So
# what was sent is held here, in generations. When a generation is full, each of its vBuckets is
# asked how far it is; as soon as it is on disk up to there, in the same history, the generation is
# released. A vBucket that has changed its history meanwhile gets all that is held of it once more,
# in order.
#
# Note: rows that lost, or were there already, are held as well. What they lost to may be
# the same row of an earlier attempt, not on disk yet.


#: What is sent before asking how much of it is on disk.
GENERATION_BYTES = 8 * 1024 * 1024

#: What is kept at most: then writing waits for the disks.
HELD_BYTES_MAX = 64 * 1024 * 1024

#: What a request costs in memory beside its key and value, about.
_FRAME_BYTES = 150

_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.25

#: Sends the requests of a piece at these places once more, and judges what is answered.
SendAgain = Callable[[Piece, list[int]], None]


@dataclass
class _Generation:
    """What was sent between two looks."""

    pieces: list[Piece] = field(default_factory=list)  # in the order in which they were sent
    bytes: int = 0  # that it takes here
    # up to where each vBucket must be on disk; ``None`` = to be asked.
    targets: dict[int, int | None] = field(default_factory=dict)

    def close(self) -> None:
        for piece in self.pieces:
            self.targets.update(dict.fromkeys(np.unique(piece.vbuckets).tolist()))


class UnpersistedRows:
    """Rows that nodes have answered and may not have on disk.

    Made before the first row is sent.
    """

    def __init__(
        self,
        options: WriteOptions,
        nodes: BulkNodes,
        rounds: WriteRounds,
        send_again: SendAgain,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.held_bytes = 0  # what is held
        self._options = options
        self._nodes = nodes
        self._rounds = rounds
        self._send_again = send_again
        self._clock = clock
        self._sleep = sleep
        self._open = _Generation()
        self._closed: list[_Generation] = []
        self._persisted: dict[int, int] = {}
        self._uuids = {number: standing.log[0][0] for number, standing in nodes.standings().items()}

    def hold(self, piece: Piece) -> None:
        """Keep what was sent and answered; waits for the disks when too much is held."""
        size = piece.bytes + _FRAME_BYTES * len(piece.frames)
        self._open.pieces.append(piece)
        self._open.bytes += size
        self.held_bytes += size
        if self._open.bytes >= GENERATION_BYTES:
            self._close()
            self._look()
            self._wait_until(HELD_BYTES_MAX)

    def settle(self) -> None:
        """Return when all that is held is on disk.

        Raises:
            Refused: the disks do not get on.
            As `WriteRounds.answers`.
        """
        if self._open.pieces:
            self._close()
        self._wait_until(0)

    def _close(self) -> None:
        self._open.close()
        self._closed.append(self._open)
        self._open = _Generation()

    def _wait_until(self, held_bytes: int) -> None:
        wait_s = self._options.retry_deadline_s
        policy = RetryPolicy(Backoff(_PAUSE_S, _PAUSE_MAX_S), self._clock(), patience_s=wait_s)
        while self._closed and self.held_bytes > held_bytes:
            if self._look():
                policy.good(self._clock())
            if self.held_bytes <= held_bytes:
                return
            pause_s = policy.wait_s(self._clock())
            if pause_s is None:
                raise Refused(f"nothing more was written to disk for {wait_s:g} s")
            self._sleep(pause_s)

    # --- one look -------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Ask how far the vBuckets are; return whether anything has changed."""
        numbers = sorted({number for each in self._closed for number in each.targets})
        seen = self._observed(numbers)
        if missing := set(numbers).difference(seen):
            raise NodeNonsense(f"no answer to OBSERVE_SEQNO of vb={min(missing)}")
        changed = {number for number in numbers if seen[number][0] != self._uuids.get(number)}
        for number in numbers:
            uuid, persisted, current = seen[number]
            if number in changed:
                self._uuids[number] = uuid
            else:
                self._reached(number, persisted, current)
        self._repeat(changed)
        self._release()
        persisted_now = {number: seen[number][1] for number in numbers}
        moved = bool(changed) or any(
            self._persisted.get(number) != seqno for number, seqno in persisted_now.items()
        )
        self._persisted = persisted_now
        return moved

    def _reached(self, number: int, persisted: int, current: int) -> None:
        for generation in self._closed:
            if number not in generation.targets:
                continue
            target = generation.targets[number]
            if target is None:
                target = generation.targets[number] = current
            if target <= persisted:
                del generation.targets[number]

    def _repeat(self, vbuckets: set[int]) -> None:
        """Send all again that is held of some vBuckets, oldest first."""
        if not vbuckets:
            return
        for generation in self._closed:
            for piece in generation.pieces:
                theirs = np.flatnonzero(np.isin(piece.vbuckets, list(vbuckets))).tolist()
                places = [place for place in theirs if piece.outcomes.get(place) != "errors"]
                if places:
                    self._send_again(piece, places)
                    again = np.unique(piece.vbuckets[places]).tolist()
                    generation.targets.update(dict.fromkeys(again))

    def _release(self) -> None:
        kept = [generation for generation in self._closed if generation.targets]
        self.held_bytes -= sum(each.bytes for each in self._closed if not each.targets)
        self._closed = kept

    def _observed(self, numbers: list[int]) -> dict[int, tuple[int, int, int]]:
        """Return of each vBucket its history, what is on disk and what there is."""
        seen: dict[int, tuple[int, int, int]] = {}

        def read(place: int, reply: NodeReply) -> int:
            if not reply.status:
                seen[numbers[place]] = _seen(reply.value)
            return reply.status

        frames = [
            RequestFrame(
                Opcode.OBSERVE_SEQNO,
                value=OBSERVE_SEQNO_REQUEST.pack(self._uuids.get(number, 0)),
                vbucket=number,
            ).encode(place)
            for place, number in enumerate(numbers)
        ]
        asked = Requests(frames, (), np.array(numbers, np.uint16))
        unknown: list[int] = []
        for place, status in self._rounds.answers(asked, read=read).items():
            if status == Status.KEY_NOT_FOUND:  # a history that the node knows nothing of
                unknown.append(numbers[place])
            elif status:
                why = status_text(status)
                raise Refused(f"vb={numbers[place]} does not tell what is on disk: {why}")
        if unknown:
            for number, standing in self._nodes.standings(unknown).items():
                uuid = standing.log[0][0]
                self._uuids.pop(number, None)
                seen[number] = (uuid, 0, standing.high_seqno)
        return seen


def _seen(value: bytes) -> tuple[int, int, int]:
    try:
        return decode_observe_seqno(value)[:3]
    except RemoteProtocolError as error:
        raise NodeNonsense(str(error)) from None


# --- writing --------------------------------------------------------------------------------------


#: With a rate, what is written at a time takes this part of a second.
RATE_STEP_S = 0.1


class Writer:
    """Writes the rows of one task.

    One thread at a time; it connects when there is a row to send. `name_row` says of a row's number
    in the task where it came from, for messages.
    """

    def __init__(
        self,
        options: WriteOptions,
        partition: int = 0,
        attempt: int = 0,
        name_row: Callable[[int], str] | None = None,
        *,
        nodes: Callable[..., BulkNodes] = BulkNodes,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        # what came of the rows so far
        self.report = TaskReport(partition=partition, attempt=attempt, dry_run=options.dry_run)
        self._options = options
        self._name_row = name_row
        self._make_nodes = nodes
        self._clock, self._sleep = clock, sleep
        self._began = clock()
        self._now = now
        self._item_limit_bytes: int | None = None
        self._pace = _Pace(options.rate, clock, sleep)
        self._file = (
            ErrorFile(options.errors_path, partition, attempt)
            if options.on_error == "file" and options.errors_path
            else None
        )
        self._nodes: BulkNodes | None = None
        self._rounds: WriteRounds | None = None
        self._classifier: ResultClassifier | None = None
        self._unpersisted: UnpersistedRows | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows, after all those that were written before.

        Raises:
            BadSchema: columns are missing or have the wrong type; nothing of the batch was written.
            BadRow, TooManyErrors: a row, or one too many, cannot be written.
            NodeUnreachable, NoVBucket, Refused, ...: the nodes do not take it, for too long.
        """
        for part in pieces(batch, self._pace.rows_max):
            self._pace.wait(part.num_rows)
            vbuckets = 0 if self._options.dry_run else self._connected().vbuckets
            limit = self._item_limit_bytes
            piece = packed(self._options, part, self.report.rows, vbuckets, self._now(), limit)
            self.report.rows += part.num_rows
            self.report.skipped += piece.skipped
            self.report.bytes += piece.bytes
            for error in piece.errors:
                self._fail(error)
            if self._options.dry_run:
                self.report.applied += len(piece.frames)
            elif piece.frames:
                self._carry_out(piece)

    def reject(self, row: ErrorRow) -> None:
        """Count a row that was none before it came here; raises as `write` does of a bad row."""
        self.report.rows += 1
        self._fail(row)

    def finish(self) -> TaskReport:
        """Return what came of it, when all of it is done; raises as `write`."""
        if self._unpersisted is not None:
            self._unpersisted.settle()
        self._hang_up()
        if self._file is not None:
            self._file.close()
            self.report.error_file = self._file.path
        if self._rounds is not None:
            self.report.retried = self._rounds.repeated
        self.report.seconds = self._clock() - self._began
        return self.report

    def abort(self) -> None:
        """Give up. What was written stays, and so does the file of error rows."""
        self._hang_up()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    # --- carrying out ---------------------------------------------------------------------------

    def _connected(self) -> BulkNodes:
        if self._nodes is None:
            options = self._options
            nodes = self._nodes = self._make_nodes(options.access)
            self._item_limit_bytes = _item_limit(nodes)
            rounds = self._rounds = WriteRounds(options, nodes, self._clock, self._sleep)
            self._classifier = ResultClassifier(options, rounds, self._fail)
            if options.durability == "persist":
                self._unpersisted = UnpersistedRows(
                    options, nodes, rounds, self._send_again, self._clock, self._sleep
                )
        return self._nodes

    def _hang_up(self) -> None:
        if self._nodes is not None:
            self._nodes.close()

    def _carry_out(self, piece: Piece) -> None:
        assert self._classifier is not None
        piece.outcomes = self._classifier.carry_out(piece, range(len(piece.frames)))
        self.report.applied += len(piece.frames) - len(piece.outcomes)
        for outcome, count in Counter(piece.outcomes.values()).items():
            if outcome != "errors":  # counted as they were found
                setattr(self.report, outcome, getattr(self.report, outcome) + count)
        if self._unpersisted is not None:
            self._unpersisted.hold(piece)

    def _send_again(self, piece: Piece, places: list[int]) -> None:
        """Repeat what a node has lost. The rows were counted; only new errors count."""
        assert self._classifier is not None
        self.report.resent += len(places)
        for place, outcome in self._classifier.carry_out(piece, places).items():
            if outcome == "errors":
                counted = piece.outcomes.get(place, "applied")
                setattr(self.report, counted, getattr(self.report, counted) - 1)
                piece.outcomes[place] = outcome

    def _fail(self, error: ErrorRow) -> None:
        """Count a row that cannot be written, and do with it what the options say."""
        options, report = self._options, self.report
        text = error.text(self._name_row)
        report.errors += 1
        if len(report.first_errors) < FIRST_ERRORS_MAX:
            report.first_errors.append(text)
        if options.on_error == "fail":
            raise BadRow(text)
        if self._file is not None:
            self._file.write(error, self._name_row)
        if options.max_errors is not None and report.errors > options.max_errors:
            raise TooManyErrors(f"more than {options.max_errors} rows failed; the last: {text}")


def _item_limit(nodes: BulkNodes) -> int | None:
    """Return how long key and value together may be, by the most generous node."""
    limits = [
        nodes.at(place, _settings).get("item_size_max", "")
        for place in sorted(set(nodes.owners.values()))
    ]
    return max((int(each) for each in limits if each.isdigit()), default=None)


def _settings(connection: NodeConnection) -> dict[str, str]:
    return connection.statistics("settings")


class _Pace:
    """Keeps a writer to a number of rows per second; time that was not used is not saved up."""

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.rows_max = PIECE_ROWS
        if rate is not None:
            self.rows_max = max(1, min(PIECE_ROWS, int(rate * RATE_STEP_S)))
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._due_s = 0.0

    def wait(self, rows: int) -> None:
        """Wait until this number of rows may be written."""
        if self._rate is None:
            return
        now = self._clock()
        if self._due_s > now:
            self._sleep(self._due_s - now)
        self._due_s = max(self._due_s, now) + rows / self._rate
