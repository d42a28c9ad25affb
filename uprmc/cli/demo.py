"""``uprmc demo``: the crash story on real data, in a minute.

A throw-away node is loaded with every named character of Unicode (over 100,000 JSON documents) by
pymemcache, a client that knows nothing of us; killed without warning; started again; and asked for
every document.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click
from pymemcache.client.base import Client
from rich.console import Console
from rich.progress import Progress, track

from uprmc import children
from uprmc.errors import UprmcError

_BATCH = 500
_START_TIMEOUT_S = 60
_PERSIST_TIMEOUT_S = 120
_POLL_S = 0.05


class DemoFailed(UprmcError):
    """Something the demo promised did not happen."""


class _ThrowAwayNode:
    """A node process on a temporary directory."""

    def __init__(self, data: Path) -> None:
        self._command = children.command("uprmc", "serve", "--data", str(data))
        for listener in ("memcached", "upr", "http"):
            self._command += [f"--{listener}", "127.0.0.1:0"]
        self._command += ["--views", "off"]
        self._process: subprocess.Popen[str] | None = None
        self.place = ("", 0)

    def start(self) -> float:
        """Start it and return how many seconds it took to serve."""
        began = time.monotonic()
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=children.environment(),
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("uprmc ready "):
            raise DemoFailed(f"the node did not start: {self._last_words()}")
        words = dict(word.partition("=")[::2] for word in line.split()[2:])
        host, _, port = words["memcached"].rpartition(":")
        self.place = (host, int(port))
        return time.monotonic() - began

    def kill(self) -> None:
        """Kill it without warning."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """Stop it in order; harmless when it is not running."""
        if self._process is not None:
            self._process.terminate()
            self._reap()

    def _reap(self) -> None:
        assert self._process is not None
        self._process.communicate(timeout=_START_TIMEOUT_S)
        self._process = None

    def _last_words(self) -> str:
        assert self._process is not None
        _, errors = self._process.communicate(timeout=_START_TIMEOUT_S)
        self._process = None
        return errors.strip().splitlines()[-1] if errors.strip() else "it said nothing"


def documents() -> Iterator[tuple[str, str]]:
    """Yield (key, JSON document) of every named character."""
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        name = unicodedata.name(character, "")
        if name:
            yield f"U+{code:04X}", json.dumps(_facts(code, character, name))


def _facts(code: int, character: str, name: str) -> dict[str, object]:
    return {
        "code": code,
        "name": name,
        "category": unicodedata.category(character),
        "bidirectional": unicodedata.bidirectional(character),
        "combining": unicodedata.combining(character),
        "decomposition": unicodedata.decomposition(character),
        "mirrored": bool(unicodedata.mirrored(character)),
        "numeric": unicodedata.numeric(character, None),
    }


@click.command()
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Use this data directory, and keep it."
)
@click.option("--limit", type=click.IntRange(1), hidden=True, help="Load only this many documents.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def demo(keep: Path | None, limit: int | None, debug: bool) -> None:
    """Load a node, kill it, restart it, and check every document.

    The node is killed with SIGKILL, and its data directory is removed afterwards unless --keep
    names one.
    """
    console = Console()
    with tempfile.TemporaryDirectory(prefix="uprmc-demo-") as temporary:
        node = _ThrowAwayNode(keep or Path(temporary) / "data")
        try:
            _tell_story(console, node, dict(islice(documents(), limit)))
        finally:
            node.stop()


def _tell_story(console: Console, node: _ThrowAwayNode, expected: dict[str, str]) -> None:
    console.print(f"1. started an empty node in {node.start():.1f} s")
    seconds = _load(console, node, expected)
    rate = len(expected) / seconds
    size = sum(map(len, expected.values())) / 1e6
    console.print(
        f"2. loaded {len(expected):,} documents ({size:.1f} MB) with pymemcache: {rate:,.0f}/s"
    )
    console.print(f"3. all of it is on disk {_wait_until_persisted(node):.2f} s later")
    node.kill()
    console.print("4. killed the node with SIGKILL")
    console.print(f"5. started it again in {node.start():.1f} s, warm-up included")
    began = time.monotonic()
    wrong = _verify(console, node, expected)
    rate = len(expected) / (time.monotonic() - began)
    if wrong:
        raise DemoFailed(f"{len(wrong)} documents are wrong or missing, the first: {wrong[0]}")
    console.print(
        f"6. read all {len(expected):,} documents back, every one as written: {rate:,.0f}/s"
    )


def _batches(keys: list[str]) -> list[list[str]]:
    return [keys[start : start + _BATCH] for start in range(0, len(keys), _BATCH)]


def _load(console: Console, node: _ThrowAwayNode, expected: dict[str, str]) -> float:
    began = time.monotonic()
    client = Client(node.place, default_noreply=False)
    quiet = not console.is_terminal
    with Progress(console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task("loading", total=len(expected))
        for keys in _batches(list(expected)):
            refused = client.set_many({key: expected[key] for key in keys})
            if refused:
                raise DemoFailed(f"the node refused {refused[0]!r}")
            progress.advance(task, len(keys))
    client.close()
    return time.monotonic() - began


def _wait_until_persisted(node: _ThrowAwayNode) -> float:
    began = time.monotonic()
    client = Client(node.place)
    while int(client.stats()[b"ep_queue_size"]):
        if time.monotonic() - began > _PERSIST_TIMEOUT_S:
            raise DemoFailed("the node does not get its data to disk")
        time.sleep(_POLL_S)
    client.close()
    return time.monotonic() - began


def _verify(console: Console, node: _ThrowAwayNode, expected: dict[str, str]) -> list[str]:
    client = Client(node.place)
    wrong = []
    batches = _batches(list(expected))
    quiet = not console.is_terminal
    for keys in track(batches, "verifying", console=console, transient=True, disable=quiet):
        found = client.get_many(keys)
        wrong += [key for key in keys if found.get(key) != expected[key].encode()]
    client.close()
    return wrong
