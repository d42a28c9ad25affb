"""A client's login in any mechanism: the words of SASL_AUTH and SASL_STEP, without frames.

exchange = exchange_for(credentials, mechanism, nonce)
first = exchange.first()                # the value of SASL_AUTH
proof = exchange.answer(challenge)      # of SASL_STEP, when SASL_AUTH was answered by 0x21
exchange.finish(value)                  # of the last answer
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import Mechanism
from uprmc.login.scram import BadExchange, ClientExchange


class Exchange(Protocol):
    """One login from the client's side."""

    def first(self) -> bytes:
        """Return the first message."""

    def answer(self, challenge: bytes) -> bytes:
        """Return the answer to the node's challenge; raises `BadExchange`."""

    def answer_in_turns(self, challenge: bytes) -> Generator[None, object, bytes]:
        """Return the same; yield now and then, so that others have their turn."""

    def finish(self, message: bytes) -> None:
        """Take what came with success; raises `BadExchange` if the node proved nothing."""


class PlainExchange:
    """The name and the password in clear."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def first(self) -> bytes:
        """Return name and password."""
        one = self._credentials
        return b"\0".join((b"", one.username.encode(), one.password.encode()))

    def answer(self, challenge: bytes) -> bytes:
        """Refuse: PLAIN has no challenges."""
        raise BadExchange("asks for more than PLAIN has")

    def answer_in_turns(self, challenge: bytes) -> Generator[None, object, bytes]:
        """Refuse likewise."""
        yield
        return self.answer(challenge)

    def finish(self, message: bytes) -> None:
        """Accept any text of success."""


def exchange_for(credentials: Credentials, mechanism: Mechanism, nonce: bytes) -> Exchange:
    """Return the exchange of a mechanism; `nonce` is unpredictable, without commas."""
    if mechanism is Mechanism.PLAIN:
        return PlainExchange(credentials)
    return ClientExchange(credentials, mechanism.hash_name, nonce)
