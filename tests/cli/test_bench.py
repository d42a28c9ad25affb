"""The load generator at nodes that fall silent, refuse or lie, and its arithmetic."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable

import pytest

from tests.cli.here import runner
from tests.codec.frames import Frame, reply
from tests.codec.node import ScriptedNode
from uprmc.cli.bench_load import Latencies

GET, SET, ALL_SEQNOS, CLUSTER_CONFIG = 0x00, 0x01, 0x48, 0xB5
TEMPORARY_FAILURE = 0x86

_MAP = json.dumps({"vBucketServerMap": {"vBucketMap": [[0], [0]], "serverList": ["$HOST:1"]}})


class _Node(ScriptedNode):
    """Has vBucket 0 of two; gets and sets are answered with `status`, ``None`` = not at all."""

    def __init__(self, status: int | None = 0, times: int = 1) -> None:
        self.status, self._times = status, times
        super().__init__()

    def answers(self, asked: Frame) -> Iterable[bytes]:
        if asked.opcode == CLUSTER_CONFIG:
            return [reply(asked, value=_MAP.encode())]
        if asked.opcode == ALL_SEQNOS:
            return [reply(asked, value=struct.pack(">HQ", 0, 0))]
        if asked.opcode not in (GET, SET):
            return [reply(asked)]
        return [] if self.status is None else [reply(asked, self.status)] * self._times


def test_a_node_that_falls_silent_under_load_is_given_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _Node(status=None) as node:
        words = ("--node", node.place, "--no-fill", "--ratio", 0, "--timeout", "0.1")
        ended = runner(capsys)("bench", *words)
    assert ended.code == 1
    assert ended.err == f"uprmc: the node at {node.place} says nothing for 0.1 s\n"


def test_only_keys_of_vbuckets_that_the_node_has_are_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _Node() as node:
        words = ("--keys", 10, "-n", 50, "-c", 2, "-P", 4, "--json")
        ended = runner(capsys)("bench", "--node", node.place, *words)
        used = {(asked.number, asked.key) for asked in node.requests(GET)}
    assert ended.code == 0
    assert {vbucket for vbucket, _ in used} == {0}
    assert 0 < len(used) < 10


def test_refusals_are_counted_by_their_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with _Node(TEMPORARY_FAILURE) as node:
        words = ("--node", node.place, "--no-fill", "--ratio", 1, "-n", 7, "--json")
        ended = runner(capsys)("bench", *words)
        filling = runner(capsys)("bench", "--node", node.place, "--keys", 1)
    assert ended.code == 1
    assert json.loads(ended.out)["refused"] == {"Temporary failure (0086)": 7}
    assert filling.code == 1
    assert filling.line().endswith("refused 1 of 1 documents: Temporary failure (0086)")


def test_a_node_that_answers_more_than_it_is_asked_is_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _Node(times=2) as node:
        words = ("--node", node.place, "--no-fill", "--ratio", 0, "-c", 1)
        ended = runner(capsys)("bench", *words)
    assert ended.code == 1
    assert ended.err.endswith("answers more than it is asked\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ratio", "2"], "'2' is not a share such as 0, 0.1 or 1"),
        (["--size", "1G"], "is more than 64 MiB for each connection"),
        (["--prefix", "p" * 241], "--prefix has 1 to 240 bytes, this one 241"),
        (["-c", "0"], "'0' is less than 1"),
        (["-t", "get,gte"], "--tests gte: there is no such test: did you mean get?"),
        (["--csv", "-q"], "--csv and --quiet exclude each other"),
    ],
)
def test_misuse_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in runner(capsys)("bench", *words).refused()


def test_percentiles_are_right_within_one_percent_and_merge() -> None:
    even, odd = Latencies(), Latencies()
    for us in range(1, 10_001):
        (odd if us % 2 else even).add(us * 1_000)
    even.merge(odd)
    assert even.count == 10_000
    assert even.at(0.5) == pytest.approx(0.005, rel=0.01)
    assert even.at(0.999) == pytest.approx(0.00999, rel=0.01)
    assert even.summary_ms()["max_ms"] == 10.0
    assert len(even.counts) < 2_000
    assert Latencies().at(0.5) == 0.0
