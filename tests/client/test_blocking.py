"""The blocking API keeps the contract of both."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.client.api_contract import LIMIT_S, Api, ApiContract, MakeApi, Recorder
from uprmc.client import Handler, UprClient
from uprmc.client.options import Until


class BlockingApi(Api):
    """The client in a thread, or in the test's own."""

    def __init__(self, place: str, handler: Handler, tls: str = "", **options: Any) -> None:
        context = ssl.create_default_context(cafile=tls) if tls else None
        self._handler = handler
        self._client = UprClient(place, handler, tls=context, **options)

    @property
    def client(self) -> UprClient:
        return self._client

    def run(self, until: Until = None, timeout_s: float | None = LIMIT_S) -> None:
        self._client.run(until, timeout_s=timeout_s)

    def start(self) -> None:
        self._client.start()

    def wait(self, condition: Callable[[], bool]) -> None:
        assert isinstance(self._handler, Recorder)
        deadline = time.monotonic() + LIMIT_S
        with self._handler.told:
            while not condition():
                assert time.monotonic() < deadline, "it did not happen"
                self._handler.told.wait(0.05)  # what is no call of the handler wakes nobody

    def join(self) -> None:
        self._client.join(LIMIT_S)

    def stop(self) -> None:
        self._client.stop()
        self._client.join(LIMIT_S)

    def barrier(self, text: str | None = None, timeout_s: float | None = LIMIT_S) -> None:
        self._client.barrier(text, timeout_s)

    def forget(self) -> list[int]:
        return self._client.forget()

    def close(self) -> None:
        self._client.close()


class TestBlockingApi(ApiContract):
    @pytest.fixture(name="make")
    def _make(self) -> Iterator[MakeApi]:
        threads, made = threading.active_count(), []

        def make(*arguments: Any, **options: Any) -> Api:
            made.append(BlockingApi(*arguments, **options))
            return made[-1]

        yield make
        for api in made:
            api.close()
        assert threading.active_count() == threads
