"""Judges of TAP streams: rules of the conversation, and whether what is told ever was so.

They share no code with `uprmc`; the rules are those of the TAP reference, the truth is
`truth`. A client calls them with every message, and with every answer that it sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim import tap_codec as tap
from tests.sim.codec import Version
from tests.sim.judges import complain
from tests.sim.tap_codec import Message
from tests.sim.truth import Histories

if TYPE_CHECKING:
    from tests.sim.tap_client import TapKind

_ITEMS = (tap.MUTATION, tap.DELETE)
_CHECKPOINTS = (tap.START, tap.END)
_COMMANDS = (tap.OPAQUE, tap.VBUCKET_SET, tap.FLUSH)
_GATES = (tap.OPAQUE, tap.FLUSH)

#: An OPAQUE uses up two numbers, and the message that fills the window may be one.
_NUMBERS_OF_A_COMMAND = 2

Fingerprint = tuple[bool, int, int, bytes | None, int, int]


class VersionBook:
    """Every version of every document that any node ever held, without its place in history."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories
        self._known: dict[tuple[int, bytes], set[Fingerprint]] = {}
        self._read: dict[tuple[int, int], int] = {}

    def judge(self, who: str, message: Message, *, values: bool) -> None:
        """Complain about an item that never was so.

        A deletion says only that there is none, and there was none before the first version.
        """
        if message.opcode == tap.DELETE:
            return
        told = _fingerprint_of(message, values=values)
        place = message.place, message.key
        if told not in self._known.get(place, ()):
            self._read_on(message.place)
        if told not in self._known.get(place, ()):
            near = [each for each in self._known.get(place, ()) if each[2] == message.cas]
            complain(f"{who}: {message} never was so; with that CAS there is {near}")

    def _read_on(self, number: int) -> None:
        for (vbucket, uuid), branch in self._histories.branches.items():
            if vbucket == number:
                versions = branch.versions_from(self._read.get((number, uuid), 0))
                self._read[number, uuid] = self._read.get((number, uuid), 0) + len(versions)
                for version in versions:
                    self._note(number, version)

    def _note(self, number: int, version: Version) -> None:
        known = self._known.setdefault((number, version.key), set())
        if not version.deleted:
            numbers = version.flags, version.expiry
            known.add((False, version.rev, version.cas, version.value, *numbers))
            known.add((True, version.rev, version.cas, None, *numbers))


