"""Functions that mean harm: each costs the rows of its own documents, one clear error, no more."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.index.documents import document, rows
from uprmc.config import IndexSettings
from uprmc.index.design import Design
from uprmc.index.errors import GivenUp
from uprmc.index.javascript import process
from uprmc.index.mapping import make_mapper
from uprmc.index.mapping.mapper import DesignMapper
from uprmc.index.model import IndexedDocument, Mapped

MIB = 1 << 20

#: Runs CODE for documents that are bad, and emits 1 for the others.
AROUND = "function (doc, meta) { if (!doc.bad) { emit(1, 1); return; } %s }"


@contextmanager
def mapper(source: str, views: int = 1, **settings: Any) -> Iterator[DesignMapper]:
    definition = {"views": {f"v{i}": {"map": source} for i in range(views)}}
    limits = {"map_timeout_s": 20.0, "worker_memory": 128 * MIB, **settings}
    made = make_mapper(Design.parse("d", json.dumps(definition).encode()), IndexSettings(**limits))
    assert isinstance(made, DesignMapper)
    try:
        yield made
    finally:
        made.close()


def documents(*bad: int, of: int = 40) -> list[IndexedDocument]:
    return [document({"bad": n in bad, "n": n}, b"k%d" % n) for n in range(of)]


def switched(codes: Iterable[str]) -> str:
    """Return code that runs the one of these whose number a document has as ``bad``, from 1."""
    cases = "".join(f"case {n}: {{ {code}; break; }}\n" for n, code in enumerate(codes, 1))
    return f"switch (doc.bad) {{ {cases} }}"


def check(results: list[Mapped], *bad: int, words: str) -> None:
    """The bad documents have no rows and an error, all others have theirs."""
    for n, result in enumerate(results):
        if n in bad:
            assert words in str(result.error)
            assert str(result.error).startswith("view 'v0': ")
            assert len(str(result.error)) < 1_000
            assert not any(result.rows)
        else:
            assert rows(result) == [(1, 1)]


def memory(pid: int) -> int:
    """The most that a process has had in memory, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * next(int(s.split()[1]) for s in status.splitlines() if s.startswith("VmHWM"))


#: What a document's code does wrong, and what is said of it; ``None`` = nothing.
FAILURES = (
    ("throw new Error('no')", "it threw Error: no"),
    ("throw 'a text'", "it threw a text"),
    ("throw null", "it threw null"),
    ("throw {get message() { throw 1 }}", "it threw what has no text"),
    ("throw {message: 'x'.repeat(1e6)}", "xxx..."),
    ("emit(1, 1); throw new TypeError('after an emit')", "after an emit"),
    ("doc.x.y.z", "Cannot read properties of undefined"),
    ("function f() { f(); } f()", "Maximum call stack size exceeded"),
    ("var a = []; a.push(a); emit(a, 1)", "circular"),
    ("var a = {}; a.a = a; emit(1, a)", "circular"),
    ("emit(1n, 1)", "BigInt"),
    ("emit({toJSON() { throw new Error('late') }}, 1)", "late"),
    ("emit({toJSON() { emit(1, 1); throw new Error('late') }}, 1)", "late"),
    ("emit('x'.repeat(1e7), 1)", "a key of 10000002 bytes; the most are 4096"),
    ("emit('é'.repeat(3000), 1)", "a key of 6002 bytes; the most are 4096"),
    ("emit(1, 'x'.repeat(2e6))", "a value of 2000002 bytes; the most are 1048576"),
    ("for (var i = 0; i < 101000; i++) emit(i, i)", "more than 100000 rows"),
    ("for (var i = 0; i < 100; i++) emit(1, 'x'.repeat(9e5))", "more than 16777216 bytes"),
    ("var a = 1; for (var i = 0; i < 1500; i++) a = [a]; emit(a, 1)", "nested too deeply"),
    ("var a = 1; for (var i = 0; i < 1500; i++) a = {a}; emit(1, a)", "nested too deeply"),
    ("var a = 1; for (var i = 0; i < 1e5; i++) a = [a]; emit(1, a)", "nested too deeply"),
    ("emit = 5; emit()", None),
    ("require('fs')", "require is not defined"),
    ("new WebAssembly.Module()", "WebAssembly"),
    ("setTimeout(function () {}, 1)", "not a function"),
)


