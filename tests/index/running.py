"""Real nodes with their indexes, as a user reaches them: by a client, and over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from interop.server_process import ANY_PORT, Address, ServerProcess
from interop.waiting import wait_until
from uprmc.client.kv import KvClient

BY_CITY = {
    "views": {
        "by_city": {
            "map": {
                "where": {"city": {"$exists": True}},
                "emit": [{"key": "$.city", "value": "$.n"}],
            },
            "reduce": "_count",
        }
    }
}

TIMEOUT_S = 60.0


class Answer(NamedTuple):
    """What came over HTTP."""

    status: int
    body: Any


class Views:
    """A views listener."""

    def __init__(self, address: Address | str) -> None:
        self.place = str(address)
        self._root = f"http://{address}/default"

    def ask(self, method: str, path: str, body: object = None, **options: object) -> Answer:
        """Send a request; return its answer, whatever its status."""
        query = f"?{urlencode(options)}" if options else ""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._root}{path}{query}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return Answer(answer.status, json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, json.loads(error.read()))

    def put(self, name: str, design: object) -> None:
        answer = self.ask("PUT", f"/_design/{name}", design)
        assert answer.status == 201, answer

    def query(self, design: str = "d", view: str = "by_city", **options: object) -> Answer:
        return self.ask("GET", f"/_design/{design}/_view/{view}", **options)

    def rows(self, **options: object) -> list[dict[str, Any]]:
        """Return the rows of the view of cities, fresh unless options say otherwise."""
        answer = self.query(**{"stale": "false", "reduce": "false", **options})
        assert answer.status == 200, answer
        assert not answer.body["errors"], answer
        found: list[dict[str, Any]] = answer.body["rows"]
        return found

    def ids(self, **options: object) -> list[str]:
        return [row["id"] for row in self.rows(**options)]

    def count(self, **options: object) -> int:
        """Return the reduction of all rows."""
        answer = self.query(**{"stale": "false", **options})
        assert answer.status == 200, answer
        rows = answer.body["rows"]
        return int(rows[0]["value"]) if rows else 0

    def info(self, design: str = "d") -> dict[str, Any]:
        answer = self.ask("GET", f"/_design/{design}/_info")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.body
        return found

    def until(self, what: str, true: Any, design: str = "d") -> None:
        """Wait until the facts about an index are so."""
        wait_until(lambda: true(self.info(design)), lambda: f"{what}: {self.info(design)}")


def cities(numbers: Iterable[int], city: str | None = None) -> dict[bytes, bytes]:
    """Return documents with a city and a number."""
    return {b"k%d" % n: json.dumps({"city": city or f"c{n % 7}", "n": n}).encode() for n in numbers}


def store(server: ServerProcess, documents: Mapping[bytes, bytes]) -> None:
    with KvClient(str(server.upr)) as kv:
        kv.set_many(documents)


def delete(server: ServerProcess, keys: Iterable[bytes]) -> None:
    with KvClient(str(server.upr)) as kv:
        kv.delete_many(list(keys))


class IndexServer:
    """``uprmc index serve`` as a process.

    Attributes:
        views: its listener.
    """

    def __init__(self, data: Path, *sources: object, settings: Mapping[str, object]) -> None:
        words = [sys.executable, "-m", "uprmc", "index", "serve", "--data", str(data)]
        words += ["--views", ANY_PORT]
        for source in sources:
            words += ["--source", str(source)]
        for name, value in settings.items():
            words += ["--set", f"{name}={value}"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("UPRMC_")}
        self.log = data.with_suffix(".log").open("ab")
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=self.log, env=environment
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        assert line.startswith("uprmc index ready views="), data.with_suffix(".log").read_text()
        self.views = Views(dict(word.split("=") for word in line.split()[3:])["views"])

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self._process.terminate()
        return self._reap()

    def kill(self) -> None:
        """End it without warning."""
        self._process.kill()
        self._reap()

    def _reap(self) -> int:
        code = self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.log.close()
        return code

    @property
    def running(self) -> bool:
        return self._process.poll() is None


@contextmanager
def index_server(
    data: Path, *sources: object, settings: Mapping[str, object] | None = None
) -> Iterator[IndexServer]:
    """Run an index process."""
    server = IndexServer(data, *sources, settings=settings or {})
    try:
        yield server
    finally:
        if server.running:
            server.kill()
