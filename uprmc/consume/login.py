"""The asking side's login: what to send, one request after the other, whatever carries frames.

steps = login(credentials, nonce, safe=True)
request = next(steps)
...                       # ask the node
request = steps.send(answer)
"""

from __future__ import annotations

from collections.abc import Generator

from uprmc.login.credentials import Credentials
from uprmc.login.exchange import exchange_for
from uprmc.login.mechanisms import LoginRefused, chosen
from uprmc.ports import Entropy
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status


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
    who = repr(credentials.username)
    answer = yield RequestFrame(Opcode.SASL_LIST_MECHS)
    if answer.status in (Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED):
        raise LoginRefused(
            f"does not let {who} in: {answer.reason}; the node knows no logins: leave username out"
        )
    if answer.status:
        raise LoginRefused(f"does not tell how to log in: {answer.reason}")
    mechanism, name = chosen(answer.value, safe=safe)
    exchange = exchange_for(credentials, mechanism, nonce)
    answer = yield RequestFrame(Opcode.SASL_AUTH, key=name, value=exchange.first())
    if answer.status == Status.AUTH_CONTINUE:
        proof = exchange.answer(answer.value)
        answer = yield RequestFrame(Opcode.SASL_STEP, key=name, value=proof)
    if answer.status:
        raise LoginRefused(f"does not let {who} in: {answer.reason}")
    exchange.finish(answer.value)