def test_a_bad_document_is_named_and_the_next_goes_on() -> None:
    source = AROUND % switched(code for code, _ in FAILURES)
    with mapper(source, worker_memory=256 * MIB) as made:
        for number, (code, words) in enumerate(FAILURES, 1):
            some = [{"bad": number}, {"bad": 0}, {"bad": number}]
            bad, good, last = made.map([document(each, b"k%d" % n) for n, each in enumerate(some)])
            assert (rows(good), good.error) == ([(1, 1)], None), code
            for each in (bad, last):
                assert (each.error is None) is (words is None), code
                assert words is None or words in str(each.error), code
                assert words is None or str(each.error).startswith("view 'v0': "), code
                assert len(str(each.error)) < 1_000, code
                assert words is None or not any(each.rows), code


def test_a_document_that_emits_without_end_is_named_and_the_next_goes_on() -> None:
    code = "for (;;) try { emit(1, 'x'.repeat(9e5)) } catch (e) {}"
    with mapper(AROUND % code, map_timeout_s=0.5, worker_memory=256 * MIB) as made:
        check(made.map(documents(0, 17, 39)), 0, 17, 39, words="it ran for more than 0.5 s")
        check(made.map(documents()), words="")


@pytest.mark.parametrize("code", ["for (;;);", "/(x+x+)+y/.test('x'.repeat(99))"])
def test_an_endless_loop_is_stopped(code: str) -> None:
    with mapper(AROUND % code, map_timeout_s=0.6) as made:
        check(made.map(documents(3, 30)), 3, 30, words="it ran for more than 0.6 s")


def test_maps_that_never_end_are_given_up_when_an_index_stops() -> None:
    with mapper(AROUND % "while (true) {}") as made, ThreadPoolExecutor(1) as thread:
        assert len(made.map(documents())) == 40
        mapping = thread.submit(made.map, documents(*range(40)))
        began = time.monotonic()
        threading.Timer(1.0, made.give_up).start()
        assert isinstance(mapping.exception(), GivenUp)
        assert time.monotonic() - began < 15, "one document alone would take twenty seconds"


def test_the_view_whose_map_was_stopped_is_named() -> None:
    sources = [AROUND % "emit(0, 0)", AROUND % "for (;;);", AROUND % "emit(2, 2)"]
    views = {f"v{i}": {"map": source} for i, source in enumerate(sources)}
    design = Design.parse("d", json.dumps({"views": views}).encode())
    made = make_mapper(design, IndexSettings(map_timeout_s=0.6))
    try:
        first, second = made.map(documents(0, of=2))
    finally:
        made.close()
    assert first.error == (
        "view 'v0': stopped with view 'v1'; view 'v1': it ran for more than 0.6 s; "
        "view 'v2': stopped with view 'v1'"
    )
    assert [rows(second, view) for view in range(3)] == [[(1, 1)]] * 3


def test_promises_that_never_end_are_stopped() -> None:
    code = "(async () => { for (;;) await 0 })()"
    with mapper(AROUND % code, map_timeout_s=0.2) as made:
        check(made.map(documents(3)), 3, words="it goes on after its end")


def test_slow_documents_are_not_taken_for_endless_ones() -> None:
    code = "var end = Date.now() + 60; while (Date.now() < end); emit(1, 1);"
    with mapper(AROUND % code, map_timeout_s=1.0) as made:
        check(made.map(documents(*range(40))), words="")


@pytest.mark.parametrize(
    "code",
    [
        "var a = []; for (;;) a.push(new Array(1e5).fill(doc.n + 0.5))",
        "var a = 'x'; for (;;) a += a + a.length",
        "var a = []; for (;;) a.push(new Uint8Array(1 << 24).fill(1))",
        "var a = []; for (;;) a.push('x'.repeat(1e7) + a.length)",
        "leaked = []; for (;;) leaked.push({n: Array(1000).fill(leaked.length)})",
        "var m = new Map(); for (var i = 0; ; i++) m.set(i, {i: Array(200).fill(i)})",
    ],
)
def test_what_needs_too_much_memory_is_stopped(code: str) -> None:
    with mapper(AROUND % code, map_timeout_s=5.0, worker_memory=64 * MIB) as made:
        results = made.map(documents(5))
    assert results[5].error is not None
    assert len(results[5].error) < 200
    assert [rows(each) for n, each in enumerate(results) if n != 5] == [[(1, 1)]] * 39