def _fingerprint_of(message: Message, *, values: bool) -> Fingerprint:
    value = message.value if values else None
    return (not values, message.rev, message.cas, value, message.true_flags, message.expiry)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the adapter is set to, in numbers of messages."""

    interval: int
    window: int

    @property
    def unacked(self) -> int:
        """So far may the newest message be from the last one that was answered."""
        return self.interval * self.window + _NUMBERS_OF_A_COMMAND


class ConversationJudge:
    """What may be sent when, on one connection."""

    def __init__(
        self, who: str, kind: TapKind, limits: Limits, numbers: set[int] | None, *, takeover: bool
    ) -> None:
        self.idle_ok = True  # whether the newest message asked for an answer
        self.messages = 0  # so many came
        # tells whether something was taken back in a vBucket since the connection began; older
        # states are right again then, and what is under way is older, too
        self.branched: Callable[[int], bool] = lambda number: False
        self._who = who
        self._kind = kind
        self._limits = limits
        self._numbers = numbers
        self._takeover = takeover
        self._last = 0
        self._answered = 0
        self._unacked: deque[Message] = deque()
        self._refused: set[int] = set()  # commands, which are told again then
        self._greetings = self._due_first()
        self._newest: dict[tuple[int, bytes], Message] = {}

    def _due_first(self) -> list[int]:
        due = [tap.AUTO_NACK] if self._kind.acks else []
        return [*due, tap.CHECKPOINT_SYNC] if self._kind.asks(tap.CHECKPOINT) else due

    def _fail(self, message: Message, why: str) -> None:
        complain(f"{self._who}: {message}: {why}")

    # --- messages ---------------------------------------------------------------------------------

    def came(self, message: Message) -> None:
        """Judge a message that has just arrived."""
        self.messages += 1
        self._judge_number(message)
        self._judge_greeting(message)
        self._judge_place(message)
        self._judge_flags(message)
        if self._kind.acks:
            self._judge_window(message)
            self._judge_gates(message)
            self._unacked.append(message)
            self.idle_ok = message.wants_answer
        if message.opcode in _ITEMS:
            self._judge_order(message)

    def _judge_number(self, message: Message) -> None:
        if not message.sequence or message.sequence <= self._last:
            self._fail(message, f"after {self._last}")
        self._last = message.sequence

    def _judge_greeting(self, message: Message) -> None:
        if self._greetings:
            command = self._greetings.pop(0)
            if (message.opcode, message.word, message.place) != (tap.OPAQUE, command, 0):
                self._fail(message, f"command {command} should come first")
        elif message.opcode == tap.OPAQUE:
            wanted = {tap.INITIAL, tap.CLOSE_BACKFILL, *self._refused}
            if self._kind.closed_only:
                wanted.add(tap.OPEN_CHECKPOINT)
            if message.word not in wanted:
                self._fail(message, "nobody asked for that")

    def _judge_place(self, message: Message) -> None:
        wide = message.opcode == tap.OPAQUE and message.word in (tap.AUTO_NACK, tap.CHECKPOINT_SYNC)
        wide = wide or message.opcode == tap.FLUSH
        if not wide and self._numbers is not None and message.place not in self._numbers:
            self._fail(message, f"only {sorted(self._numbers)} were asked for")
        if message.opcode in _CHECKPOINTS and not self._kind.asks(tap.CHECKPOINT):
            self._fail(message, "checkpoints were not asked for")
        if message.opcode == tap.VBUCKET_SET and not self._takeover:
            self._fail(message, "nobody takes over")
        if message.opcode == tap.FLUSH and (self._takeover or self._kind.dumps):
            self._fail(message, "who leaves with what there is has nothing flushed")

    def _judge_flags(self, message: Message) -> None:
        kind = self._kind
        due = message.opcode in (*_COMMANDS, *_CHECKPOINTS)
        due = due or not message.sequence % self._limits.interval
        if message.wants_answer and not kind.acks:
            self._fail(message, "this client does not answer")
        if kind.acks and due and not message.wants_answer:
            self._fail(message, "it must be answered, and does not say so")
        if message.opcode != tap.MUTATION:
            return
        if bool(message.flags & tap.NETWORK_ORDER) != kind.asks(tap.BYTE_ORDER):
            self._fail(message, "the byte order is not the one that was asked for")
        if bool(message.flags & tap.NO_VALUE) != kind.asks(tap.KEYS_ONLY):
            self._fail(message, "values are wanted or not")
        if message.flags & tap.NO_VALUE and message.value:
            self._fail(message, "it has a value")

    def _judge_window(self, message: Message) -> None:
        """Commands may go beyond it: there are few, and nothing else follows them."""
        if (
            message.opcode not in _COMMANDS
            and message.sequence - self._answered > self._limits.unacked
        ):
            self._fail(message, f"{self._answered} was answered last; {self._limits}")

    def _judge_gates(self, message: Message) -> None:
        if message.opcode in _COMMANDS:
            if message.opcode == tap.OPAQUE and message.word == tap.CLOSE_BACKFILL:
                self._judge_all_answered(message)
            return
        for earlier in self._unacked:
            if earlier.opcode in _GATES:
                self._fail(message, f"{earlier} is not answered yet")
            if earlier.opcode in _CHECKPOINTS and message.opcode in _ITEMS:
                self._fail(message, f"{earlier} is not answered yet")
        if message.opcode == tap.END:
            self._judge_all_answered(message)

    def _judge_all_answered(self, message: Message) -> None:
        """What ends something waits until all of it was answered."""
        for earlier in self._unacked:
            if earlier.place == message.place and earlier.opcode != tap.OPAQUE:
                self._fail(message, f"{earlier} is not answered yet")

    def _judge_order(self, message: Message) -> None:
        """Nobody is told of an older state after a newer one; see `begun_again` and `branched`."""
        key = message.place, message.key
        before, self._newest[key] = self._newest.get(key), message
        if before is None or not message.cas or self.branched(message.place):
            return
        if message.cas < before.cas and message.rev < before.rev:
            self._fail(message, f"{before} came before")

    # --- what makes older states right again ------------------------------------------------------

    def begun_again(self, number: int | None) -> None:
        """A vBucket (``None`` = any) is told anew."""
        self._newest = {
            place: message
            for place, message in self._newest.items()
            if number is not None and place[0] != number
        }

    # --- answers ----------------------------------------------------------------------------------

    def answered(self, message: Message, status: int) -> None:
        """Take note of an answer, when it goes out."""
        self._answered = max(self._answered, message.sequence)
        while self._unacked and self._unacked[0].sequence <= message.sequence:
            self._unacked.popleft()
        if status != tap.OK:
            self._refused |= {message.word} if message.opcode == tap.OPAQUE else set()
            self.begun_again(None)  # its vBuckets are told again from before it
