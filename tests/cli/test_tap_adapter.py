"""``uprmc tap-adapter`` as a process between real nodes and clients that speak TAP."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop import tap_wire as t
from interop.proxy import lasting_port
from interop.server_process import ServerProcess, start_uprmc
from interop.tap_copy import Documents, TapCopy, TapReader
from interop.tap_nodes import apart, documents_of
from interop.tap_wire import TapWire
from interop.waiting import wait_until
from tests.cli.here import Here, runner
from tests.cli.support import uprmc
from tests.cli.tap_support import Writer, start_adapter
from tests.server.test_dialer import certificate_for
from uprmc.client.sqlite_state import SqliteState
from uprmc.client.tap_state import TapState

pytestmark = pytest.mark.acceptance("D56")

VBUCKETS = 8
ALL = range(VBUCKETS)
SMALL = ("--vbuckets", str(VBUCKETS))
LIVE = t.BACKFILL | t.SUPPORT_ACK | t.FIX_FLAGS
KEPT = LIVE | t.REGISTERED | t.CHECKPOINT
WAIT_S = 30.0


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    for name in [each for each in os.environ if each.startswith("UPRMC_")]:
        monkeypatch.delenv(name)
    return runner(capsys)


@pytest.fixture(name="node", scope="module")
def _node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("node"), *SMALL) as process:
        yield process


@pytest.fixture(name="adapter", scope="module")
def _adapter(node: ServerProcess) -> Iterator[ServerProcess]:
    with start_adapter(node.upr) as process:
        yield process
        process.stop()


def fill(node: ServerProcess, mark: bytes, each: int = 40) -> None:
    assert node.upr is not None
    with Writer(node.upr) as writer:
        for number in ALL:
            keys = [b"%s-%d-%d" % (mark, number, n) for n in range(each)]
            writer.set(number, *keys, value=mark * 30, flags=0x11223344)
            writer.delete(number, *keys[::5])


def held(node: ServerProcess) -> Documents:
    assert node.upr is not None
    return documents_of(node.upr, ALL)


def read_until_equal(reader: TapReader, wanted: Documents) -> None:
    reader.until(lambda: reader.copy.documents == wanted)


# --- clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [True, False])
def test_a_dump_is_complete_and_ends_with_the_connection(
    node: ServerProcess, adapter: ServerProcess, acks: bool
) -> None:
    fill(node, b"dump")
    flags = t.DUMP | t.FIX_FLAGS | (t.SUPPORT_ACK if acks else 0)
    with TapReader(adapter.memcached, t.connect(b"dump", flags)) as reader:
        copy = reader.until_closed()
    assert not apart(held(node), copy.documents)


def test_a_backfill_and_live_changes_arrive_byte_for_byte(
    node: ServerProcess, adapter: ServerProcess
) -> None:
    fill(node, b"before")
    with TapReader(adapter.memcached, t.connect(b"live", LIVE)) as reader:
        read_until_equal(reader, held(node))
        fill(node, b"after")
        read_until_equal(reader, held(node))
        assert len(reader.copy.documents) > 2 * 32 * VBUCKETS


def test_many_anonymous_clients_have_connections_of_their_own(
    node: ServerProcess, adapter: ServerProcess
) -> None:
    fill(node, b"many", 3)
    wanted = held(node)
    with ExitStack() as stack, start_adapter(node.upr) as second:
        readers = [
            stack.enter_context(TapReader(place, t.connect(b"", LIVE)))
            for place in (adapter.memcached, second.memcached) * 3
        ]
        for reader in readers:
            read_until_equal(reader, wanted)
        fill(node, b"more", 3)
        for reader in readers:
            read_until_equal(reader, held(node))


def test_keys_only_come_without_values(node: ServerProcess, adapter: ServerProcess) -> None:
    fill(node, b"keys")
    flags = t.DUMP | t.KEYS_ONLY
    with TapReader(adapter.memcached, t.connect(b"keys", flags)) as reader:
        documents = reader.until_closed().documents
    assert documents.keys() == held(node).keys()
    assert {each.value for each in documents.values()} == {b""}


def test_a_document_larger_than_the_buffer_comes_through(
    node: ServerProcess, adapter: ServerProcess
) -> None:
    value = os.urandom(1_000_000)
    with start_adapter(node.upr, "--buffer", "64K") as small:
        assert node.upr is not None
        with Writer(node.upr) as writer:
            for n in range(5):
                writer.set(0, b"large%d" % n, value=value)
        with TapReader(small.memcached, t.connect(b"large", t.DUMP | t.SUPPORT_ACK)) as reader:
            documents = reader.until_closed().documents
        assert documents[0, b"large4"].value == value
        with Writer(node.upr) as writer:
            writer.delete(0, *(b"large%d" % n for n in range(5)))


def test_a_takeover_moves_a_vbucket_to_who_asks(tmp_path: Path) -> None:
    with start_uprmc(tmp_path / "a", *SMALL) as node, start_adapter(node.upr) as adapter:
        fill(node, b"moved", 10)
        wanted = {name: each for name, each in held(node).items() if name[0] == 3}
        flags = t.TAKEOVER | t.LIST | t.SUPPORT_ACK | t.FIX_FLAGS
        asked = t.connect(b"mv_3", flags, vbuckets=[3])
        with TapReader(adapter.memcached, asked) as reader:
            copy = reader.until_closed()
        assert copy.states == [(3, 3), (3, 1)]
        assert copy.documents == wanted
        wait_until(lambda: node.upr and not held_of(node, 3), "the takeover")


def held_of(node: ServerProcess, number: int) -> bool:
    """Whether a node still serves a vBucket."""
    assert node.upr is not None
    with Writer(node.upr) as writer:
        return writer.ask(t.frame(0x00, b"any", vbucket=number)).status != 0x07


# --- pushes and tools -----------------------------------------------------------------------------


def test_pushes_are_refused_and_counted(adapter: ServerProcess) -> None:
    with TapWire(adapter.memcached) as master:
        answers = master.push(
            t.mutation(0, 1, b"k", b"v"),
            t.deletion(0, 2, b"k"),
            t.message(t.FLUSH, opaque=3),
            t.opaque_message(t.INITIAL, 0, 4),
            t.vbucket_set(1, 0, 5),
            t.checkpoint(t.CHECKPOINT_START, 1, 0, 6),
            t.checkpoint(t.CHECKPOINT_END, 1, 0, 7),
        )
        assert [(each.opaque, each.number) for each in answers] == [
            (opaque, t.NOT_SUPPORTED) for opaque in range(1, 8)
        ]
        assert master.statistics(b"tap")[b"uprmc_tap_pushes_refused"] == b"7"


def test_tools_may_look_around_first(adapter: ServerProcess) -> None:
    with TapWire(adapter.memcached) as tool:
        assert tool.call(t.frame(0x0B)).rest
        assert tool.call(t.frame(0x0A)).number == 0
        assert tool.call(t.frame(0x00, b"key")).number == 0x81
        assert b"uprmc_tap_connects" in tool.statistics(b"tap")


def test_each_client_is_told_under_the_names_of_old_tools(
    node: ServerProcess, adapter: ServerProcess
) -> None:
    with (
        TapReader(adapter.memcached, t.connect(b"told", LIVE)) as reader,
        TapWire(adapter.memcached) as tool,
    ):
        read_until_equal(reader, held(node))
        assert tool.statistics(b"tap")[b"eq_tapq:told:connected"] == b"true"
        assert int(tool.statistics(b"tap")[b"ep_tap_count"]) >= 1


def test_a_torn_connect_hurts_nobody_else(node: ServerProcess, adapter: ServerProcess) -> None:
    with TapReader(adapter.memcached, t.connect(b"good", LIVE)) as reader:
        with TapWire(adapter.memcached) as bad:
            bad.send(t.connect(b"bad", t.DUMP | t.TAKEOVER))
            assert bad.frame().number == t.NOT_SUPPORTED
            bad.expect_closed()
        with TapWire(adapter.memcached) as bad:
            bad.send(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")
            bad.read_until_closed()
        fill(node, b"good", 2)
        read_until_equal(reader, held(node))


# --- what dies ------------------------------------------------------------------------------------


@pytest.mark.crash
def test_a_registered_client_of_a_killed_adapter_goes_on_without_loss(
    node: ServerProcess, tmp_path: Path
) -> None:
    """Killed and started again with its state, changes and deletions being made meanwhile."""
    state, copy = tmp_path / "tap.db", TapCopy()
    asked = t.connect(b"registered", KEPT)
    small = ("--state", state, "--set", "tap.ack_interval=7", "--set", "tap.ack_window=2")
    small += ("--set", "tap.noop_interval_s=3")
    fill(node, b"first")
    for round_ in range(4):
        with (
            start_adapter(node.upr, *small) as adapter,
            TapReader(adapter.memcached, asked, copy=copy) as reader,
        ):
            if round_ == 0:
                read_until_equal(reader, held(node))
                # Silent for so long, it has saved that the client has all.
                reader.until(lambda: copy.kinds[t.NOOP] > 0)
            fill(node, b"round%d" % round_, 10)
            for _ in range(20 * round_):
                reader.step()
            adapter.kill()
        fill(node, b"away%d" % round_, 5)
    with start_adapter(node.upr, *small) as adapter:
        with TapReader(adapter.memcached, asked, copy=copy) as reader:
            read_until_equal(reader, held(node))
        assert copy.kinds[t.OPAQUE, t.INITIAL] == VBUCKETS, "nobody began anew"
        with TapWire(adapter.memcached) as tool:
            assert tool.call(t.frame(t.DEREGISTER, b"registered")).number == 0
        adapter.stop()
    kept = TapState(state)
    assert kept.load() == {}
    kept.close()


def test_without_a_state_a_registered_client_begins_anew(node: ServerProcess) -> None:
    fill(node, b"forgotten", 3)
    copy = TapCopy()
    for round_ in (1, 2):
        with start_adapter(node.upr) as adapter:
            with TapReader(adapter.memcached, t.connect(b"reg", KEPT), copy=copy) as reader:
                read_until_equal(reader, held(node))
                reader.until(lambda: copy.kinds[t.OPAQUE, t.INITIAL] >= round_ * VBUCKETS)  # noqa: B023
            adapter.stop()


@pytest.mark.crash
def test_a_client_returns_when_the_node_does(tmp_path: Path) -> None:
    listen = ("--upr", f"127.0.0.1:{lasting_port()}")
    copy = TapCopy()
    asked = t.connect(b"returning", LIVE | t.REGISTERED)
    with ExitStack() as stack:
        node = stack.enter_context(start_uprmc(tmp_path / "a", *SMALL, *listen))
        fill(node, b"first", 10)
        adapter = stack.enter_context(start_adapter(node.upr))
        with TapReader(adapter.memcached, asked, copy=copy) as reader:
            read_until_equal(reader, held(node))
            node.kill()
            reader.until_closed()
        with TapReader(adapter.memcached, asked, copy=copy) as reader:
            reader.until_closed()
        node = stack.enter_context(start_uprmc(tmp_path / "a", *SMALL, *listen))
        fill(node, b"second", 10)
        with TapReader(adapter.memcached, asked, copy=copy) as reader:
            read_until_equal(reader, held(node))
        adapter.stop()


def test_an_upstream_that_is_not_there_is_told_and_clients_are_sent_away(tmp_path: Path) -> None:
    place = f"127.0.0.1:{lasting_port()}"
    with start_adapter(place) as adapter:
        wait_until(lambda: "tap_adapter.upstream_unreachable" in adapter.log(), "the log line")
        with TapReader(adapter.memcached, t.connect(b"early", LIVE)) as reader:
            reader.until_closed()
        wait_until(lambda: "name=early" in adapter.log(), "the log line")
        with start_uprmc(tmp_path / "a", *SMALL, "--upr", place) as node:
            fill(node, b"late", 3)
            with TapReader(adapter.memcached, t.connect(b"early", LIVE)) as reader:
                read_until_equal(reader, held(node))
        adapter.stop()


def test_an_upstream_that_is_there_is_told_too(node: ServerProcess) -> None:
    with start_adapter(node.upr) as adapter:
        wait_until(lambda: "tap_adapter.upstream_reached" in adapter.log(), "the log line")
        assert f"vbuckets={VBUCKETS}" in adapter.log()


def test_sighup_makes_it_read_its_settings_again(node: ServerProcess, tmp_path: Path) -> None:
    config = tmp_path / "uprmc.toml"
    config.write_text('[log]\nlevel = "error"\n')
    with start_adapter(node.upr, "--config", config) as adapter:
        config.write_text('[log]\nlevel = "info"\n')
        os.kill(adapter.pid, signal.SIGHUP)
        wait_until(lambda: "tap_adapter.reloaded" in adapter.log(), "the log line")
        adapter.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_it_in_order(node: ServerProcess, number: int, tmp_path: Path) -> None:
    with start_adapter(node.upr, "--state", tmp_path / "tap.db") as adapter:
        with TapReader(adapter.memcached, t.connect(b"bye", KEPT)) as reader:
            reader.step()
            os.kill(adapter.pid, number)
            reader.until_closed()
        assert adapter._process.wait(WAIT_S) == 0
        assert "error" not in adapter.log()


# --- TLS ------------------------------------------------------------------------------------------


def test_tls_is_spoken_to_both_sides(tmp_path: Path) -> None:
    certificate, key = certificate_for(tmp_path, "127.0.0.1")
    pair = ("--tls-cert", certificate, "--tls-key", key)
    context = ssl.create_default_context(cafile=certificate)
    with (
        start_uprmc(tmp_path / "data", *SMALL, *pair) as node,
        start_adapter(node.upr, "--upstream-ca", certificate, *pair) as adapter,
        context.wrap_socket(adapter.memcached.connect(), server_hostname="127.0.0.1") as client,
    ):
        wait_until(lambda: "upstream_reached" in adapter.log(), "the upstream")
        client.sendall(t.connect(b"secret", LIVE, opaque=1))
        received = b""
        while len(received) < 36:
            received += client.recv(1000)
        assert t.TapFrame.of(received[:36]).is_opaque(t.AUTO_NACK)


def test_an_upstream_with_tls_that_is_dialled_without_is_told(tmp_path: Path) -> None:
    certificate, key = certificate_for(tmp_path, "127.0.0.1")
    pair = ("--tls-cert", certificate, "--tls-key", key)
    with start_uprmc(tmp_path / "data", *SMALL, *pair) as node, start_adapter(node.upr) as adapter:
        wait_until(lambda: "upstream_unreachable" in adapter.log(), "the log line")
        assert "upr.dial_ca" in adapter.log()


# --- bad options ----------------------------------------------------------------------------------

UP, LISTEN = ("--upstream", "127.0.0.1:1"), ("--listen", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--upstream"),
        (UP, "--listen"),
        (("--upstream", "some where", *LISTEN), "'some where' is not HOST:PORT"),
        ((*UP, *LISTEN, "--on-rollback", "perhaps"), "--on-rollback"),
        ((*UP, *LISTEN, "--buffer", "much"), "'much' is not a size"),
        ((*UP, *LISTEN, "--buffer", "65535"), "'65535' is less than 65536 bytes"),
        ((*UP, *LISTEN, "--buffer", "1025M"), "'1025M' is more than 1073741824 bytes"),
        ((*UP, *LISTEN, "--set", "tap.names=0"), "tap.names: 0 is below the least"),
        ((*UP, *LISTEN, "--set", "tap.names"), "say --set section.name=value"),
        ((*UP, *LISTEN, "--config", "/does/not/exist.toml"), "cannot be read"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(
    here: Here, options: tuple[str, ...], said: str
) -> None:
    assert said in here("tap-adapter", *options).refused()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((*UP, "--listen", "nowhere"), "--listen: 'nowhere' is no listener"),
        ((*UP, "--listen", ":0"), "--listen: ':0' names no address"),
        ((*UP, *LISTEN, "--state", "/nowhere/at/all.db"), "see that the directory exists"),
        ((*UP, *LISTEN, "--upstream-ca", "/does/not/exist.pem"), "upr.dial_ca: /does/not"),
        ((*UP, *LISTEN, "--tls-cert", "/does/not/exist.pem"), "go together"),
    ],
)
def test_what_cannot_be_had_is_one_line_and_exit_code_2(
    options: tuple[str, ...], said: str
) -> None:
    assert said in uprmc("tap-adapter", *options).refused()


def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = uprmc("tap-adapter", *UP, "--listen", place)
    assert f"--listen: cannot listen on {place}" in ended.refused()


@pytest.mark.parametrize("kind", ["foreign", "torn", "another's"])
def test_a_state_that_is_not_ours_is_one_line_and_exit_code_2(tmp_path: Path, kind: str) -> None:
    state = tmp_path / "state.db"
    if kind == "foreign":
        state.write_text("somebody's diary\n" * 100)
    elif kind == "another's":
        SqliteState(state, name="mirror", vbuckets=8).close()
    else:
        kept = TapState(state)
        kept.commit({b"a": b"document"})
        kept.close()
        state.write_bytes(state.read_bytes().replace(b"document", b"dacument"))
    before = state.read_bytes()
    assert "state" in uprmc("tap-adapter", *UP, *LISTEN, "--state", state).refused()
    assert state.read_bytes() == before
