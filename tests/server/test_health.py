"""What is wrong with a node: each problem by the fact that shows it, with its time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace as Facts
from typing import Any

import pytest

from uprmc.model import VBucketState
from uprmc.server.stats.health import RECENT_S, Health, look, panel, rows
from uprmc.upr.source import LineState


class _Clock:
    at = 1_000.0

    def now(self) -> float:
        return self.at

    monotonic = now


def _vbucket(state: VBucketState = VBucketState.ACTIVE, term: int = 1, known: int = 1) -> Facts:
    return Facts(state=state, term=term, known_term=known)


def _source(state: LineState = LineState.OPEN, error: str = "", lag_s: float = 0) -> Facts:
    return Facts(place="b:1", state=state, last_error=error, lag_s=lag_s)


def _link(failure: str = "", lag_s: float = 0, waits: str = "") -> Facts:
    error = failure or waits
    progress = Facts(lag_seconds=lag_s)
    return Facts(spec=Facts(name="l"), failure=failure, error=error, progress=progress)


def _node() -> Any:
    account = Facts(disk_reason="", refused_disk=0, refused_memory=0, used=1, high_mark=9, quota=10)
    vbuckets = {0: _vbucket(), 1: _vbucket(VBucketState.REPLICA)}
    bucket = Facts(traffic=True, account=account, flusher=Facts(paused=False), vbuckets=vbuckets,
                   clock=_Clock(), item_count=3, healer=Facts(pending=0))  # fmt: skip
    return Facts(
        bucket=bucket,
        connections=Facts(current=1, limit=5),
        index=Facts(error=""),
        replication=Facts(sources={}),
        links=Facts(by_name={}),
        consumer_lags=Facts(found=[]),
        uptime_s=lambda: 7.0,
        health=Health(),
    )


def _set(path: str, value: object) -> Callable[[Any], None]:
    def change(node: Any) -> None:
        *way, last = path.split(".")
        for name in way:
            node = getattr(node, name)
        setattr(node, last, value)

    return change


@pytest.mark.parametrize(
    ("change", "state", "what"),
    [
        (_set("bucket.traffic", False), "failing", "serves no clients yet"),
        (_set("connections.current", 5), "failing", "No more connections"),
        (_set("index.error", "killed"), "failing", "index does not run: killed"),
        (_set("bucket.account.disk_reason", "full"), "failing", "refuses commits: full"),
        (_set("bucket.account.refused_disk", 1), "failing", "refused for lack of disk"),
        (_set("bucket.account.refused_memory", 1), "failing", "refused for lack of memory"),
        (_set("bucket.healer.pending", 2), "failing", "2 records on disk are damaged"),
        (_set("bucket.account.used", 10), "warning", "Memory is full"),
        (_set("bucket.flusher.paused", True), "warning", "Persistence is stopped"),
        (
            _set("bucket.vbuckets", {0: _vbucket(VBucketState.DEAD, 1, 2)}),
            *("warning", "1 vBucket is dead: another node was promoted"),
        ),
        (_set("bucket.vbuckets", {0: _vbucket(VBucketState.PENDING)}), "warning", "1 vBucket is w"),
        (_set("bucket.vbuckets", {0: _vbucket(VBucketState.DEAD)}), "ok", "1 vBucket is dead here"),
        (
            _set("replication.sources", {"b:1": _source(LineState.WAITING, "refused")}),
            *("failing", "The node at b:1 is not followed: refused"),
        ),
        (_set("replication.sources", {"b:1": _source(lag_s=61)}), "warning", "61 s behind b:1"),
        (_set("links.by_name", {"l": _link("no")}), "failing", "The link l has stopped: no"),
        (
            _set("links.by_name", {"l": _link(waits="no")}),
            *("failing", "The link l does not send everything: no"),
        ),
        (_set("links.by_name", {"l": _link(lag_s=61)}), "warning", "The link l is 61 s behind"),
        (
            _set("consumer_lags.found", [Facts(name="c", seconds=61.0)]),
            *("warning", "A consumer is more than a minute behind, c by 61 s"),
        ),
    ],
)
def test_each_problem_is_told_with_its_time_and_what_to_do(
    change: Callable[[Any], None], state: str, what: str
) -> None:
    node = _node()
    told = dict(rows(node))
    assert (told["state"], told["problems"], told["vbuckets_active"]) == ("ok", "0", "1")
    node.bucket.clock.at = 2_000.0
    change(node)
    look(node)
    node.bucket.clock.at = 2_005.0
    told = dict(rows(node))
    assert (told["state"], told["problems"]) == (state, "1")
    assert what in told["problem_0:what"]
    assert told["problem_0:since"] == "2000"
    assert told["problem_0:do"]
    (shown,) = panel(node)
    assert (shown["what"], shown["since"]) == (told["problem_0:what"], 2_000)


def test_the_worst_comes_first_and_what_was_refused_is_named_for_a_minute() -> None:
    node = _node()
    look(node)
    node.bucket.vbuckets[0] = _vbucket(VBucketState.DEAD)
    node.bucket.account.used = 10
    node.bucket.account.refused_memory = 3
    look(node)
    assert [each.how for each in node.health.problems] == ["bad", "warn", "note"]
    node.bucket.clock.at += RECENT_S
    look(node)
    assert [each.how for each in node.health.problems] == ["warn", "note"]
    node.bucket.account.refused_memory = 0  # stats reset
    look(node)
    assert [each.how for each in node.health.problems] == ["warn", "note"]
