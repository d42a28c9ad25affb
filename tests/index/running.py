"""Real nodes with their indexes, as a user reaches them: by a client, and over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymemcache.client.base import Client

from interop import views
from interop.nursery import popen
from interop.server_process import ANY_PORT, Address, ServerProcess
from interop.views import Answer
from interop.waiting import wait_until
from tests.system.support import stats
from uprmc.client.forgetting import forget
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

#: The view of `BY_CITY`, in design d.
CITIES = "d/by_city"

TIMEOUT_S = 60.0


class Views(views.Views):
    """A views listener whose processes come and go: each request has a connection of its own.

    Any thread may use it.
    """

    def __init__(self, address: Address | str) -> None:
        self.place = str(address)
        self._address = Address.parse(self.place)

    def ask(self, *arguments: Any, **options: Any) -> Answer:
        """Send a request; return its answer, whatever its status."""
        with views.Views(self._address, TIMEOUT_S) as connection:
            return connection.ask(*arguments, **options)

    def put(self, name: str, design: object) -> None:
        answer = self.ask("PUT", f"/_design/{name}", design)
        assert answer.status == 201, answer

    def query(self, view: str = CITIES, **options: Any) -> Answer:
        return super().query(view, **options)

    def rows(self, view: str = CITIES, **options: Any) -> list[dict[str, Any]]:
        """Return the rows of a view, fresh unless options say otherwise."""
        return super().rows(view, **{"reduce": "false", **options})

    def ids(self, **options: Any) -> list[str]:
        return [row["id"] for row in self.rows(**options)]

    def count(self, **options: Any) -> int:
        """Return the reduction of all rows."""
        answer = self.query(**{"stale": "false", **options})
        assert answer.status == 200, answer
        rows = answer.body["rows"]
        return int(rows[0]["value"]) if rows else 0

    def info(self, name: str = "d") -> dict[str, Any]:
        return super().info(name)

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        with urllib.request.urlopen(f"http://{self.place}/metrics", timeout=TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
        samples = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        assert samples, name
        return sum(float(line.split()[-1]) for line in samples)

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


def emptied(node: ServerProcess) -> None:
    """Take documents, designs and registrations of indexes from a node that tests share."""
    assert node.views is not None
    views = Views(node.views)
    for row in views.ask("GET", "/_design").body["rows"]:
        assert views.ask("DELETE", f"/{row['id']}").status == 200
    rows = {name.split(":")[1] for name in stats(node.upr, "watermarks") if ":row_index-" in name}
    for name in rows:
        forget([str(node.upr)], name.removeprefix("row_"))
    client = Client((node.memcached.host, node.memcached.port))
    client.flush_all(noreply=False)
    client.close()


class IndexServer:
    """``uprmc index serve`` as a process.

    Attributes:
        views: its listener.
    """

    def __init__(
        self, data: Path, *sources: object, settings: Mapping[str, object], options: Iterable[str]
    ) -> None:
        words = [sys.executable, "-m", "uprmc", "index", "serve", "--data", str(data)]
        words += ["--views", ANY_PORT, *options]
        for source in sources:
            words += ["--source", str(source)]
        for name, value in settings.items():
            words += ["--set", f"{name}={value}"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("UPRMC_")}
        self.log = data.with_suffix(".log").open("ab")
        self._process = popen(words, stdout=subprocess.PIPE, stderr=self.log, env=environment)
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
    data: Path,
    *sources: object,
    settings: Mapping[str, object] | None = None,
    options: Iterable[str] = (),
) -> Iterator[IndexServer]:
    """Run an index process."""
    server = IndexServer(data, *sources, settings=settings or {}, options=options)
    try:
        yield server
    finally:
        if server.running:
            server.kill()
