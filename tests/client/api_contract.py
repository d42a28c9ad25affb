"""What both APIs of the consumer must do, shown with real nodes: one suite, an adapter for each."""

from __future__ import annotations

import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.proxy import Proxy
from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from interop.wire import DELETE, OK, SETQ, Wire, frame, store
from tests.server.test_dialer import certificate_for
from uprmc.client import Change, Document, Handler, MemoryState, SqliteState
from uprmc.client.errors import (
    ClientError,
    ConnectionLost,
    MisuseError,
    NodeUnreachable,
    RollbackRefused,
    TlsFailed,
    WaitedTooLong,
)
from uprmc.client.options import Until

VBUCKETS = 4
LIMIT_S = 30.0
STOP_PERSISTENCE = 0x80

#: Nobody listens there.
NOWHERE = "127.0.0.1:1"


class Boom(Exception):
    """A handler's own failure."""


class Recorder(Handler):
    """Keeps a copy, and a diary.

    Attributes:
        documents: key -> value.
        changes: every change.
        diary: every other call: name and arguments.
        fail_at: the change, counted from 1, that it fails at; 0 = none.
        told: notified of every call.
    """

    def __init__(self) -> None:
        self.documents: dict[bytes, bytes | None] = {}
        self.changes: list[Change] = []
        self.diary: list[tuple[Any, ...]] = []
        self.fail_at = 0
        self.told = threading.Condition()

    def keys(self) -> list[bytes]:
        return [change.key for change in self.changes]

    def names(self) -> list[str]:
        return [entry[0] for entry in self.diary]

    def _change(self, change: Change) -> None:
        with self.told:
            self.changes.append(change)
            if len(self.changes) == self.fail_at:
                raise Boom
            self.documents[change.key] = change.value
            self.told.notify_all()

    def _note(self, *entry: object) -> None:
        with self.told:
            self.diary.append(entry)
            self.told.notify_all()

    def mutation(self, change: Change) -> Any:
        self._change(change)

    def deletion(self, change: Change) -> Any:
        self._change(change)

    def snapshot_end(self, vbucket: int, end: int) -> Any:
        self._note("snapshot_end", vbucket, end)

    def rollback(self, vbucket: int, seqno: int) -> Any:
        if not seqno:
            self.documents.clear()
        self._note("rollback", vbucket, seqno)

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> Any:
        self.documents[key] = None if document is None else document.value
        self._note("undo", vbucket, key)


class Api:
    """One of the APIs, for one client; made with a place, a handler and a client's options.

    `tls` is the path of the certificate to trust.
    """

    def run(self, until: Until = None, timeout_s: float | None = LIMIT_S) -> None:
        """Run to the end, and raise what it ended with."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to run beside the test."""
        raise NotImplementedError

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until what the handler was told makes the condition true."""
        raise NotImplementedError

    def join(self) -> None:
        """Wait until what was started ends by itself, and raise what it ended with."""
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def barrier(self, text: str | None = None, timeout_s: float | None = LIMIT_S) -> None:
        """Wait for a barrier, and raise what broke it."""
        raise NotImplementedError

    def forget(self) -> list[int]:
        """End the registration; return in which vBuckets there was one."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop, close, and check that nothing is left behind."""
        raise NotImplementedError

    @property
    def client(self) -> Any:
        raise NotImplementedError


MakeApi = Callable[..., Api]


def write(server: ServerProcess, keys: list[bytes], vbucket: int = 0, value: bytes = b"v") -> None:
    """Write documents and return when the node has acknowledged them."""
    with Wire(server.upr) as wire:
        frames = [store(SETQ, key, value, vbucket=vbucket) for key in keys]
        assert wire.replies_until_noop(*frames) == []


def names(prefix: str, count: int) -> list[bytes]:
    return [b"%s-%d" % (prefix.encode(), number) for number in range(count)]


def on_disk(server: ServerProcess, key: bytes, vbucket: int = 0) -> bool:
    """Whether a document is, by OBSERVE."""
    place = struct.pack(">HH", vbucket, len(key)) + key
    with Wire(server.upr) as wire:
        answer = wire.ask(frame(0x92, value=place))
    return answer.value[4 + len(key)] == 1


