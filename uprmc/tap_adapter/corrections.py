"""Corrections: what a client was sent of a history that is over is overwritten by what holds now.

TAP cannot say "forget what is above seqno n". The client gets the current version of every key that
it may hold from above the branch, as ordinary messages; then its stream goes on from the branch.
The versions are read while the stream is not open, so the stream cannot send an older one later.

Versions are fetched a few at a time, so their memory has a limit. The keys are noted in the ring
again, with the seqnos of what was sent: the next branch may lie below those.

Source: TAP reference 10.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from uprmc.model import Item
from uprmc.tap_adapter.conversation import Conversation
from uprmc.tap_adapter.item_messages import version_message
from uprmc.tap_adapter.stream import TapStream

#: At most this many versions are fetched at a time.
FETCHED_AT_ONCE = 32


class Correction:
    """The corrections of one vBucket."""

    def __init__(
        self,
        conversation: Conversation,
        stream: TapStream,
        point: int,
        keys: list[bytes],
        done: Callable[[TapStream, bool], None],
    ) -> None:
        """See the class.

        Args:
            conversation: the client's.
            stream: of the vBucket.
            point: the seqno above which history has branched.
            keys: whose versions are to be sent.
            done: called when all have left, or with ``False`` when they cannot be had.
        """
        self._conversation = conversation
        self._stream = stream
        self._point = point
        self._keys = deque(keys)
        self._versions: deque[Item] = deque()
        self._done: Callable[[TapStream, bool], None] | None = done

    @property
    def is_ready(self) -> bool:
        """Whether there are versions to be sent."""
        return bool(self._versions)

    def cancel(self) -> None:
        """Send nothing more, and call nobody."""
        self._done = None
        self._keys.clear()
        self._versions.clear()

    def ask(self) -> None:
        """Fetch the next few versions."""
        keys = [self._keys.popleft() for _ in range(min(FETCHED_AT_ONCE, len(self._keys)))]
        self._conversation.upstream.fetch(self._stream.number, keys, self._came)

    def _came(self, versions: list[Item] | None) -> None:
        if self._done is None:
            return
        if versions is None:
            done, self._done = self._done, None
            done(self._stream, False)
            return
        self._versions.extend(versions)
        self._note(versions)
        if not versions:
            self._go_on()
        self._conversation.wake()

    def _note(self, versions: list[Item]) -> None:
        stream = self._stream
        highest = max((version.seqno for version in versions), default=0)
        stream.corrected_seqno = max(stream.corrected_seqno, highest, self._point)
        stream.cursor.sent = max(stream.cursor.sent, stream.corrected_seqno)
        self._conversation.known.ring.add(
            stream.number,
            self._point,
            stream.corrected_seqno,
            [version.key for version in versions],
        )

    def put_one(self, out: list[bytes]) -> int:
        """Append one message, return its bytes; `is_ready` holds, and an item may leave."""
        conversation, stream = self._conversation, self._stream
        send_queue = conversation.send_queue
        size = send_queue.release(out, ask=False)
        version = self._versions.popleft()
        sequence = send_queue.window.sequence
        message = version_message(version, stream.number, sequence, conversation.form)
        last_head = len(out)
        out.append(message)
        held = send_queue.placed(out, stream.number, 1, last_head, stream.mark, ask=False)
        if not self._versions:
            self._go_on()
        return size + len(message) - held

    def _go_on(self) -> None:
        if self._keys:
            self.ask()
        elif self._done is not None:
            done, self._done = self._done, None
            done(self._stream, True)
