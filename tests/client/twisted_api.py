"""The Twisted client, driven by a test through a reactor of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from OpenSSL import crypto
from twisted.internet.defer import Deferred
from twisted.internet.ssl import Certificate, optionsForClientTLS

from tests.client.api_contract import LIMIT_S, Api
from tests.server.support import Loop
from uprmc.client import Handler
from uprmc.client.options import Until
from uprmc.client.twisted_client import TwistedUprClient, over_tcp, over_tls


class TwistedApi(Api):
    def __init__(
        self, loop: Loop, place: str, handler: Handler, tls: str = "", **options: Any
    ) -> None:
        self._loop = loop
        self._ended: Deferred[None] | None = None
        endpoint = over_tls(lambda host: _trusting(host, tls)) if tls else over_tcp
        options = {"endpoint": endpoint, **options}
        self._client = TwistedUprClient(place, handler, reactor=loop.reactor, **options)

    @property
    def client(self) -> TwistedUprClient:
        return self._client

    def run(self, until: Until = None, timeout_s: float | None = LIMIT_S) -> None:
        self._loop.result(self._client.run(until, timeout_s=timeout_s), LIMIT_S)

    def start(self) -> None:
        self._ended = self._client.run()

    def wait(self, condition: Callable[[], bool]) -> None:
        self._loop.until(condition, LIMIT_S)

    def join(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            self._loop.result(ended, LIMIT_S)

    def stop(self) -> None:
        self._loop.result(self._client.stop())
        self.join()

    def barrier(self, text: str | None = None, timeout_s: float | None = LIMIT_S) -> None:
        self._loop.result(self._client.barrier(text, timeout_s), LIMIT_S)

    def forget(self) -> list[int]:
        forgetting = self._client.forget()
        if forgetting.called:
            return cast(list[int], self._loop.result(forgetting))
        pool = self._loop.reactor.getThreadPool()
        pool.start()  # a reactor that is run would do that
        try:
            return cast(list[int], self._loop.result(forgetting, LIMIT_S))
        finally:
            pool.stop()

    def close(self) -> None:
        self._loop.result(self._client.close())
        nothing_is_left(self._loop)


def nothing_is_left(loop: Loop) -> None:
    """Neither sockets nor delayed calls, at once and not after a while."""
    reactor = loop.reactor
    assert reactor.getDelayedCalls() == []
    assert set(reactor.getReaders()) <= reactor._internalReaders
    assert reactor.getWriters() == []


def _trusting(host: str, path: str) -> Any:
    with open(path, "rb") as file:
        found = crypto.load_certificate(crypto.FILETYPE_PEM, file.read())
    return optionsForClientTLS(host, trustRoot=Certificate(found))
