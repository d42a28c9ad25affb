"""The asking side's login: what to send, one request after the other, whatever carries frames.

steps = login(credentials, nonce, safe=True)
request = next(steps)
...                       # ask the node
request = steps.send(answer)

A node chooses how much is to be computed, up to a limit that is some turns of a reactor long. There
`login_in_turns` yields ``None`` now and then instead of a request, and goes on when it is sent any
value in a later turn.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import cast

from uprmc.login.credentials import Credentials
from uprmc.login.exchange import exchange_for
from uprmc.login.mechanisms import LoginRefused, chosen
from uprmc.ports import Entropy
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status

#: Requests of a login; each is sent the answer. After ``None`` it goes on in another turn.
Login = Generator[RequestFrame | None, ResponseFrame | None, None]


def nonce_of(entropy: Entropy) -> bytes:
    """Return what nobody can guess, without commas."""
    return b"".join(b"%012x" % entropy.uuid48() for _ in range(3))


def login(
    credentials: Credentials, nonce: bytes, *, safe: bool
) -> Generator[RequestFrame, ResponseFrame, None]:
    """Yield each request of a login and take its answer; returns when the user is in.

    Computing the proof takes some milliseconds.

    Args:
        credentials: the user, and what proves it.
        nonce: unpredictable, without commas.
        safe: the connection has TLS, or does not leave the machine.

    Raises:
        LoginRefused: the node does not let the user in, or cannot be trusted; one line.
    """
    steps = login_in_turns(credentials, nonce, safe=safe, at_once=True)
    return cast("Generator[RequestFrame, ResponseFrame, None]", steps)


def login_in_turns(
    credentials: Credentials, nonce: bytes, *, safe: bool, at_once: bool = False
) -> Login:
    """Do the same, and yield ``None`` where others are to have their turn.

    Args:
        credentials, nonce, safe: see `login`.
        at_once: nobody waits for a turn.
    """
    who = repr(credentials.username)
    answer = _told((yield RequestFrame(Opcode.SASL_LIST_MECHS)))
    if answer.status in (Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED):
        raise LoginRefused(
            f"does not let {who} in: {answer.reason}; the node knows no logins: leave the user out"
        )
    if answer.status:
        raise LoginRefused(f"does not tell how to log in: {answer.reason}")
    mechanism, name = chosen(answer.value, safe=safe)
    exchange = exchange_for(credentials, mechanism, nonce)
    answer = _told((yield RequestFrame(Opcode.SASL_AUTH, key=name, value=exchange.first())))
    if answer.status == Status.AUTH_CONTINUE:
        if at_once:
            proof = exchange.answer(answer.value)
        else:
            proof = yield from exchange.answer_in_turns(answer.value)
        answer = _told((yield RequestFrame(Opcode.SASL_STEP, key=name, value=proof)))
    if answer.status:
        wrong = answer.status == Status.AUTH_ERROR
        why = f"wrong name or password ({answer.status:04x})" if wrong else answer.reason
        raise LoginRefused(f"does not let {who} in: {why}")
    exchange.finish(answer.value)


def _told(answer: ResponseFrame | None) -> ResponseFrame:
    assert answer is not None, "a request gets its answer"
    return answer
