"""What was answered for is held until it is on disk, and sent again when a node has lost it.

A node answers before it has written to disk. When it is killed and comes back it lacks the last
changes of each vBucket, and says so: the vBucket goes on in a new history (another vb_uuid). So
what was sent is held here, in generations. When a generation is full, each of its vBuckets is asked
how far it is; as soon as it is on disk up to there, in the same history, the generation is
released. A vBucket that has changed its history meanwhile gets all that is held of it once more, in
order.

Note: rows that lost, or were there already, are held as well. What they lost to may be
the same row of an earlier attempt, not on disk yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from uprmc.columnar.errors import ProtocolError, Refused
from uprmc.columnar.nodes import Nodes
from uprmc.columnar.requests import Piece
from uprmc.columnar.rounds import Requests, Rounds
from uprmc.columnar.write_options import WriteOptions
from uprmc.errors import RemoteProtocolError
from uprmc.protocol.binary import OBSERVE_SEQNO_REQUEST, decode_observe_seqno
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode, Status, status_text
from uprmc.remote.requests import NodeReply
from uprmc.remote.retry import Backoff, RetryPolicy

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

    Args:
        options: how patient to be.
        nodes: where the vBuckets are.
        rounds: asks them.
        send_again: see `SendAgain`.
        clock, sleep: as everywhere.

    Attributes:
        held_bytes: what is held.
    """

    def __init__(
        self,
        options: WriteOptions,
        nodes: Nodes,
        rounds: Rounds,
        send_again: SendAgain,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.held_bytes = 0
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
            As `Rounds.answers`.
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
            raise ProtocolError(f"no answer to OBSERVE_SEQNO of vb={min(missing)}")
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
        raise ProtocolError(str(error)) from None
