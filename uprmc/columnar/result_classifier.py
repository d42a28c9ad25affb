"""What an answer means for a row: an error, or something that is as good as done.

| mode | answer | outcome |
|---|---|---|
| append-meta | data exists | conflict: the version that is there wins |
| insert | data exists | existed, if the same document is there; otherwise an error |
| a row with a CAS | data exists | existed, if the same document is there; otherwise a conflict |
| a row with a CAS that stores | not found | conflict |
| replace | not found | missing |
| delete, or a row that deletes | not found | missing |
| any | anything else but success | an error |

Note: between the refusal of an insert and the look at what took its place, that document
may have gone. Then the insert is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from uprmc.columnar.error_rows import VALUE_SHOWN_BYTES, ErrorRow
from uprmc.columnar.errors import ProtocolError
from uprmc.columnar.requests import Piece, cas_in, value_in
from uprmc.columnar.rounds import Requests, Rounds
from uprmc.columnar.write_options import WriteOptions
from uprmc.protocol.binary import GET_REPLY_EXTRAS, STORE_EXTRAS
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode, Status, status_name, status_text
from uprmc.remote.requests import NodeReply

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
    """Carries out pieces and says what came of each row.

    Args:
        options: how to write.
        rounds: carries out.
        fail: called with every row that cannot be written.
    """

    def __init__(
        self, options: WriteOptions, rounds: Rounds, fail: Callable[[ErrorRow], None]
    ) -> None:
        self._options = options
        self._rounds = rounds
        self._fail = fail

    def carry_out(self, piece: Piece, places: Sequence[int]) -> dict[int, str]:
        """Send requests of a piece, in their order; return what came of those not applied.

        The outcomes are names of counters of the report. Raises as `Rounds.answers`, and whatever
        `fail` raises.
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
                raise ProtocolError(f"an answer to GET with {len(extras)} bytes of extras")
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
