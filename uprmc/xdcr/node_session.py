"""A connection to a node of the target: greeting, login, questions with their answers, silence.

Nothing raises out of the session's doors. `target` sends a link's items over one of these, and
`FarDocuments` reads what the node has over another one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from uprmc.config import Settings
from uprmc.errors import ProtocolError
from uprmc.login.mechanisms import LoginRefused
from uprmc.ports import Clock, Session
from uprmc.protocol.binary import decode_hello, encode_hello
from uprmc.protocol.framer import BinaryFramer
from uprmc.protocol.header import Frame, ResponseFrame, encode_request
from uprmc.protocol.opcodes import Feature, Opcode, Status
from uprmc.remote.conversation import (
    KEEP_ALIVES,
    Questions,
    Silence,
    keep_alive_answer,
    take_frames,
)
from uprmc.remote.login import Login

_AGENT = b"uprmc-xdcr"
_BUCKET = b"default"

#: A node that was asked nothing for this long is asked whether it is there.
_ASK_S = 10.0

Answered = Callable[[ResponseFrame], None]
Lost = Callable[[], None]


def begun_again() -> None:
    """Do nothing when a question is lost: the owner learns that the connection has ended.

    This is for what the owner asks again on the next connection anyway.
    """


class Question(NamedTuple):
    """What follows from a question: one of both is called, once."""

    answered: Answered
    lost: Lost


class TargetSession(ABC):
    """A connection to one node of the target.

    Implements `ports.Session`.

    Attributes:
        place: HOST:PORT of the node.
        granted: features that it has granted.
        wake: see the constructor.
    """

    successor: Session | None = None
    input_full = False

    def __init__(
        self,
        place: str,
        features: Iterable[Feature],
        login: Login | None,
        settings: Settings,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        """Greet the node.

        Args:
            place: see the class.
            features: what is asked for.
            login: ``None`` = as nobody.
            settings: limits of frames and of silence.
            clock: measures silence.
            wake: called when something is to be sent by itself.
        """
        self.place = place
        self.closing = False
        self.granted: tuple[int, ...] = ()
        self.wake = wake
        self._login = login
        self._computing: Callable[[], None] | None = None  # the proof of a login, in turns
        self._framer = BinaryFramer(settings.kv.max_frame_bytes)
        self._questions: Questions[Question] = Questions(strict=False)
        self._silence = Silence()
        self._silence_s = settings.xdcr.silence_s
        self._frames: deque[bytes] = deque()
        self._clock = clock
        self._asked_at = clock.monotonic()
        self._ask(Opcode.HELLO, self._greeted, key=_AGENT, value=encode_hello(features))

    # --- for those that stand on it -------------------------------------------------------------

    @abstractmethod
    def _welcomed(self) -> None:
        """Go on: the node has let us in."""

    @abstractmethod
    def _fail(self, why: str, *, final: bool) -> None:
        """Hang up and say why; `final` = another connection would not be better."""

    @abstractmethod
    def _lost(self) -> None:
        """Take note that the connection has ended."""

    @property
    def _is_waiting(self) -> bool:
        """Whether the node has something to say."""
        return bool(self._questions)

    def _take(self, frame: Frame) -> None:
        """Take a frame of the node."""
        if not isinstance(frame, ResponseFrame):
            if frame.opcode in KEEP_ALIVES:
                self._frames.append(keep_alive_answer(frame.opcode, frame.opaque))
            return
        if frame.status == Status.AUTH_ERROR and self._login is None:
            why = "it serves users only: make the link with --user and --password-file"
            self._fail(why, final=True)
            return
        more = frame.opcode == Opcode.STAT and frame.key
        find = self._questions.waiting_for if more else self._questions.answered
        question = find(frame.opcode, frame.opaque)
        if question is not None:
            question.answered(frame)

    def _ask(
        self,
        opcode: int,
        answered: Answered,
        *,
        vbucket: int = 0,
        extras: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
        cas: int = 0,
        lost: Lost = begun_again,
    ) -> int:
        """Send a question; return its opaque.

        `answered` gets the answer; `lost` is called if the connection ends before.
        """
        opaque = self._questions.expect(opcode, Question(answered, lost))
        self._frames.append(
            encode_request(
                opcode, extras=extras, key=key, value=value, vbucket=vbucket, opaque=opaque, cas=cas
            )
        )
        self.wake()
        return opaque

    # --- the handshake --------------------------------------------------------------------------

    def _greeted(self, reply: ResponseFrame) -> None:
        if not reply.status:
            self.granted = tuple(decode_hello(reply.value))
        if self._login is None:
            self._select()
        else:
            self._log_in(self._login)

    def _log_in(self, login: Login, reply: ResponseFrame | None = None) -> None:
        """Take an answer, or compute for a turn."""
        try:
            request = login.send(reply)
        except StopIteration:
            self._select()
        except LoginRefused as error:
            self._fail(f"it {error}", final=True)
        else:
            go_on = partial(self._log_in, login)
            if request is None:
                self._computing = go_on
                self.wake()
            else:
                self._ask(request.opcode, go_on, key=request.key, value=request.value)

    def _select(self) -> None:
        if Feature.SELECT_BUCKET in self.granted:
            self._ask(Opcode.SELECT_BUCKET, lambda _: None, key=_BUCKET)
        self._welcomed()

    # --- the session's doors --------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """See `ports.Session`."""
        if self.closing:
            return
        self._silence.broken = True
        try:
            for frame in self._framer.feed(data):
                if not self.closing:
                    self._take(frame)
        except ProtocolError as error:
            self._fail(f"it breaks the protocol: {error}", final=False)

    def data_to_send(self, budget: int) -> list[bytes]:
        """See `ports.Session`."""
        out: list[bytes] = []
        if self.closing:
            return out
        computing, self._computing = self._computing, None
        if computing is not None:
            computing()
        take_frames(self._frames, out, budget)
        return out

    def tick(self, now: float) -> None:
        """See `ports.Session`."""
        if self.closing:
            return
        if not self._is_waiting:
            self._silence.heard(now)
            if now - self._asked_at > _ASK_S:
                self._asked_at = now
                self._ask_for_life()
        elif self._silence.lasts(now, self._silence_s):
            self._fail(f"it has said nothing for {self._silence_s:g} s", final=False)

    def _ask_for_life(self) -> None:
        self._ask(Opcode.VERSION, lambda _: None)

    def buffered(self) -> tuple[int, int]:
        """See `ports.Session`; what waits to be sent is a few questions."""
        return 0, 0

    def connection_lost(self) -> None:
        """See `ports.Session`."""
        self.closing = True
        self._computing = None
        self._frames.clear()
        self._lose_questions()
        self._lost()

    def hang_up(self) -> None:
        """End the connection; what it was asked is lost at once."""
        self.closing = True
        self._lose_questions()
        self.wake()

    def _lose_questions(self) -> None:
        for question in self._questions.clear():
            question.lost()
