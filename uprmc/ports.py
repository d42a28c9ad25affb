"""The doors between rules and the outside world; the store is one more (`storage.interface`).

`Clock` and `Entropy` are what rules may ask for; real ones live in `server.world`, simulated ones
in ``tests/sim``. `Session` is the other direction: what the outside may do with one peer's
conversation, whatever protocol it speaks. Adapters and the simulator are written once against it.
`Dial` makes connections to other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where rules get the time from."""

    def now(self) -> float:
        """Return Unix time in seconds. It may jump both ways; use it for dates only.

        Dates are expiry times, CAS values and what people read.
        """

    def monotonic(self) -> float:
        """Return seconds since some fixed moment. It never goes back; use it to measure."""


class Entropy(Protocol):
    """Where rules get identifiers from."""

    def uuid48(self) -> int:
        """Return a random number in ``1 .. 2**48 - 1`` to name a branch of history."""


class Session(Protocol):
    """One peer's conversation, without a socket.

    After each call of any method the adapter looks at the attributes and at `data_to_send`.

    Attributes:
        closing: hang up as soon as everything from `data_to_send` has been written; no more input
            is wanted.
        input_full: do not read from the peer for now: unprocessed input or unsent output is at its
            limit. Draining `data_to_send` (or the session's own wake-up) clears it.
        successor: the session that carries the conversation on, once the peer has shown what it
            speaks; ``None`` as long as it is this one. It has taken over input and output.
    """

    closing: bool
    input_full: bool
    successor: Session | None

    def receive_data(self, data: bytes) -> None:
        """Take the next bytes from the peer, cut anywhere. Never raises for what a peer sends."""

    def tick(self, now: float) -> None:
        """Learn the (monotonic) time in seconds: time-outs and keep-alives happen here."""

    def data_to_send(self, budget: int) -> list[bytes]:
        """Return pieces to write, in order, about `budget` bytes at most (one piece may overshoot).

        Pulling is the backpressure: what a slow peer does not take is not produced. An empty list
        means there is nothing to send now; the session calls the wake-up it was given when that
        changes by itself.
        """

    def buffered(self) -> tuple[int, int]:
        """Return how many bytes of input are kept, and of replies that nobody has pulled."""

    def connection_lost(self) -> None:
        """The peer is gone: let go of everything held for it."""


class Answering(Session, Protocol):
    """A session that can often say at once all that there is to say.

    Attributes:
        answers: it can indeed, so `answer` is worth a call.
    """

    answers: bool

    def answer(self, data: bytes) -> bytes | None:
        """Take the next bytes as `receive_data` does; call it while the peer takes replies.

        Returns:
            the replies, perhaps none, if that is all: no attribute has changed, and nothing is
            buffered. ``None`` means that the session must be looked at as after `receive_data`.
        """


class Draining(Session, Protocol):
    """A session that knows when a pull was its last for now.

    Attributes:
        drained: the last `data_to_send` has left nothing, and the wake-up is called before there is
            more. So there is no need to pull once more just to find nothing.
    """

    @property
    def drained(self) -> bool: ...


class Dialled(Protocol):
    """A connection that was asked for, made already or not."""

    def abandon(self) -> None:
        """End it: no session is made any more; one that was made learns that it is lost."""


#: Makes the session of a connection, as soon as there is one, from the call that wakes it.
MakeSession = Callable[[Callable[[], None]], Session]

#: Dials HOST:PORT. `make_session` is called once at most. `failed` is told why no connection came
#: about, or why one ended, if the transport knows better than the session; then before the
#: session's `connection_lost`.
Dial = Callable[[str, MakeSession, Callable[[str], None]], Dialled]