def test_memory_of_the_process_is_bounded() -> None:
    seen = []
    with mapper(AROUND % "kept = []; for (;;) kept.push(new Uint8Array(1 << 20).fill(1))") as made:
        assert made._javascript is not None
        made.map(documents(of=1))
        child = made._javascript._idle[0].child
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.005):
                try:
                    seen.append(memory(child.pid))
                except (OSError, StopIteration):
                    return

        watching = threading.Thread(target=watch)
        watching.start()
        made.map(documents(0, of=1))
        done.set()
        watching.join()
    assert max(seen) < 128 * MIB + 100 * MIB


WORLD_CHANGERS = (
    "Object.prototype.toJSON = function () { return 'bad' }",
    "Object.prototype.length = 7; Object.prototype[0] = 7",
    "Array.prototype.push = Array.prototype.map = function () { throw 'bad' }",
    "Object.defineProperty(Array.prototype, 0, {set: function () { throw 'bad' }})",
    "Object.setPrototypeOf(Array.prototype, new Proxy({}, {get: function () { throw 'bad' }}))",
    "Object.setPrototypeOf(Object.prototype, {toJSON: function () { return 'bad' }})",
    "JSON.stringify = JSON.parse = function () { throw 'bad' }; JSON = null; delete this.JSON",
    "String.prototype.slice = String.prototype.toString = function () { return 'bad' }",
    "Date.now = function () { return 0 }; Date = null",
    "doc.__proto__.toJSON = function () { return 'bad' }",
    "doc.constructor.prototype.bad = true",
    "emit.call = emit.apply = null; emit.prototype = null; globalThis.emit = null",
    "this.emit = null; delete this.emit; emit = function () {}",
    "Function.prototype.call = Function.prototype.apply = function () { throw 'bad' }",
    "Error.prepareStackTrace = function (e, s) { return s }; Error.stackTraceLimit = -1",
    "globalThis.bad = 1; Object.prototype.bad = true; Symbol.prototype.bad = true",
    "Object.freeze(globalThis)",
    "Object.defineProperty(globalThis, 'undefined', {value: 1})",
    "(function* () {}).constructor.prototype.prototype.next = null",
    "new Promise(function () {}).constructor.prototype.then = null",
    "eval('var emit = 5'); new Function('emit = 5')()",
)


def test_no_document_changes_the_world_for_the_next() -> None:
    after = "if (!doc.bad) { emit(1, [doc, {}, [1, 2].map(function (x) { return x })]); return; }"
    source = (
        "function (doc, meta) {" + after + " try {" + switched(WORLD_CHANGERS) + "} catch (e) {} }"
    )
    with mapper(source) as made:
        for code in range(1, len(WORLD_CHANGERS) + 1):
            bad, good = {"bad": code}, {"bad": 0, "n": code}
            for some in ((bad, good), (good,)):
                results = made.map([document(each, b"k%d" % n) for n, each in enumerate(some)])
                assert rows(results[-1]) == [(1, [good, {}, [1, 2]])], WORLD_CHANGERS[code - 1]


def test_members_of_documents_may_have_any_name() -> None:
    body = b'{"__proto__": {"bad": true}, "constructor": 1, "toJSON": 2, "length": 3, "emit": 4}'
    with mapper("function (doc) { emit(Object.keys(doc), doc); }") as made:
        ((key, value),) = rows(made.map([document(body)])[0])
    assert key == ["__proto__", "constructor", "toJSON", "length", "emit"]
    assert value == json.loads(body)


def test_an_emit_after_the_end_goes_nowhere() -> None:
    code = "var e = emit; Promise.resolve().then(function () { e(666, 666); }); kept = e;"
    with mapper(AROUND % code) as made:
        results = made.map(documents(0, of=5))
    assert [rows(each) for each in results] == [[], *[[(1, 1)]] * 4]


def test_documents_with_a_hundred_thousand_rows_are_mapped() -> None:
    code = "for (var i = 0; i < 100000; i++) emit(i, 'row');"
    with mapper(AROUND % code, worker_memory=256 * MIB) as made:
        results = made.map(documents(0, 1, 2, 3, of=6))
    assert [len(each.rows[0]) for each in results] == [100_000] * 4 + [1] * 2


@pytest.mark.parametrize("deep", [b"[" * 900 + b"]" * 900, b'{"a":' * 300 + b"1" + b"}" * 300])
def test_deep_documents_are_mapped(deep: bytes) -> None:
    with mapper("function (doc) { emit(1, doc); }") as made:
        ((_, value),) = rows(made.map([document(deep)])[0])
    assert json.dumps(value).replace(" ", "").encode() == deep


