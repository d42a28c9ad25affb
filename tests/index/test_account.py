"""What requests and answers hold together has a limit: at it all is well, one past it is refused.

Source: systems reference c.8; contracts section 4.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.protocol import connectionDone

from tests.index.test_views_http import DESIGN, VIEW, group_of
from tests.index.web import Reply, Web
from uprmc.index.errors import QueryRefused
from uprmc.index.http import ANSWER_BYTES, within
from uprmc.index.http_request import AnswerAccount, Holding, cost_of
from uprmc.index.model import Lost
from uprmc.index.node_client import BUFFER_BYTES, Lines, NodeFailed

MIB = 1024 * 1024
LIMIT = 8 * MIB


def test_holders_share_one_limit() -> None:
    account = AnswerAccount(100)
    one, other = Holding(account), Holding(account)
    assert one.grow(60)
    assert other.set(40)
    assert not other.grow(1)
    assert (account.held, account.refused) == (100, 1)
    one.release()
    one.release()
    assert other.set(100)
    with pytest.raises(QueryRefused, match=r"100 of 100 bytes \(index\.request_memory\)") as caught:
        one.need(1)
    assert (caught.value.status, caught.value.error) == (503, "busy")
    assert other.set(0)
    assert account.held == 0


def test_many_threads_hold_no_more_than_the_limit() -> None:
    account = AnswerAccount(1_000)

    def work() -> None:
        holding = Holding(account)
        for _ in range(2_000):
            if holding.grow(7):
                assert account.held <= 1_000
            else:
                holding.release()
        holding.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert account.held == 0


class Client:
    """A connection that may be cut off."""

    cut = False

    def shed(self) -> None:
        self.cut = True


def test_who_leaves_most_unread_is_cut_off_when_it_is_too_much() -> None:
    account = AnswerAccount(100)
    slow, slower, reader = Client(), Client(), Client()
    account.note(slow, 0, 40, began=False, took=False)
    account.note(slower, 0, 60, began=False, took=False)
    assert (slow.cut, slower.cut, account.held) == (False, False, 100)
    account.note(reader, 0, 1, began=False, took=False)
    assert (slow.cut, slower.cut, reader.cut, account.held) == (False, True, False, 41)
    account.note(reader, 0, 61, began=False, took=False)
    assert (slow.cut, reader.cut, account.held) == (False, True, 40)
    Holding(account).need(60)
    account.note(slow, 0, 41, began=False, took=False)
    assert slow.cut
    for each in (slow, slower, reader, slow):
        account.forget(each)
    assert account.held == 60


def test_documents_are_left_out_where_there_is_no_memory_for_them() -> None:
    account = AnswerAccount(ANSWER_BYTES + 300)
    memory = Holding(account)
    memory.need(ANSWER_BYTES)
    assert within(memory, [b"x" * 60, None, b"y" * 40]) == [b"x" * 60, None, b"y" * 40]
    first, lost, last = within(memory, [b"x" * 60, b"y" * 41, b"z" * 40])
    assert (first, last) == (b"x" * 60, b"z" * 40)
    assert isinstance(lost, Lost)
    assert "index.request_memory" in lost.why
    assert account.held == ANSWER_BYTES + 300
    within(memory, [None])
    assert account.held == ANSWER_BYTES


def test_the_line_of_a_node_has_its_limit_here() -> None:
    lines = Lines()
    account = AnswerAccount(200)
    lines.memory = Holding(account)
    lines.dataReceived(b"x" * (BUFFER_BYTES + 100))
    assert account.held == 200
    lines.dataReceived(b"x")
    asking: list[Any] = []
    ensureDeferred(lines.line(None, 1.0)).addErrback(lambda failure: asking.append(failure.value))
    assert isinstance(asking[0], NodeFailed)
    assert "index.request_memory" in str(asking[0])
    assert account.held == 0


# --- over HTTP ----------------------------------------------------------------------------------


@pytest.fixture
def web() -> Web:
    web = Web(request_memory=LIMIT)
    assert web.ask("PUT", "/default/_design/d", DESIGN).code == 201
    return web


def held(web: Web) -> int:
    return web.site.memory.held


def fill(web: Web, left: int) -> Holding:
    """Hold everything but `left` bytes."""
    holding = Holding(web.site.memory)
    holding.need(web.site.memory.limit - left)
    return holding


def test_what_was_answered_holds_nothing(web: Web) -> None:
    assert web.get(VIEW).code == 200
    assert web.ask("POST", VIEW, {"keys": [1, 2]}).code == 200
    assert web.ask("POST", VIEW, b"{").code == 400
    assert web.get("/nowhere").code == 404
    assert held(web) == 0


@pytest.mark.parametrize("more", [0, 1])
def test_a_query_needs_room_for_itself_and_its_answer(web: Web, more: int) -> None:
    holding = fill(web, cost_of([VIEW.encode()]) + ANSWER_BYTES - more)
    reply = web.get(VIEW)
    assert reply.code == (503 if more else 200)
    if more:
        assert reply.json["error"] == "busy"
        assert "index.request_memory" in reply.json["reason"]
    holding.release()
    assert held(web) == 0
    assert web.get(VIEW).code == 200


@pytest.mark.parametrize("more", [0, 1])
def test_a_body_is_held_as_it_comes(web: Web, more: int) -> None:
    body = json.dumps({"keys": ["x" * 1_000] * 40}).encode()
    fill(web, len(body) - more)
    head = f"POST {VIEW} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    channel = web.connect()
    channel.dataReceived(head + body[:-1])
    before = Reply(channel)
    channel.dataReceived(body[-1:])
    reply = Reply(channel)
    assert (before.code, reply.code, reply.json["error"]) == (0, 503, "busy")
    assert ("connection" in reply.headers) is bool(more)  # cut off in the middle of its body
    channel.connectionLost(connectionDone)
    assert held(web) == LIMIT - len(body) + more


def test_a_client_that_goes_away_in_the_middle_holds_nothing(web: Web) -> None:
    channel = web.connect()
    channel.dataReceived(
        f"POST {VIEW} HTTP/1.1\r\nHost: h\r\nContent-Length: 9999\r\n\r\n{'x' * 5_000}".encode()
    )
    assert held(web) == 5_000
    channel.connectionLost(connectionDone)
    assert held(web) == 0


def test_a_client_that_goes_away_while_it_waits_holds_nothing(web: Web) -> None:
    group_of(web).waiting = Deferred()
    channel = web.connect()
    channel.dataReceived(f"GET {VIEW} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert held(web) > ANSWER_BYTES
    channel.connectionLost(connectionDone)
    assert held(web) == 0


def test_what_is_asked_for_and_not_read_has_its_limit(web: Web) -> None:
    text = json.dumps({**DESIGN, "options": {}}).encode() + b" " * 1_000_000
    web.service.keep("big", text)
    channels = [web.connect(limit=1) for _ in range(9)]
    for channel in channels:
        channel.dataReceived(b"GET /default/_design/big HTTP/1.1\r\nHost: h\r\n\r\n")
    assert [channel.transport.aborted for channel in channels].count(True) == 1
    assert held(web) > 6 * MIB
    for channel in channels:
        channel.connectionLost(connectionDone)
    assert held(web) == 0


def test_the_account_is_told_to_monitoring(web: Web) -> None:
    fill(web, 200_000)
    page = web.get("/metrics").body.decode()
    assert "uprmc_index_request_memory_bytes " in page
    assert "uprmc_index_request_memory_refused_total 0" in page
