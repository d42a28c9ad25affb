"""What a story can do: real nodes with a line to each, verbs, and clients.

Nodes reach one another, and verbs and programs reach nodes, over the node's *line*, a proxy that
can be cut. ``set``, ``delete`` and ``get`` go past it; the vBucket ``-`` is the one that the key
belongs to. In the words of a command, the name of a
node stands for the address of its line, and ``|grep TEXT`` keeps the lines that contain a text.

| command | what it does |
|---|---|
| ``node NAME OPTION ...`` | starts a node, or starts it again where it was |
| ``kill NAME``, ``stop NAME`` | ``kill -9``; SIGTERM |
| ``line NAME refuse``, ``silent``, ``slow``, ``open`` | what happens to its line |
| ``line NAME pass BYTES`` | its line is silent after this many bytes |
| ``disk NAME rests``, ``works`` | whether changes are written to disk |
| ``set NAME VBUCKET KEY=VALUE ...`` | sets documents; ``k1..k9=v*1000`` is nine of 1,000 bytes |
| ``delete``, ``get NAME VBUCKET KEY ...`` | deletes documents; prints them |
| ``get-replica NAME VBUCKET KEY ...`` | prints documents of a vBucket that is a replica |
| ``uprmc VERB ...`` | runs a verb; with ``&`` at the end, beside the story |
| ``next N`` | prints the next N lines of the verb that runs beside |
| ``adapter NAME UPSTREAM`` | starts ``uprmc tap-adapter`` in front of a node, or again |
| ``pipe NAME FROM TO VBUCKETS`` | pipes a registered TAP stream into a node, as a supervisor does |
| ``copy NAME NODE,NODE`` | starts a program that copies all documents |
| ``barrier NAME [SECONDS]`` | waits for a barrier of a program, and prints its copy |
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Self

from interop.proxy import LastingPort, Proxy, Way
from interop.replica_pair import Node
from interop.server_process import Address, ServerProcess
from interop.tap_pipe import REGISTER, KeptPipe
from interop.upr_wire import START_PERSISTENCE, STOP_PERSISTENCE
from interop.wire import GET, OK, SET, Reply, Wire, frame, store, vbucket_of
from tests.cli.tailing import Running
from tests.cli.tap_support import DELETE, start_adapter
from uprmc.cli.main import run
from uprmc.client import Change, Handler, UprClient
from uprmc.client.errors import WaitedTooLong
from uprmc.remote.ranges import parsed

_REFUSALS = {0x01: "not found", 0x07: "not my vBucket", 0x86: "temporary failure"}
_BARRIER_S = 0.5
_SLOW = 200_000  # bytes a second
_SHOWN = 20
_WAIT = "30s"  # of a verb that waits; the limit only ends a story that failed
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
_RANGE = re.compile(r"([^.=]*?)(\d+)\.\.\1(\d+)")
VBUCKETS = 4
_GET_REPLICA = 0x83
_OPTIONS = ("--vbuckets", str(VBUCKETS), "--set", "upr.redial_max_s=0.1")

Ask = Callable[[bytes, bytes, int], bytes]


class Copy(Handler):
    """What the nodes hold, as far as a program was told."""

    def __init__(self) -> None:
        self.documents: dict[bytes, bytes] = {}

    def mutation(self, change: Change) -> None:
        self.documents[change.key] = change.value or b""

    def deletion(self, change: Change) -> None:
        self.documents.pop(change.key, None)


class Stage:
    """Use it in a ``with`` statement, which ends everything that was started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._nodes: dict[str, Node] = {}
        self._lines: dict[str, Proxy] = {}
        self._ports: dict[str, LastingPort] = {}
        self._adapters: dict[str, ServerProcess] = {}
        self._copies: dict[str, tuple[UprClient, Copy]] = {}
        self._beside: Running | None = None
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        self._ending.callback(os.chdir, Path.cwd())
        os.chdir(self._directory)
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def run(self, command: str) -> list[str]:
        """Carry out a command and return the lines that it prints."""
        command, _, wanted = command.partition("|grep ")
        name, *words = shlex.split(command)
        act: Callable[..., Iterator[str]] = getattr(self, f"_do_{name.replace('-', '_')}")
        lines = [_ADDRESS.sub(self._name_of, line) for line in act(*words)]
        return [line for line in lines if wanted.strip() in line]

    def logs(self) -> str:
        """The last log lines of each node."""
        return "\n".join(f"{name}:\n{each.log()[-1_500:]}" for name, each in self._nodes.items())

    def _name_of(self, found: re.Match[str]) -> str:
        known = {str(node.upr): name for name, node in self._nodes.items()}
        known |= {str(end.address): name for name, end in self._ends.items()}
        return known.get(found[0], found[0])

    @property
    def _ends(self) -> Mapping[str, Proxy | LastingPort]:
        return {**self._lines, **self._ports}

    def _place(self, name: str) -> Address:
        return self._ends[name].address

    # --- nodes ----------------------------------------------------------------------------------

    def _do_node(self, name: str, *options: str) -> Iterator[str]:
        if name not in self._nodes:
            node = self._nodes[name] = Node(self._directory / name, *_OPTIONS, *self._put(options))
            self._ending.callback(node.end)
            self._lines[name] = Proxy(node.upr)
            self._ending.callback(self._lines[name].stop)
        self._nodes[name].start()
        yield from ()

    def _do_kill(self, name: str) -> Iterator[str]:
        (self._adapters[name] if name in self._adapters else self._nodes[name]).kill()
        yield from ()

    def _do_stop(self, name: str) -> Iterator[str]:
        self._nodes[name].stop()
        yield from ()

    def _do_line(self, name: str, what: str, count: str = "0") -> Iterator[str]:
        line = self._lines[name]
        if what == "pass":
            line.silence_after(int(count))
        elif what == "refuse":
            line.refuse()
            line.cut()
        elif what == "silent":
            line.silence(*Way)
        elif what == "slow":
            line.slow(bytes_per_s=_SLOW)
        else:
            line.refuse(False)
            line.silence()
            line.slow()
        yield from ()

    def _do_disk(self, name: str, what: str) -> Iterator[str]:
        order = STOP_PERSISTENCE if what == "rests" else START_PERSISTENCE
        with Wire(self._nodes[name].upr) as wire:
            assert wire.ask(frame(order)).status == OK
        yield from ()

    # --- documents ------------------------------------------------------------------------------

    def _ask(
        self, name: str, vbucket: str, documents: Mapping[str, str], ask: Ask
    ) -> Iterator[tuple[str, Reply]]:
        with Wire(self._nodes[name].upr) as wire:
            for text, value in documents.items():
                key = text.encode()
                number = vbucket_of(key, VBUCKETS) if vbucket == "-" else int(vbucket)
                yield text, wire.ask(ask(key, value.encode(), number))

    def _do_set(self, name: str, vbucket: str, *pairs: str) -> Iterator[str]:
        documents = dict(document for pair in pairs for document in _documents(pair))

        def ask(key: bytes, value: bytes, number: int) -> bytes:
            return store(SET, key, value, vbucket=number)

        for key, reply in self._ask(name, vbucket, documents, ask):
            if reply.status != OK:
                yield f"{key}: {_REFUSALS[reply.status]}"

    def _without_value(
        self, opcode: int, name: str, vbucket: str, keys: tuple[str, ...]
    ) -> Iterator[str]:
        def ask(key: bytes, _: bytes, number: int) -> bytes:
            return frame(opcode, key, vbucket=number)

        for key, reply in self._ask(name, vbucket, dict.fromkeys(keys, ""), ask):
            if reply.status != OK:
                yield f"{key}: {_REFUSALS[reply.status]}"
            elif opcode != DELETE:
                yield f"{key}={reply.value.decode()}"

    def _do_delete(self, name: str, vbucket: str, *keys: str) -> Iterator[str]:
        return self._without_value(DELETE, name, vbucket, keys)

    def _do_get(self, name: str, vbucket: str, *keys: str) -> Iterator[str]:
        return self._without_value(GET, name, vbucket, keys)

    def _do_get_replica(self, name: str, vbucket: str, *keys: str) -> Iterator[str]:
        return self._without_value(_GET_REPLICA, name, vbucket, keys)

    # --- verbs ----------------------------------------------------------------------------------

    def _put(self, words: tuple[str, ...]) -> list[str]:
        """Put addresses in the place of names."""
        found = []
        for word in words:
            names = word.split(",")
            known = all(name in self._ends for name in names)
            found.append(",".join(str(self._place(name)) for name in names) if known else word)
        return found

    def _do_uprmc(self, *words: str) -> Iterator[str]:
        given = self._put(words)
        if given[-1] == "&":
            self._beside = self._ending.enter_context(Running(*given[:-1]))
            return
        if "--wait" in given:
            given += ["--timeout", _WAIT]
        out = StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            code = run(given)
        yield from out.getvalue().splitlines()
        if code:
            yield f"exit code {code}"

    def _do_next(self, count: str) -> Iterator[str]:
        assert self._beside is not None, "no verb runs beside"
        for _ in range(int(count)):
            yield self._beside.line()

    # --- TAP ------------------------------------------------------------------------------------

    def _do_adapter(self, name: str, upstream: str, *options: str) -> Iterator[str]:
        if name not in self._ports:
            self._ports[name] = LastingPort()
            self._ending.callback(self._ports[name].give_back)
        where = ("--state", f"{name}.db", *options)
        listen = str(self._place(name))
        started = start_adapter(self._place(upstream), *where, listen=listen)
        self._adapters[name] = self._ending.enter_context(started)
        yield from ()

    def _do_pipe(self, name: str, source: str, target: str, vbuckets: str) -> Iterator[str]:
        ends = self._place(source), self._nodes[target].upr
        pipe = KeptPipe(*ends, name.encode(), REGISTER, parsed(vbuckets))
        self._ending.enter_context(pipe)
        yield from ()

    # --- programs -------------------------------------------------------------------------------

    def _do_copy(self, name: str, nodes: str) -> Iterator[str]:
        copy = Copy()
        places: Any = [str(self._place(each)) for each in nodes.split(",")]
        client = self._ending.enter_context(UprClient(places, copy))
        self._copies[name] = client, copy
        client.start()
        yield from ()

    def _do_barrier(self, name: str, limit_s: float | str = _BARRIER_S) -> Iterator[str]:
        client, copy = self._copies[name]
        try:
            client.barrier(timeout_s=float(limit_s))
        except WaitedTooLong:
            yield "not reached"
        else:
            pairs = sorted(copy.documents.items())
            yield " ".join(f"{key.decode()}={_shown(value)}" for key, value in pairs)


def _shown(value: bytes) -> str:
    return value.decode() if len(value) <= _SHOWN else f"({len(value)} bytes)"


def _documents(pair: str) -> Iterator[tuple[str, str]]:
    """Read ``KEY=VALUE``, where both may stand for many: ``k1..k9=v*1000``."""
    names, _, value = pair.partition("=")
    text, _, times = value.partition("*")
    value = text * int(times or 1)
    found = _RANGE.fullmatch(names)
    if found is None:
        yield names, value
        return
    for number in range(int(found[2]), int(found[3]) + 1):
        yield f"{found[1]}{number}", value