class ApiContract:
    """Inherit from it, and give the fixture `make`: `make(place, handler, **options) -> Api`."""

    @pytest.fixture(scope="class", name="shared")
    @classmethod
    def _shared(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
        """A node that stays as it is; each test writes keys of its own."""
        options = ["--vbuckets", str(VBUCKETS), "--no-sync"]
        with start_uprmc(tmp_path_factory.mktemp("data"), *options) as server:
            yield server
            server.stop()

    @pytest.fixture(name="handler")
    def _handler(self) -> Recorder:
        return Recorder()

    # --- streams --------------------------------------------------------------------------------

    def test_everything_up_to_now_is_handed_over_and_that_is_the_end(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        keys = names("all", 2_000)
        for vbucket in range(VBUCKETS):
            write(shared, keys[vbucket::VBUCKETS], vbucket)
        api = make(str(shared.upr), handler)
        api.run(until="now")
        assert handler.documents.keys() >= set(keys)
        positions = api.client.positions()
        assert sorted(positions) == list(range(VBUCKETS))
        ends = {entry[1]: entry[2] for entry in handler.diary if entry[0] == "snapshot_end"}
        assert {vbucket: place.seqno for vbucket, place in positions.items()} == ends

    def test_what_is_written_later_comes_as_it_happens(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        write(shared, [b"before"])
        api = make(str(shared.upr), handler)
        api.start()
        api.wait(lambda: b"before" in handler.documents)
        write(shared, [b"after"], 3, b"later")
        api.wait(lambda: handler.documents.get(b"after") == b"later")
        with Wire(shared.upr) as wire:
            assert wire.ask(frame(DELETE, b"after", vbucket=3)).status == OK
        api.wait(lambda: handler.documents[b"after"] is None)
        api.stop()
        (metrics,) = api.client.metrics().nodes.values()
        assert metrics.connected

    def test_large_documents_pass_because_they_are_acknowledged(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        keys = names("large", 12)
        write(shared, keys, value=b"x" * 500_000)
        make(str(shared.upr), handler, buffer_bytes=1_000_000).run(until="now")
        assert [len(handler.documents[key] or b"") for key in keys] == [500_000] * 12

    def test_it_ends_when_a_function_says_so(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        write(shared, [b"function"])
        make(str(shared.upr), handler).run(until=lambda: b"function" in handler.documents)

    def test_it_ends_when_the_time_is_up(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        api = make(str(shared.upr), handler)
        with pytest.raises(WaitedTooLong, match=r"has run for 0\.3 s"):
            api.run(timeout_s=0.3)

    # --- state ----------------------------------------------------------------------------------

    @pytest.mark.acceptance("D13")
    def test_a_restart_goes_on_where_the_state_says(
        self, make: MakeApi, shared: ServerProcess, tmp_path: Path
    ) -> None:
        write(shared, names("first", 100))
        options = {"state": tmp_path / "state.db", "total_vbuckets": VBUCKETS}
        api = make(str(shared.upr), Recorder(), **options)
        api.run(until="now")
        api.close()
        write(shared, names("second", 10), 1)
        again = Recorder()
        make(str(shared.upr), again, **options).run(until="now")
        assert again.keys() == names("second", 10)

    @pytest.mark.acceptance("X14")
    def test_one_whose_state_outlives_it_is_registered_and_has_reported_at_the_end(
        self, make: MakeApi, shared: ServerProcess, tmp_path: Path
    ) -> None:
        write(shared, [b"registered"], 2)
        options = {"state": tmp_path / "state.db", "total_vbuckets": VBUCKETS}
        api = make(str(shared.upr), Recorder(), register="index", **options)
        api.run(until="now")
        name = api.client.instance.encode()
        wanted = {
            b"vb_%d:row_%s:watermark" % (number, name): place.seqno
            for number, place in api.client.positions().items()
        }
        api.close()

        def reported() -> bool:
            with Wire(shared.upr) as wire:
                told = wire.statistics(b"watermarks")
            return all(int(told.get(each, b"-1")) == seqno for each, seqno in wanted.items())

        assert len(wanted) == VBUCKETS
        wait_until(reported, shared.log)
        api = make(str(shared.upr), Recorder(), register=False, **options)
        assert api.client.instance is None
        with pytest.raises(MisuseError, match="not registered"):
            api.forget()
        api.close()
        api = make(str(shared.upr), Recorder(), register="index", **options)
        api.start()
        with pytest.raises(MisuseError, match="stop it before"):
            api.forget()
        api.stop()
        assert api.forget() == list(range(VBUCKETS))
        assert not reported()

    def test_what_was_reached_is_saved_as_soon_as_nothing_more_comes(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        class Telling(MemoryState):
            def commit(self, *arguments: Any) -> None:
                super().commit(*arguments)
                with handler.told:
                    handler.told.notify_all()

        state = Telling()
        api = make(str(shared.upr), handler, state=state, vbuckets=[0])
        api.start()
        write(shared, [b"saved"])
        api.wait(
            lambda: b"saved" in handler.documents and state.load()[0].seqno >= handler.diary[-1][2]
        )
        api.stop()

    def test_with_the_handlers_own_database_a_change_takes_effect_exactly_once(
        self, make: MakeApi, shared: ServerProcess, tmp_path: Path
    ) -> None:
        """A failure takes back what was written since the last commit, as a crash would."""
        keys = names("once", 300)
        for first in range(0, 300, 100):
            write(shared, keys[first : first + 100], first // 100)
        with sqlite3.connect(tmp_path / "mine.db") as database:
            database.execute("CREATE TABLE seen (key BLOB)")
            failing = _Counting(database, fail_at=150)
            state = SqliteState(database, name="once", vbuckets=VBUCKETS)
            with pytest.raises(Boom):
                make(str(shared.upr), failing, state=state).run(until="now")
            assert not database.in_transaction
            make(str(shared.upr), _Counting(database), state=state).run(until="now")
            found = database.execute("SELECT key, count(*) FROM seen GROUP BY key").fetchall()
            counts = {bytes(key): count for key, count in found}
            assert {key: counts.get(key) for key in keys} == dict.fromkeys(keys, 1)
        database.close()

    def test_a_restart_after_the_handlers_failure_misses_nothing(
        self, make: MakeApi, shared: ServerProcess, tmp_path: Path
    ) -> None:
        keys = names("failing", 200)
        write(shared, keys, 2)
        options = {"state": tmp_path / "state.db", "total_vbuckets": VBUCKETS, "vbuckets": [2]}
        handler = Recorder()
        handler.fail_at = 100
        api = make(str(shared.upr), handler, **options)
        with pytest.raises(Boom):
            api.run(until="now")
        api.close()
        make(str(shared.upr), handler, **options).run(until="now")
        assert handler.documents.keys() >= set(keys)

    def test_a_failure_beside_the_test_is_told_at_the_end(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        write(shared, [b"told"])
        handler.fail_at = 1
        api = make(str(shared.upr), handler)
        api.start()
        with pytest.raises(Boom):
            api.join()
        assert len(handler.changes) == 1

    # --- barriers and stopping ------------------------------------------------------------------

    @pytest.mark.acceptance("D16")
    def test_behind_a_barrier_everything_acknowledged_before_is_handed_over(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        api = make(str(shared.upr), handler)
        api.start()
        for round_ in range(3):
            keys = names(f"barrier-{round_}", 200)
            for vbucket in range(VBUCKETS):
                write(shared, keys[vbucket::VBUCKETS], vbucket)
            api.barrier(f"round {round_}")
            assert handler.documents.keys() >= set(keys)
        api.stop()

    def test_a_barrier_runs_the_client_if_it_does_not_run(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        write(shared, [b"alone"])
        api = make(str(shared.upr), handler)
        api.barrier()
        assert b"alone" in handler.documents
        write(shared, [b"again"])
        api.barrier()
        assert b"again" in handler.documents

    def test_a_barrier_that_cannot_be_is_refused(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        api = make(str(shared.upr), handler)
        with pytest.raises(MisuseError, match="1 to "):
            api.barrier("")
        api.run(until="now")

    def test_a_barrier_that_nobody_answers_ends_in_time(
        self, make: MakeApi, handler: Recorder
    ) -> None:
        api = make(NOWHERE, handler, patience_s=None)
        api.start()
        with pytest.raises(WaitedTooLong, match=r"was not reached in 0\.1 s"):
            api.barrier(timeout_s=0.1)
        api.stop()

    def test_after_stop_nothing_more_is_handed_over_and_it_can_run_again(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        api = make(str(shared.upr), handler)
        api.start()
        api.barrier()
        api.stop()
        count = len(handler.changes)
        write(shared, [b"while-stopped"])
        assert len(handler.changes) == count
        api.run(until="now")
        assert handler.keys()[count:] == [b"while-stopped"]
        api.stop()

    def test_it_runs_once_at_a_time(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        api = make(str(shared.upr), handler)
        with pytest.raises(MisuseError, match="until 'later': say 'now'"):
            api.run(until="later")  # type: ignore[arg-type]
        api.start()
        with pytest.raises(MisuseError, match="runs already"):
            api.run(until="now")
        api.stop()

    # --- nodes ----------------------------------------------------------------------------------

    def test_a_state_that_another_client_runs_with_is_refused(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        state = MemoryState()
        one = make(str(shared.upr), handler, state=state)
        other = make(str(shared.upr), handler, state=state)
        one.start()
        one.wait(lambda: bool(one.client.positions()))
        with pytest.raises(MisuseError, match="another client runs with this state"):
            other.run("now")
        one.stop()
        other.run("now")

    def test_a_node_that_was_never_reached_is_an_error_in_the_end(
        self, make: MakeApi, handler: Recorder
    ) -> None:
        api = make(NOWHERE, handler, patience_s=0.2)
        with pytest.raises(NodeUnreachable, match=r"no node answers at 127\.0\.0\.1:1: .*refused"):
            api.run()

    def test_a_connection_that_is_lost_is_doubted_only_if_nothing_was_heard(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        with Proxy(shared.upr) as proxy:
            api = make(str(proxy.address), handler, redial=False)
            api.start()
            api.wait(lambda: bool(api.client.positions()))
            proxy.cut()
            with pytest.raises(ConnectionLost) as told:
                api.join()
            assert "TLS" not in str(told.value)
        with Proxy(shared.upr) as proxy:
            proxy.cut_after(1)
            with pytest.raises(ConnectionLost, match=r"ended: .*; does its listener speak TLS\?"):
                make(str(proxy.address), handler, redial=False).run("now")

    @pytest.mark.acceptance("D46", "D33")
    def test_a_node_that_lost_its_last_changes_is_dialled_again_and_they_are_undone(
        self, make: MakeApi, tmp_path: Path, handler: Recorder
    ) -> None:
        lost, options = names("lost", 5), ["--vbuckets", "1"]
        with start_uprmc(tmp_path / "data", *options) as server:
            write(server, [b"kept", b"lost-0"])
            api = make(str(server.upr), handler)
            api.start()
            api.wait(lambda: len(handler.documents) == 2)
            while not on_disk(server, b"lost-0"):
                pass
            with Wire(server.upr) as wire:
                assert wire.ask(frame(STOP_PERSISTENCE)).status == OK
            write(server, lost, value=b"unsaved")
            api.wait(lambda: handler.documents.get(lost[-1]) == b"unsaved")
            upr = str(server.upr)
            server.kill()
        with start_uprmc(tmp_path / "data", "--upr", upr, *options) as server:
            api.wait(lambda: handler.names().count("undo") == len(lost))
            write(server, [b"new"])
            api.wait(lambda: b"new" in handler.documents)
            api.stop()
            server.stop()
        assert {key: value for key, value in handler.documents.items() if value is not None} == {
            b"kept": b"v",
            b"lost-0": b"v",
            b"new": b"v",
        }

    def test_a_rollback_can_be_refused(
        self, make: MakeApi, shared: ServerProcess, handler: Recorder
    ) -> None:
        write(shared, [b"refused"], 3)
        start = {3: (1, 0x77)}
        api = make(str(shared.upr), handler, vbuckets=[3], start=start, on_rollback="fail")
        with pytest.raises(RollbackRefused, match="vBucket 3"):
            api.run(until="now")
        assert handler.changes == []

    # --- TLS ------------------------------------------------------------------------------------

    def test_over_tls(self, make: MakeApi, tmp_path: Path, handler: Recorder) -> None:
        certificate, key = certificate_for(tmp_path, "127.0.0.1")
        stranger = tmp_path / "stranger"
        stranger.mkdir()
        other, _ = certificate_for(stranger, "127.0.0.1")
        data, options = tmp_path / "data", ["--vbuckets", "1"]
        keys = names("tls", 12)
        with start_uprmc(data, *options) as server:
            write(server, keys, value=b"x" * 500_000)
            server.stop()
        with start_uprmc(data, *options, "--tls-cert", certificate, "--tls-key", key) as server:
            place = str(server.upr)
            make(place, handler, tls=certificate).run(until="now")
            assert [len(handler.documents[key] or b"") for key in keys] == [500_000] * 12
            with pytest.raises(TlsFailed, match="whether its certificate is trusted here"):
                make(place, Recorder(), tls=other, patience_s=0.3).run()
            with pytest.raises(ClientError):
                make(place, Recorder(), patience_s=0.3).run()
            server.stop()

    def test_a_listener_without_tls_is_named(
        self, make: MakeApi, shared: ServerProcess, tmp_path: Path, handler: Recorder
    ) -> None:
        certificate, _ = certificate_for(tmp_path, "127.0.0.1")
        with pytest.raises(TlsFailed, match="does not speak TLS"):
            make(str(shared.upr), handler, tls=certificate, patience_s=0.3).run()


class _Counting(Handler):
    """Writes a row for each change."""

    def __init__(self, database: sqlite3.Connection, fail_at: int = 0) -> None:
        self._database = database
        self._left = fail_at

    def mutation(self, change: Change) -> None:
        self._left -= 1
        if not self._left:
            raise Boom
        self._database.execute("INSERT INTO seen VALUES (?)", (change.key,))
