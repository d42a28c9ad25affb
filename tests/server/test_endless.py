"""Answers without an end: samples, events and changes, how they are bounded, how they stop."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from tests.server.support import PEER
from tests.server.test_http import FakeNode
from uprmc.client.state import Saved
from uprmc.config import HttpSettings
from uprmc.model import SEQNO_MAX, FailoverEntry, SnapshotRange
from uprmc.server.http.changes import ChangeFeed, Changes, ChangesQuestion, decoded, encoded
from uprmc.server.http.endless import KEEPALIVE_S, Endless, EventStream, Live
from uprmc.server.http.site import MAX_CLIENTS, node_site
from uprmc.server.log import Events
from uprmc.server.net.connections import Buffers
from uprmc.server.work.turns import LongWork

SSE = "Accept: text/event-stream"
SETTINGS = HttpSettings(change_readers=2, event_readers=3, viewers=4)


class Site:
    """The http listener in memory, with one panel that the test sets."""

    def __init__(self) -> None:
        self.reactor = MemoryReactorClock()
        self.panels = {"name": "<b>", "vbuckets": [[0, "active", 1], [1, "active", 1]]}
        self.made = 0
        work = LongWork(self.reactor)
        panels = {name: self._panel(name) for name in self.panels}
        self.live = Live(self.reactor, work, panels, SETTINGS)
        self.events = Events(lambda: 0.0)
        self.buffers = Buffers(1_000_000, self.reactor.seconds)
        changes = Changes(self.reactor, lambda _: None, {}, SETTINGS, self.buffers)
        self.changes = changes
        self.endless = Endless(
            {b"/live": self.live, b"/changes": changes},
            {b"/events": EventStream(self.reactor, self.events, "life", SETTINGS)},
        )
        self.site = node_site(
            FakeNode(), self.reactor, self.endless, settings=SETTINGS, account=self.buffers
        )
        self.channels = []

    def _panel(self, name):
        def panel():
            self.made += 1
            return self.panels[name]

        return panel

    def get(self, path: str, *headers: str, method: str = "GET"):
        """Ask on a new connection; returns its transport."""
        transport = StringTransport(IPv4Address("TCP", "127.0.0.1", 80), PEER)
        channel = self.site.buildProtocol(PEER)
        channel.makeConnection(transport)
        self.channels.append(channel)
        lines = [f"{method} {path} HTTP/1.1", "Host: h", *headers, "", ""]
        channel.dataReceived("\r\n".join(lines).encode())
        return transport

    def pass_time(self, seconds: float = 1.0) -> None:
        self.reactor.pump([seconds, *[0.0] * 20])


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.endless.stop()
    for _ in range(5):
        made.pass_time(0.2)
    assert not [call for call in made.reactor.getDelayedCalls() if "Outflow" in str(call)]


def samples(transport) -> list[dict]:
    found = re.findall(rb"^data: (.*)$", transport.value(), re.MULTILINE)
    return [json.loads(line) for line in found]


def test_a_viewer_gets_everything_and_then_what_has_changed(site: Site) -> None:
    transport = site.get("/live")
    site.pass_time(0)
    site.panels["vbuckets"] = [[0, "active", 1], [1, "dead", 2]]
    site.pass_time()
    first, second = samples(transport)
    assert first["name"] == "<b>"
    assert second == {"vbuckets": [[1, "dead", 2]], "gone": []}
    assert b"text/event-stream" in transport.value()


def test_nothing_is_sampled_while_nobody_looks_and_once_for_all_who_do(site: Site) -> None:
    site.pass_time(10)
    assert site.made == 0
    for _ in range(3):
        site.get("/live")
    site.pass_time(0)
    before = site.made
    site.pass_time()
    assert site.made - before == len(site.panels)
    for channel in site.channels:
        channel.connectionLost(Failure(ConnectionDone()))
    before = site.made
    site.pass_time(5)
    assert site.made == before


def test_a_slow_viewer_skips_samples_then_gets_everything(site: Site) -> None:
    transport = site.get("/live")
    site.pass_time(0)
    transport.producer.pauseProducing()
    transport.clear()
    site.pass_time()
    assert transport.value() == b""
    transport.producer.resumeProducing()
    site.pass_time()
    assert set(samples(transport)[0]) == set(site.panels)


def test_a_viewer_that_never_reads_is_disconnected(site: Site) -> None:
    transport = site.get("/live")
    transport.producer.pauseProducing()
    for _ in range(int(SETTINGS.reader_timeout_s / KEEPALIVE_S) + 1):
        site.pass_time(KEEPALIVE_S)
    assert transport.disconnected or transport.disconnecting or transport.aborting


@pytest.mark.parametrize(("path", "limit"), [("/changes", 2), ("/events", 3), ("/live", 4)])
def test_one_reader_above_the_limit_of_its_kind_is_refused(
    site: Site, path: str, limit: int
) -> None:
    found = [site.get(path, SSE).value() for _ in range(limit + 1)]
    assert all(b" 200 " in each for each in found[:-1])
    assert b" 503 " in found[-1]
    assert b"Retry-After" in found[-1]


def test_events_come_as_they_happen_and_go_on_from_the_last(site: Site) -> None:
    site.events.tell("purge", {"vb": 1})
    transport = site.get("/events", SSE)
    site.events.tell("purge", {"vb": 2})
    assert [each["vb"] for each in samples(transport)] == [1, 2]
    later = site.get("/events", SSE, "Last-Event-ID: life-0")
    assert [each["vb"] for each in samples(later)] == [2]
    other = site.get("/events", SSE, "Last-Event-ID: before-7")
    assert [each["vb"] for each in samples(other)] == [1, 2]
    assert b"application/json" in site.get("/events").value()


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("since=soon", "since"),
        ("since=%FF", "since"),
        ("until=never", "until"),
        ("vbuckets=9-1", "vbuckets"),
        ("vbuckets=7", "vBucket 7"),
        ("values=maybe", "values"),
        ("from=0", "since"),
    ],
)
def test_a_question_without_sense_is_a_400_that_says_what_to_say(
    site: Site, query: str, word: str
) -> None:
    answer = site.get(f"/changes?{query}").value()
    assert b" 400 " in answer
    assert word.encode() in answer


def test_what_a_client_does_not_read_is_in_the_account_until_it_has_read_it(site: Site) -> None:
    transport = site.get("/healthz")
    assert site.buffers.unsent == 0
    channel = site.channels[-1]
    channel.pauseProducing()
    transport.clear()
    channel.dataReceived(b"GET /status.json HTTP/1.1\r\nHost: h\r\n\r\n")
    body = transport.value().partition(b"\r\n\r\n")[2]
    assert site.buffers.unsent == len(body) > 0
    channel.resumeProducing()
    assert site.buffers.unsent == 0


def test_a_client_that_does_not_read_is_closed_when_the_node_holds_too_much(site: Site) -> None:
    transport = site.get("/healthz")
    channel = site.channels[-1]
    channel.pauseProducing()
    channel.write(b"x" * site.buffers.limit)
    assert not transport.disconnecting
    channel.write(b"x")
    assert transport.disconnecting
    channel.write(b"x")
    assert (site.buffers.unsent, site.buffers.shed) == (0, 1)


def test_changes_do_not_wait_for_a_reader_that_has_gone_without_reading(site: Site) -> None:
    transport = site.get("/changes")
    (outflow,) = site.changes._readers
    feed = ChangeFeed(site.reactor, outflow, ChangesQuestion(), {}, each_token=False)
    transport.producer.pauseProducing()
    waiting = feed.snapshot_end(0, 1)
    assert not waiting.called
    site.channels[-1].connectionLost(Failure(ConnectionDone()))
    assert waiting.called
    assert feed.snapshot_end(0, 2) is None
    feed.stop_telling()


def test_head_of_an_answer_without_an_end_ends(site: Site) -> None:
    assert b" 200 " in site.get("/live", method="HEAD").value()
    assert b" 405 " in site.get("/changes", method="POST").value()


UUID = 0xFEDCBA9876543210


def place(seqno: int, uuid: int, start: int, end: int) -> Saved:
    return Saved(seqno, SnapshotRange(start, end), (FailoverEntry(uuid, 0),), seqno)


@pytest.mark.parametrize("top", [3, 2**16 - 1, 2**16, 2**40, 2**63])
def test_a_token_says_what_was_put_into_it(top: int) -> None:
    places = {
        5: place(top, UUID, top, top),
        6: place(2, 1, 0, top),
        7: place(1, 9, 0, 1),  # everything of the snapshot has come
        8: Saved(0, SnapshotRange(0, 0), (), 0),
    }
    ends = {7: place(1, 9, 1, 1)}
    assert decoded(encoded(places)) == {5: places[5], 6: places[6], **ends}
    log = (FailoverEntry(4, top), FailoverEntry(UUID, 0))
    assert decoded(encoded({5: places[5]._replace(log=log)})) == {5: places[5]}


def test_tokens_of_1024_vbuckets_are_as_long_as_promised_and_a_request_can_have_them(
    site: Site,
) -> None:
    def token(seqno: int, uuid: int, begin: int) -> str:
        return encoded({n: place(seqno, uuid, seqno - begin, seqno + begin) for n in range(1024)})

    assert len(token(2**32 - 1, 2**48 - 1, 0)) <= 16 * 1024 + 16
    assert len(token(2**32 - 9, 2**48 - 1, 1)) <= 28 * 1024
    longest = token(SEQNO_MAX - 9, 2**64 - 1, 1)
    assert len(longest) <= 47 * 1024
    for asks in ((f"/changes?since={longest}",), ("/changes", f"Last-Event-ID: {longest}")):
        assert b" 200 " in site.get(*asks).value()


@pytest.mark.parametrize("token", ["", "A", "é", "AQ", "gQIC", "////////", "gQEBAAABAAE" * 3])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="is no token"):
        decoded(token)


def test_a_token_of_another_format_is_refused_with_what_may_be_said(site: Site) -> None:
    answer = site.get("/changes?since=AgAFAAHvASNF").value()
    assert b" 400 " in answer
    assert b"this is no token: say now, 0, or the token of a line" in answer


@given(st.binary(max_size=80))
def test_a_token_of_any_bytes_is_refused_or_names_possible_places(data: bytes) -> None:
    try:
        found = decoded(urlsafe_b64encode(b"\x81" + data).decode())
    except ValueError:
        return
    for saved in found.values():
        assert saved.snapshot.start <= saved.seqno <= saved.snapshot.end <= SEQNO_MAX


def test_readers_leave_room_for_probes(site: Site) -> None:
    assert site.site.clients_max == SETTINGS.readers + MAX_CLIENTS


def test_the_page_sets_text_only_and_loads_nothing_from_elsewhere(site: Site) -> None:
    page = site.get("/").value()
    assert (
        b"Content-Security-Policy: default-src 'none'; style-src 'self'; script-src 'self'" in page
    )
    scripts = [
        site.get(f"/{name.decode()}").value() for name in re.findall(rb"\b([a-z]+[.]js)\"", page)
    ]
    assert len(scripts) == 4
    script = b"".join(scripts)
    for word in (b"innerHTML", b"outerHTML", b"insertAdjacentHTML", b"document.write", b"eval("):
        assert word not in script
    for text in (page, script, site.get("/page.css").value()):
        assert not re.search(rb"(src|href|url)\W{1,3}(https?:)?//", text)
