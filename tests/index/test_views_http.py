"""The views listener: designs, queries, refusals, and clients that mean no good."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from tests.index.fake_index import FakeGroup
from tests.index.memory_tree import MemoryTree, entries
from tests.index.web import Reply, Web
from tests.server.support import PEER
from uprmc.index.design import NAME_MAX_BYTES, design_path
from uprmc.index.errors import IndexRolledBack, QueryRefused, version_lost
from uprmc.index.http import REQUEST_S, role_of_views
from uprmc.index.http_request import COMMAND_MAX_BYTES
from uprmc.index.model import Stale, Token
from uprmc.index.query_options import OPTIONS
from uprmc.login.users import Role

MAP = {"emit": [{"key": "$.city", "value": 1}]}
DESIGN = {"views": {"by_city": {"map": MAP}, "counted": {"map": MAP, "reduce": "_count"}}}
VIEW = "/default/_design/d/_view/by_city"


def group_of(web: Web) -> FakeGroup:
    return web.service.groups["d"]


@pytest.fixture
def web() -> Web:
    web = Web()
    assert web.ask("PUT", "/default/_design/d", DESIGN).code == 201
    rows = [(b"a", 0, "Ulm", 1), (b"b", 1, "Bonn", 1), (b"c", 2, "Ulm", 2)]
    group_of(web).trees = [MemoryTree(entries(rows)), MemoryTree(entries(rows), len)]
    return web


# --- designs ------------------------------------------------------------------------------------


def test_a_design_is_put_listed_read_and_deleted() -> None:
    web = Web()
    text = json.dumps(DESIGN, indent=3).encode()
    put = web.ask("PUT", "/default/_design/d", text)
    assert (put.code, put.json) == (201, {"ok": True, "id": "_design/d"})
    assert web.get("/default/_design/d").body == text
    listed = web.get("/default/_design").json
    assert [row["id"] for row in listed["rows"]] == ["_design/d"]
    assert listed["rows"][0]["views"] == ["by_city", "counted"]
    deleted = web.ask("DELETE", "/default/_design/d")
    assert (deleted.code, deleted.json) == (200, {"ok": True, "id": "_design/d"})
    for method in ("GET", "DELETE"):
        assert web.ask(method, "/default/_design/d").code == 404
    assert web.get("/default/_design").json == {"total_rows": 0, "rows": []}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"views": 5}', b"[" * 100_000])
def test_what_is_no_design_is_refused_and_changes_nothing(web: Web, body: bytes) -> None:
    reply = web.ask("PUT", "/default/_design/d", body)
    assert (reply.code, reply.json["error"]) == (400, "bad_request")
    assert web.get("/default/_design/d").json == DESIGN


def test_names_of_designs_may_have_any_letters(web: Web) -> None:
    assert web.ask("PUT", "/default/_design/%C3%A4%20b", DESIGN).json["id"] == "_design/ä b"
    assert web.get("/default/_design/%C3%A4%20b").json == DESIGN


@pytest.mark.parametrize(
    "name",
    ["..", ".", "%2e%2e", "..%2f..%2fetc", "a%2Fb", "a%5cb", "%00", "%0a", "x" * 201, "%ff", ""],
)
def test_names_that_could_be_paths_are_refused(web: Web, name: str) -> None:
    for method, path in (
        ("PUT", f"/default/_design/{name}"),
        ("GET", f"/default/_design/{name}/_view/v"),
        ("GET", f"/default/_design/d/_view/{name}"),
        ("POST", f"/default/_design/{name}/_compact"),
    ):
        reply = web.ask(method, path, DESIGN if method == "PUT" else None)
        assert reply.code in (400, 404, 405)
        assert reply.json["reason"]
    assert list(web.service.groups) == ["d"]


def test_what_a_design_is_asked_to_do_reaches_it(web: Web) -> None:
    base = "/default/_design/d"
    assert web.ask("POST", f"{base}/_compact").code == 202
    states = {"active": [0, 1], "passive": [], "epoch": 4}
    assert web.ask("POST", f"{base}/_set_states", states).code == 200
    version = {"vbucket": 1, "seqno": "7", "vb_uuid": "18446744073709551615"}
    reply = web.ask("POST", f"{base}/_monitor?connection_timeout=500", version)
    assert reply.code == 200
    assert group_of(web).asked == [
        "compact",
        {
            "active": frozenset({0, 1}),
            "passive": frozenset(),
            "cleanup": None,
            "pause": None,
            "epoch": 4,
        },
        ("monitor", 1, 7, 2**64 - 1, 0.5),
    ]
    assert web.ask("POST", f"{base}/_undo").code == 200
    assert web.service.undone == ["d"]
    assert web.get(f"{base}/_info").json["state"] == "ready"
    placed = web.get("/default/_vbuckets?design=d").json
    assert placed["active"] == {"0": 1, "1": 1, "2": 1, "3": 1}


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("_set_states", b""),
        ("_set_states", b"{"),
        ("_set_states", []),
        ("_set_states", {"active": 5}),
        ("_set_states", {"active": [-1]}),
        ("_set_states", {"active": [True]}),
        ("_set_states", {"active": [99999999]}),
        ("_set_states", {"epoch": 1}),
        ("_set_states", {"actives": [1]}),
        ("_set_states", {"active": [], "epoch": "x"}),
        ("_monitor", {}),
        ("_monitor", {"vbucket": 1, "seqno": 1}),
        ("_monitor", {"vbucket": 1, "seqno": 2**64, "vb_uuid": 1}),
        ("_monitor", {"vbucket": 1, "seqno": None, "vb_uuid": 1}),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(web: Web, verb: str, body: Any) -> None:
    reply = web.ask("POST", f"/default/_design/d/{verb}", body)
    assert (reply.code, reply.json["error"]) == (400, "bad_request")
    assert group_of(web).asked == []


def test_a_lower_epoch_is_a_conflict(web: Web) -> None:
    group_of(web).refusal = QueryRefused(409, "stale_epoch", "this node has seen epoch 5", epoch=5)
    reply = web.ask("POST", "/default/_design/d/_set_states", {"active": [], "epoch": 4})
    assert (reply.code, reply.json["epoch"]) == (409, 5)


# --- queries ------------------------------------------------------------------------------------


def test_a_query_answers_with_rows_in_order(web: Web) -> None:
    reply = web.get(VIEW)
    assert reply.code == 200
    assert reply.json == {
        "total_rows": 3,
        "rows": [
            {"id": "b", "key": "Bonn", "value": 1},
            {"id": "a", "key": "Ulm", "value": 1},
            {"id": "c", "key": "Ulm", "value": 2},
        ],
        "errors": [],
    }
    assert [each.released for each in group_of(web).snapshots] == [1]


def test_a_reduce_answers_with_one_row(web: Web) -> None:
    reply = web.get("/default/_design/d/_view/counted")
    assert reply.json["rows"] == [{"key": None, "value": 3}]
    grouped = web.get("/default/_design/d/_view/counted?group=true")
    assert grouped.json["rows"] == [{"key": "Bonn", "value": 1}, {"key": "Ulm", "value": 2}]


def test_options_come_in_the_url_and_in_the_body(web: Web) -> None:
    reply = web.ask("POST", f"{VIEW}?skip=1", {"keys": ["Ulm", "Bonn"]})
    assert [row["id"] for row in reply.json["rows"]] == ["c", "b"]
    large = {"keys": ["Ulm"] + ["x" * 1_000] * 20}
    assert len(web.ask("POST", VIEW, large).json["rows"]) == 2


def test_the_index_is_asked_for_what_the_query_wants(web: Web) -> None:
    web.get(f"{VIEW}?stale=false&at=1:2:3&connection_timeout=1500")
    web.get(f"{VIEW}?partitions=%7B%22127.0.0.1:8092%22:%5B1%5D%7D&epoch=6")
    assert group_of(web).asked == [
        (Stale.FALSE, [Token(1, 2, 3)], None, None, 1.5),
        (Stale.UPDATE_AFTER, [], frozenset({1}), 6, 60.0),
    ]


@pytest.mark.acceptance("I12")
def test_rows_of_other_vbuckets_are_left_out(web: Web) -> None:
    reply = web.get(f"{VIEW}?partitions=%7B%22127.0.0.1:8092%22:%5B0,1%5D%7D")
    assert [row["id"] for row in reply.json["rows"]] == ["b", "a"]


def test_documents_come_with_their_rows(web: Web) -> None:
    web.service.bodies = {b"a": b'{"city":"Ulm"}'}
    rows = web.get(f"{VIEW}?include_docs=true").json["rows"]
    assert [row["doc"] for row in rows] == [None, {"city": "Ulm"}, None]


@pytest.mark.acceptance("I27")
def test_a_version_that_is_lost_is_a_conflict_that_names_it(web: Web) -> None:
    group_of(web).refusal = version_lost(1, 2**64 - 1, 7)
    reply = web.get(f"{VIEW}?at=1:18446744073709551615:7")
    assert reply.code == 409
    named = {name: reply.json[name] for name in ("error", "vbucket", "vb_uuid", "seqno")}
    assert named == {
        "error": "version_lost",
        "vbucket": 1,
        "vb_uuid": "18446744073709551615",
        "seqno": 7,
    }


@pytest.mark.parametrize(
    "query",
    [
        "limit=5&limit=5",
        "limit=-1",
        "limits=1",
        "key=a",
        "key=%FF",
        "key=%22%FF%22",
        "%FF=1",
        "key=" + "[" * 15_000,
        "group=true",
        "startkey=2&endkey=1",
        "&".join(f"a{n}=1" for n in range(100)),
        "partitions=%7B%22a:1%22:[0],%22b:1%22:[1]%7D",
    ],
)
def test_options_that_make_no_sense_are_refused(web: Web, query: str) -> None:
    reply = web.get(f"{VIEW}?{query}")
    assert (reply.code, reply.json["error"]) == (400, "bad_request")
    assert group_of(web).snapshots == []


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff\xfe", b'{"keys": 5}', b'{"limit": 1e400}'])
def test_a_body_that_makes_no_sense_is_refused(web: Web, body: bytes) -> None:
    assert web.ask("POST", VIEW, body).code == 400
    assert web.ask("POST", VIEW, body + b" " * 10_000).code == 400


def test_what_is_not_there_is_a_404(web: Web) -> None:
    for path in (
        "/default/_design/none/_view/by_city",
        "/default/_design/d/_view/none",
        "/default/_design/d/_info/x",
        "/default/_design/d/_none",
        "/other/_design/d",
        "/default",
        "/x",
        "/metrics/x",
        "/default/_vbuckets?design=none",
    ):
        reply = web.get(path)
        assert (reply.code, reply.json["error"]) == (404, "not_found"), path


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "BREW", "OPTIONS", "CONNECT"])
def test_a_method_that_does_nothing_names_those_that_do(web: Web, method: str) -> None:
    reply = web.ask(method, VIEW)
    assert reply.code == 405
    assert reply.headers["allow"] == "get, post, head"


def test_head_is_get_without_a_body(web: Web) -> None:
    for path in ("/", "/metrics", "/default/_design/d", VIEW, "/none"):
        reply = web.ask("HEAD", path)
        assert reply.code == web.get(path).code
        assert reply.transport.value().endswith(b"\r\n\r\n")
    assert all(each.released == 1 for each in group_of(web).snapshots)


def test_head_reads_no_more_than_it_must(web: Web) -> None:
    large(web)
    assert web.ask("HEAD", VIEW).code == 200
    assert group_of(web).trees[0].read < 1_000


def test_requests_are_counted_by_what_they_asked_for(web: Web) -> None:
    web.get(VIEW)
    web.get(f"{VIEW}?stale=ok")
    web.get("/default/_design/d/_view/counted")
    web.get("/none")
    page = web.get("/metrics").body.decode()
    assert "uprmc_index_designs 1.0" in page
    assert 'uprmc_index_query_seconds_count{rows="rows",stale="ok"} 1.0' in page
    assert 'uprmc_index_query_seconds_count{rows="rows",stale="update_after"} 1.0' in page
    assert 'uprmc_index_query_seconds_count{rows="reduction",stale="update_after"} 1.0' in page
    assert 'uprmc_index_requests_refused_total{error="not_found"} 1.0' in page


# --- clients ------------------------------------------------------------------------------------


def large(web: Web, rows: int = 3_000) -> None:
    emitted = [(b"%06d" % n, 0, n, "x" * 100) for n in range(rows)]
    group_of(web).trees[0] = MemoryTree(entries(emitted))


def asking(web: Web, limit: int = 32_768) -> Any:
    channel = web.connect(limit)
    channel.dataReceived(f"GET {VIEW} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    web.pool.work()
    return channel


def test_a_slow_reader_is_sent_no_more_than_it_takes(web: Web) -> None:
    large(web)
    channel = asking(web)
    sent = len(channel.transport.value())
    assert 32_768 < sent < 32_768 + 2 * 20_000
    web.pool.work()
    assert len(channel.transport.value()) == sent
    assert group_of(web).trees[0].read < 1_000
    while not Reply(channel).complete:
        channel.transport.drain()
        web.pool.work()
    assert len(Reply(channel).json["rows"]) == 3_000
    assert group_of(web).snapshots[0].released == 1


def test_a_reader_that_takes_nothing_is_disconnected(web: Web) -> None:
    large(web)
    channel = asking(web)
    web.reactor.advance(29.9)
    channel.transport.drain()
    web.pool.work()
    web.reactor.advance(29.9)
    assert not channel.transport.aborted
    web.reactor.advance(0.2)
    assert channel.transport.aborted
    assert group_of(web).snapshots[0].released == 1


def test_a_client_that_goes_away_lets_the_index_go(web: Web) -> None:
    large(web)
    before = len(web.reactor.getDelayedCalls())
    channel = asking(web)
    channel.connectionLost()
    assert group_of(web).snapshots[0].released == 1
    assert len(web.reactor.getDelayedCalls()) == before


def test_a_client_that_goes_away_while_rows_are_read_lets_the_index_go_afterwards(
    web: Web,
) -> None:
    channel = web.connect()
    channel.dataReceived(f"GET {VIEW} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    [snapshot] = group_of(web).snapshots
    channel.connectionLost()
    assert snapshot.released == 0
    web.pool.work()
    assert snapshot.released == 1


def test_a_client_that_goes_away_while_it_waits_is_forgotten(web: Web) -> None:
    cancelled = []
    group_of(web).waiting = Deferred(cancelled.append)
    channel = web.connect()
    channel.dataReceived(f"GET {VIEW} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    channel.connectionLost()
    assert len(cancelled) == 1
    assert group_of(web).snapshots == []


def test_a_failure_is_a_500_without_a_traceback_and_a_line_in_the_log(
    web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    web.service.failure = RuntimeError("secret")
    with caplog.at_level(logging.ERROR):
        reply = web.ask("PUT", "/default/_design/e", DESIGN)
    assert (reply.code, reply.json["error"]) == (500, "internal_error")
    assert b"secret" not in reply.body
    assert "secret" in caplog.text


class BrokenTree(MemoryTree):
    def rows(self, *given: Any, **named: Any) -> Any:
        yield from list(super().rows(*given, **named))[: self.good]
        raise OSError("the disk is gone")

    good = 0


class CutTree(MemoryTree):
    left = 0

    def rows(self, *given: Any, **named: Any) -> Any:
        if self.left:
            self.left -= 1
            raise IndexRolledBack("it was cut off")
        return super().rows(*given, **named)


@pytest.mark.parametrize(("cuts", "code"), [(2, 200), (3, 500)])
def test_a_query_that_a_rollback_cuts_off_takes_another_snapshot(
    web: Web, cuts: int, code: int
) -> None:
    group_of(web).trees[0] = tree = CutTree(entries([(b"a", 0, 1, 1)]))
    tree.left = cuts
    assert web.get(VIEW).code == code
    assert [each.released for each in group_of(web).snapshots] == [1] * 3


def test_a_failure_before_the_first_row_is_an_error(web: Web, caplog: Any) -> None:
    group_of(web).trees[0] = BrokenTree(entries([(b"a", 0, 1, 1)]))
    reply = web.get(VIEW)
    assert (reply.code, reply.json["error"]) == (500, "unreadable")
    assert group_of(web).snapshots[0].released == 1
    assert "the disk is gone" in caplog.text


def test_a_failure_among_the_rows_cuts_the_answer_off(web: Web, caplog: Any) -> None:
    large(web)
    tree = BrokenTree(group_of(web).trees[0]._rows)
    tree.good = 200
    group_of(web).trees[0] = tree
    reply = web.get(VIEW)
    assert reply.code == 200
    assert not reply.complete
    assert reply.transport.aborted
    assert group_of(web).snapshots[0].released == 1


def test_a_body_above_the_limit_is_refused(web: Web) -> None:
    small = Web(max_definition_bytes=1_024, max_request_bytes=2_048)
    assert small.ask("PUT", "/default/_design/d", b" " * 1_025).code == 413
    assert small.ask("PUT", "/default/_design/d", b" " * 2_049).code == 413


def test_a_body_that_nothing_here_would_take_is_refused_with_the_limit() -> None:
    small = Web(max_definition_bytes=1_024, max_request_bytes=2_048)
    refused = small.ask("PUT", "/default/_design/d", b" " * 2_049)
    assert (refused.code, refused.json["error"]) == (413, "too_large")
    assert refused.json["reason"] == "the body is larger than 2048 bytes"


def test_a_command_at_the_limit_is_taken_and_one_byte_more_is_refused(web: Web) -> None:
    body = b'{"active": [1]}'.ljust(COMMAND_MAX_BYTES)
    assert web.ask("POST", "/default/_design/d/_set_states", body).code == 200
    reply = web.ask("POST", "/default/_design/d/_set_states", body + b" ")
    assert (reply.code, reply.json["error"]) == (413, "too_large")


def test_a_url_has_as_many_options_as_the_limit_and_no_more(web: Web) -> None:
    unknown = "&".join(["x=1"] * 64)
    assert web.get(f"{VIEW}?{unknown}").json["reason"] == "there is no option 'x'"
    assert "more than 64 options" in web.get(f"{VIEW}?{unknown}&x=1").json["reason"]


@pytest.mark.parametrize("name", ["x" * NAME_MAX_BYTES, "\N{CYRILLIC SMALL LETTER ZHE}" * 100])
def test_a_name_at_the_limit_can_be_stored_and_asked_for(name: str) -> None:
    web = Web()
    path = design_path(name)
    assert web.ask("PUT", path, {"views": {name: {"map": MAP}}}).code == 201
    assert web.get(design_path(name, "_view", name)).code == 200
    assert web.get(f"/default/_vbuckets?design={quote(name)}").code == 200


@pytest.mark.parametrize(
    "name", ["x" * (NAME_MAX_BYTES + 1), "\N{CYRILLIC SMALL LETTER ZHE}" * 101]
)
def test_a_name_above_the_limit_cannot(name: str) -> None:
    web = Web()
    assert web.ask("PUT", design_path(name), DESIGN).code == 400
    assert web.ask("PUT", "/default/_design/d", {"views": {name: {"map": MAP}}}).code == 400


@pytest.mark.parametrize("name", ["a/b", "a\\b", ".", "..", "a\n", "_x"])
def test_a_view_that_could_not_be_asked_for_is_not_stored(name: str) -> None:
    refused = Web().ask("PUT", "/default/_design/d", {"views": {name: {"map": MAP}}})
    assert (refused.code, refused.json["error"]) == (400, "bad_request")
    assert "the name of a view" in refused.json["reason"]


def test_a_name_that_is_not_utf8_is_refused(web: Web) -> None:
    assert web.get("/default/_design/%FF").code == 400
    assert web.get("/default/_vbuckets?design=%FF").code == 400


def test_a_url_above_the_limit_is_refused(web: Web) -> None:
    reply = web.get(f"{VIEW}?key=%22" + "x" * 20_000 + "%22")
    assert (reply.code, reply.json["error"]) == (414, "too_large")
    assert reply.transport.disconnecting


def test_half_a_request_is_given_up_in_time(web: Web) -> None:
    for start in (b"GET /", b"PUT /default/_design/d HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"):
        channel = web.connect()
        channel.dataReceived(start)
        web.reactor.advance(REQUEST_S / 2)
        channel.dataReceived(b" ")
        assert not channel.transport.disconnecting
        web.reactor.advance(REQUEST_S / 2)
        assert channel.transport.disconnecting


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x01\0\0" * 6,
        b"\x16\x03\x01\x02\0\x01",
        bytes(range(32, 256)) * 10 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\r\n\r\nset a 0 0 1\r\nx\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_rubbish_is_refused_and_disconnected(web: Web, data: bytes) -> None:
    reply = web.send(data)
    assert reply.transport.value().startswith(b"HTTP/1.1 400 ")
    assert reply.transport.disconnecting


def test_another_protocol_is_told_what_listens_here(web: Web) -> None:
    assert b"HTTP listener for views" in web.send(b"\x80\x01\0\0").transport.value()


_PARTS = st.sampled_from(
    [
        "default",
        "_design",
        "d",
        "none",
        "_view",
        "by_city",
        "counted",
        "_info",
        "_compact",
        "_set_states",
        "_monitor",
        "_undo",
        "_vbuckets",
        "metrics",
        "",
        "%2e%2e",
        "%ff",
        "%00",
        "a b",
    ]
)
_TEXTS = st.text(max_size=8) | st.sampled_from(["true", "1", '"a"', "[1]", "{}", "null", "9" * 40])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(_TEXTS, part, max_size=3),
    max_leaves=8,
)
_NAMES = st.sampled_from([*OPTIONS, "active", "epoch", "vbucket", "seqno", "vb_uuid"]) | _TEXTS


@given(
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "X"]),
    st.lists(_PARTS, max_size=6),
    st.lists(st.tuples(_NAMES, _TEXTS), max_size=3),
    st.none() | st.binary(max_size=20) | st.dictionaries(_NAMES, _JSON, max_size=3) | _JSON,
)
@settings(max_examples=300)
def test_no_request_makes_this_side_fail(
    method: str, path: list[str], options: list[tuple[str, str]], body: Any
) -> None:
    web = Web()
    web.service.keep("d", json.dumps(DESIGN).encode())
    where = "/" + "/".join(path) + "?" + urlencode(options, errors="surrogatepass")
    reply = web.ask(method, where.replace(" ", "%20"), body)
    assert 200 <= reply.code < 500, reply.body
    if method != "HEAD" and not reply.headers["content-type"].startswith("text/plain"):
        assert reply.json is not None


def test_connections_above_the_limit_are_refused() -> None:
    web = Web(connections=3)
    channels = [web.connect() for _ in range(3)]
    for channel in channels:
        channel.works(True)
    assert web.site.buildProtocol(PEER) is None
    channels[0].works(False)
    assert web.site.buildProtocol(PEER) is not None
    assert channels[0].transport.disconnected


def test_web_pages_of_other_origins_get_nothing_unless_they_are_named() -> None:
    closed, open_ = Web(), Web(cors_origins="https://a.example, https://b.example")
    for web, origin, allowed in (
        (closed, "https://a.example", False),
        (open_, "https://a.example", True),
        (open_, "https://c.example", False),
        (Web(cors_origins="*"), "https://c.example", True),
    ):
        reply = web.ask("GET", "/", None, f"Origin: {origin}")
        assert (reply.headers.get("access-control-allow-origin") == origin) is allowed
        before = web.ask("OPTIONS", "/default/_design/d", None, f"Origin: {origin}")
        assert (before.code == 204) is allowed


def test_a_web_page_of_another_origin_changes_nothing(web: Web) -> None:
    for method, path in (("POST", "/default/_design/d/_compact"), ("DELETE", "/default/_design/d")):
        reply = web.ask(method, path, None, "Origin: https://evil.example")
        assert (reply.code, reply.json["error"]) == (403, "forbidden")
    assert "d" in web.service.groups
    assert group_of(web).asked == []


def test_several_requests_share_a_connection(web: Web) -> None:
    request = f"GET {VIEW} HTTP/1.1\r\nHost: h\r\n\r\n".encode()
    channel = web.connect()
    channel.dataReceived(request * 3)
    web.pool.work()
    assert channel.transport.value().count(b"HTTP/1.1 200") == 3


READ, MANAGE, MONITOR = Role.READ, Role.MANAGE, Role.MONITOR


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("OPTIONS", "/default/_design/d", None),
        ("GET", "/", MONITOR),
        ("HEAD", "/", MONITOR),
        ("GET", "/metrics", MONITOR),
        ("GET", "/metrics/?x=1", MONITOR),
        ("GET", "/%6detrics", MONITOR),
        ("GET", "http://host/%6Detrics", MONITOR),
        ("GET", "/default/_design/d/_view/v", READ),
        ("POST", "/default/_design/d/_view/v", READ),
        ("POST", "/default/_design/d/%5fview/v?limit=1", READ),
        ("GET", "/default/_design", READ),
        ("GET", "/default/_design/d/_info", READ),
        ("PUT", "/default/_design/d", MANAGE),
        ("PUT", "/default/_design/d/_view/v", MANAGE),
        ("DELETE", "/default/_design/d", MANAGE),
        ("DELETE", "/default/_design/_view/", MANAGE),
        ("POST", "/default/_design/d/_compact", MANAGE),
        ("POST", "/default/_design/_view/_compact", MANAGE),
        ("POST", "/default/_design/_view/_view/_undo", READ),
        ("POST", "/default/_design/d/_set_states?x=/_view/", MANAGE),
        ("POST", "/default/_design/d%2F_view%2Fv/_undo", MANAGE),
        ("POST", "/default/_design/%ff/_view/v", MANAGE),
        ("GET", "/%ff", READ),
        ("MOVE", "/", MANAGE),
    ],
)
def test_each_request_needs_the_role_of_what_serves_it(
    method: str, path: str, role: Role | None
) -> None:
    request: Any = SimpleNamespace(method=method.encode(), uri=path.encode())
    assert role_of_views(request) == role