def test_documents_that_are_too_deep_are_named() -> None:
    for deep in (b"[" * 5_000 + b"]" * 5_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000):
        with mapper("function (doc) { emit(1, 1); }") as made:
            first, second = made.map([document(deep), document({})])
        assert "nested too deeply" in str(first.error)
        assert rows(second) == [(1, 1)]


def test_a_large_document_is_mapped() -> None:
    body = {"bad": False, "text": "x" * 20_000_000}
    with mapper("function (doc) { emit(doc.text.length, 1); }", worker_memory=512 * MIB) as made:
        first, second = made.map([document(body), document({"text": ""})])
    assert (rows(first), rows(second)) == ([(20_000_000, 1)], [(0, 1)])


def test_a_killed_process_costs_no_row() -> None:
    with mapper(AROUND % "") as made:
        assert made._javascript is not None
        check(made.map(documents()), words="")
        os.kill(made._javascript._idle[0].child.pid, signal.SIGKILL)
        check(made.map(documents(of=1_000)), words="")
        assert made._javascript.restarts == 1


def test_a_process_that_is_killed_again_and_again_costs_no_row() -> None:
    with mapper(AROUND % "") as made:
        maps = made._javascript
        assert maps is not None
        check(made.map(documents(of=1)), words="")
        done = threading.Event()
        start, killed = process.Child.start, []

        def kill_soon(config: process.Config) -> process.Child:
            child = start(config)
            if len(killed) < 3:
                killed.append(child.pid)
                os.kill(child.pid, signal.SIGKILL)
            return child

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process.Child, "start", kill_soon)
            os.kill(maps._idle[0].child.pid, signal.SIGKILL)
            check(made.map(documents(of=1_000)), words="")
        done.set()
        assert len(killed) == 3


RUBBISH = {
    "too large a frame": struct.pack(">I", 2**31) + b"x" * 100,
    "no JSON": struct.pack(">I", 6) + b"=[[1,2",
    "too many lines": struct.pack(">I", 13) + b"=1,\n2,\n3,\n4,\n",
    "no rows": struct.pack(">I", 4) + b"=[5]",
    "no pairs": struct.pack(">I", 6) + b"=[[5]]",
    "an empty frame": struct.pack(">I", 0),
    "an unknown kind": struct.pack(">I", 3) + b"?[]",
    "half a frame": struct.pack(">I", 99) + b"=[",
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH)
def test_a_process_that_writes_rubbish_is_replaced(
    rubbish: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "child.py"
    program.write_text(
        "import os, struct, sys\n"
        "ready = struct.pack('>I', 1) + b'='\n"
        f"os.write(1, ready + {rubbish!r})\n"
    )
    popen = process.subprocess.Popen

    def lying(command: list[str], **options: Any) -> Any:
        liars.append(command)
        return popen([sys.executable, str(program)], **options)

    liars: list[list[str]] = []
    with mapper(AROUND % "") as made:
        monkeypatch.setattr(process.subprocess, "Popen", lying)
        (result,) = made.map(documents(of=1))
    assert "view 'v0': it ended its process: the process " in str(result.error)
    assert len(liars) == 2


def test_a_process_that_says_nothing_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mapper(AROUND % "", map_timeout_s=0.1) as made:
        check(made.map(documents()), words="")
        assert made._javascript is not None
        monkeypatch.setattr(process, "_GRACE_S", 0.2)
        os.kill(made._javascript._idle[0].child.pid, signal.SIGSTOP)
        check(made.map(documents()), words="")


def test_a_process_has_no_files_but_its_pipes() -> None:
    ours = socket.socketpair()
    with mapper(AROUND % "") as made, Path(__file__).open() as inherited, ours[0], ours[1]:
        made.map(documents(of=1))
        assert made._javascript is not None
        pid = made._javascript._idle[0].child.pid
        files, own = ([os.readlink(p) for p in fds(each)] for each in (pid, os.getpid()))
        assert inherited.name not in files
        assert not {each for each in files if "socket" in each} & set(own)
        limits = Path(f"/proc/{pid}/limits").read_text()
    assert [line.split()[3] for line in limits.splitlines() if "open files" in line] == ["0"]


def fds(pid: int) -> list[Path]:
    """The descriptors of a process that are open now."""
    return [each for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]


def test_the_process_ends_with_the_mapper() -> None:
    with mapper(AROUND % "") as made:
        made.map(documents(of=1))
        assert made._javascript is not None
        pid = made._javascript._idle[0].child.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
