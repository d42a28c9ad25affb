"""Rows come to the nodes once each and in order, whatever goes wrong on the way.

The peer is `write_peer.Cluster`: a node that refuses, hangs up and crashes by a script.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.columnar.write_peer import ACCESS, DO, LOSE_AFTER, LOSE_BEFORE, Cluster, troubled
from tests.columnar.write_rows import HandClock, documents, versions
from uprmc.columnar.errors import BadOption, BadRow, BadSchema, NoVBucket, TooManyErrors
from uprmc.columnar.report import ErrorRow, TaskReport
from uprmc.columnar.write_options import WriteOptions
from uprmc.columnar.writing import Writer
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.errors import NodeNonsense, NodeUnreachable, Refused

TROUBLE = (Status.TEMPORARY_FAILURE, Status.BUSY, Status.LOCKED, LOSE_BEFORE, LOSE_AFTER)


@contextmanager
def cluster(**more: Any) -> Iterator[Cluster]:
    made = Cluster(**more)
    try:
        yield made
    finally:
        made.close()


def writer(peers: Cluster, clock: HandClock | None = None, **options: Any) -> Writer:
    clock = clock or HandClock()
    return Writer(
        WriteOptions(ACCESS, **{"durability": "none"} | options),
        nodes=peers.nodes,
        clock=clock,
        sleep=clock.sleep,
        now=clock,
    )


def written(peers: Cluster, *batches: pa.RecordBatch, **options: Any) -> TaskReport:
    with writer(peers, **options) as target:
        for batch in batches:
            target.write(batch)
        report = target.finish()
    assert report.balanced
    return report


def numbered(count: int) -> dict[bytes, bytes]:
    return {f"key-{n}".encode(): f"value-{n}".encode() for n in range(count)}


# --- modes ----------------------------------------------------------------------------------------


def test_an_upsert_stores_every_row() -> None:
    with cluster() as peers:
        report = written(peers, documents(numbered(300)))
        assert peers.documents == {key: (value, 0) for key, value in numbered(300).items()}
    assert (report.rows, report.applied) == (300, 300)
    assert report.bytes == sum(len(key) + len(value) for key, value in numbered(300).items())


def test_the_last_row_of_a_key_wins() -> None:
    with cluster() as peers:
        written(peers, documents([(b"k", b"1"), (b"k", b"2")]), documents([(b"k", b"3")]))
        assert peers.documents[b"k"][0] == b"3"


def test_a_row_that_deletes_is_a_deletion_in_mode_upsert() -> None:
    rows = documents([(b"a", b"1"), (b"a", None), (b"b", None)], _op=["set", "delete", "expire"])
    with cluster() as peers:
        report = written(peers, rows)
        assert peers.documents == {}
    assert (report.applied, report.missing) == (2, 1)


def test_a_delete_needs_no_values_and_counts_what_was_missing() -> None:
    keys = pa.record_batch({"key": pa.array([b"a", b"b"], pa.binary())})
    with cluster(documents={b"a": (b"1", 0)}) as peers:
        report = written(peers, keys, mode="delete")
        assert peers.documents == {}
    assert (report.applied, report.missing) == (1, 1)


def test_an_insert_leaves_what_is_there_and_calls_it_an_error() -> None:
    with cluster(documents={b"a": (b"old", 0)}) as peers:
        report = written(
            peers, documents({b"a": b"new", b"b": b"1"}), mode="insert", on_error="skip"
        )
        assert peers.documents == {b"a": (b"old", 0), b"b": (b"1", 0)}
    assert (report.applied, report.errors) == (1, 1)
    assert "another document has this key" in report.first_errors[0]


def test_an_insert_that_is_repeated_finds_its_own_documents() -> None:
    with cluster() as peers:
        written(peers, documents(numbered(200)), mode="insert")
        report = written(peers, documents(numbered(200)), mode="insert")
    assert (report.applied, report.existed, report.errors) == (0, 200, 0)


def _instead(monkeypatch: pytest.MonkeyPatch, opcode: Opcode, answer: bool) -> None:
    """Let the peers answer a request with nothing in it, or not at all."""
    carry_out = Cluster._carry_out

    def torn(self: Cluster, frame: RequestFrame) -> bytes | None:
        if frame.opcode != opcode:
            return carry_out(self, frame)
        return ResponseFrame(frame.opcode, opaque=frame.opaque).encode() if answer else None

    monkeypatch.setattr(Cluster, "_carry_out", torn)


def test_a_torn_document_is_protocol_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _instead(monkeypatch, Opcode.GET, answer=True)
    with (
        cluster(documents={b"a": (b"1", 7)}) as peers,
        pytest.raises(NodeNonsense, match="answer to GET with 0 bytes of extras"),
    ):
        written(peers, documents({b"a": b"1"}), mode="insert")


def test_a_node_that_does_not_tell_what_is_on_disk_is_protocol_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _instead(monkeypatch, Opcode.OBSERVE_SEQNO, answer=False)
    with (
        cluster() as peers,
        pytest.raises(NodeNonsense, match="no answer to OBSERVE_SEQNO of vb="),
    ):
        written(peers, documents({b"a": b"1"}), durability="persist")


def test_the_same_value_with_other_flags_is_another_document() -> None:
    with cluster(documents={b"a": (b"1", 7)}) as peers:
        report = written(peers, documents({b"a": b"1"}), mode="insert", on_error="skip")
        assert report.errors == 1
        report = written(peers, documents({b"a": b"1"}, _flags=[7]), mode="insert")
        assert report.existed == 1


def test_the_first_of_two_inserts_of_one_key_wins_although_it_was_refused_at_first() -> None:
    refusals = iter([Status.TEMPORARY_FAILURE])
    with cluster(script=lambda frame: next(refusals, DO)) as peers:
        rows = documents([(b"k", b"first"), (b"k", b"second")])
        report = written(peers, rows, mode="insert", on_error="skip")
        assert peers.documents[b"k"][0] == b"first"
    assert (report.applied, report.errors) == (1, 1)


def test_an_insert_whose_rival_goes_away_is_tried_again() -> None:
    with cluster(documents={b"k": (b"rival", 0)}) as peers:

        def script(frame: RequestFrame) -> str:
            if frame.opcode == Opcode.GET:
                peers.documents.pop(frame.key, None)
            return DO

        peers.script = script
        report = written(peers, documents({b"k": b"ours"}), mode="insert")
        assert peers.documents[b"k"][0] == b"ours"
    assert report.applied == 1


def test_a_replay_with_metadata_applies_nothing() -> None:
    rows = versions([(f"k{n}".encode(), b"v", "set", 1, n + 1) for n in range(500)])
    with cluster() as peers:
        assert written(peers, rows, mode="append-meta").applied == 500
        before = dict(peers.seqnos)
        report = written(peers, rows, mode="append-meta")
        assert peers.seqnos == before
    assert (report.applied, report.conflicts) == (0, 500)


def test_force_lets_an_older_version_win() -> None:
    with cluster() as peers:
        written(peers, versions([(b"k", b"new", "set", 9, 9)]), mode="append-meta")
        report = written(
            peers, versions([(b"k", b"old", "set", 1, 1)]), mode="append-meta", force=True
        )
        assert peers.documents[b"k"][0] == b"old"
    assert report.applied == 1


@pytest.mark.parametrize("force", [False, True])
def test_only_what_may_lose_counts_as_a_conflict(force: bool) -> None:
    """A forced version is refused for another reason than that a newer one is there."""
    with cluster(script=lambda _frame: Status.KEY_EXISTS) as peers:
        rows = versions([(b"k", b"v", "set", 1, 1)])
        report = written(peers, rows, mode="append-meta", force=force, on_error="skip")
    assert (report.conflicts, report.errors) == ((0, 1) if force else (1, 0))


@pytest.mark.parametrize("with_meta", [False, True])
def test_a_row_that_may_not_be_written_says_which_role_that_needs(
    tmp_path: Path, with_meta: bool
) -> None:
    options = {"on_error": "file", "errors_path": str(tmp_path)}
    with cluster(script=lambda _frame: Status.ACCESS_DENIED) as peers:
        if with_meta:
            written(peers, versions([(b"k", b"v", "set", 1, 1)]), mode="append-meta", **options)
        else:
            written(peers, documents([(b"k", b"v")]), **options)
    (path,) = tmp_path.iterdir()
    (row,) = map(json.loads, path.read_text().splitlines())
    role = "replicate" if with_meta else "write"
    assert row["reason"].endswith(f"Not authorized (0024): needs {role}")


# --- order and trouble ----------------------------------------------------------------------------

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
ROWS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=3))), max_size=40)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 3))
def test_trouble_does_not_change_what_is_there_in_the_end(
    rows: list[tuple[bytes, bytes | None]], seed: int, window: int, peers_count: int
) -> None:
    operations = ["delete" if value is None else "set" for _, value in rows]
    expected: dict[bytes, tuple[bytes, int]] = {}
    for key, value in rows:
        expected.pop(key, None)
        if value is not None:
            expected[key] = (value, 0)
    places = tuple(f"peer-{n}:1" for n in range(peers_count))
    with cluster(places=places, script=troubled(seed, verdicts=TROUBLE)) as peers:
        report = written(
            peers, documents(rows, _op=pa.array(operations, pa.string())), window=window
        )
        assert peers.documents == expected
    assert report.errors == 0


@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(0, 10**6), st.integers(1, 7))
def test_trouble_does_not_change_which_insert_wins(
    rows: list[tuple[bytes, bytes | None]], seed: int, window: int
) -> None:
    inserts = [(key, value or b"") for key, value in rows]
    expected: dict[bytes, tuple[bytes, int]] = {}
    for key, value in inserts:
        expected.setdefault(key, (value, 0))
    different = sum(expected[key][0] != value for key, value in inserts)
    with cluster(script=troubled(seed, verdicts=TROUBLE)) as peers:
        report = written(peers, documents(inserts), mode="insert", window=window, on_error="skip")
        assert peers.documents == expected
    assert report.errors == different


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(KEYS, st.integers(1, 5), st.integers(1, 5)), max_size=30),
    st.integers(0, 10**6),
)
def test_trouble_does_not_change_which_version_wins(
    rows: list[tuple[bytes, int, int]], seed: int
) -> None:
    batch = versions([(key, b"%d/%d" % (rev, cas), "set", rev, cas) for key, rev, cas in rows])
    expected = {
        key: b"%d/%d" % max((rev, cas) for other, rev, cas in rows if other == key)
        for key, _, _ in rows
    }
    with cluster(script=troubled(seed, verdicts=TROUBLE)) as peers:
        written(peers, batch, mode="append-meta", window=3)
        assert {key: value for key, (value, _) in peers.documents.items()} == expected


def test_a_later_row_of_a_repeated_key_is_repeated_behind_it() -> None:
    refusals = iter([Status.TEMPORARY_FAILURE])
    with cluster(script=lambda frame: next(refusals, DO)) as peers:
        report = written(peers, documents([(b"k", b"1"), (b"other", b"x"), (b"k", b"2")]))
        assert peers.documents[b"k"][0] == b"2"
        assert [frame.value for frame in peers.requests] == [b"1", b"x", b"2", b"1", b"2"]
    assert report.retried == 2


def test_only_the_last_answer_to_a_row_counts() -> None:
    refusals = iter([Status.TEMPORARY_FAILURE])
    with cluster(script=lambda frame: next(refusals, DO)) as peers:
        rows = documents([(b"k", b"1"), (b"k", None)], _op=["set", "delete"])
        report = written(peers, rows)
        assert peers.documents == {}
    assert (report.applied, report.missing) == (2, 0)


def test_a_few_temporary_failures_in_every_window_are_one_more_round() -> None:
    seen: set[bytes] = set()

    def script(frame: RequestFrame) -> Any:
        if frame.opaque % 4 == 0 and frame.key not in seen:
            seen.add(frame.key)
            return Status.TEMPORARY_FAILURE
        return DO

    clock = HandClock()
    with cluster(script=script) as peers, writer(peers, clock, window=4) as target:
        target.write(documents(numbered(400)))
        report = target.finish()
    assert (report.applied, report.retried, len(clock.slept)) == (400, 100, 1)


def test_a_refused_row_is_counted_once_although_it_was_sent_twice() -> None:
    first = iter([Status.TEMPORARY_FAILURE])

    def script(frame: RequestFrame) -> Any:
        return Status.TOO_LARGE if frame.value == b"bad" else next(first, DO)

    with cluster(script=script) as peers:
        rows = documents([(b"k", b"1"), (b"k", b"bad"), (b"k", b"2")])
        report = written(peers, rows, on_error="skip")
        assert peers.documents[b"k"][0] == b"2"
    assert (report.applied, report.errors) == (2, 1)


def test_a_window_whose_connection_was_lost_is_sent_again() -> None:
    verdicts = iter([DO, DO, LOSE_AFTER])
    with cluster(script=lambda frame: next(verdicts, DO)) as peers:
        report = written(peers, documents(numbered(10)), window=5)
        assert len(peers.documents) == 10
        assert peers.dials == 2
    assert report.retried == 10


def test_a_moved_vbucket_is_followed() -> None:
    with cluster(vbuckets=8, places=("peer-0:1", "peer-1:1")) as peers:
        with writer(peers) as target:
            target.write(documents(numbered(50)))
            peers.moved = dict.fromkeys(range(8), "peer-1:1")
            target.write(documents(dict.fromkeys(numbered(50), b"again")))
            report = target.finish()
        assert {value for value, _ in peers.documents.values()} == {b"again"}
        assert peers.refreshes == 2
    assert report.balanced
    assert report.retried


def test_a_vbucket_that_is_nowhere_ends_the_task_after_the_deadline() -> None:
    clock = HandClock()
    with cluster(moved=dict.fromkeys(range(8), "")) as peers:
        target = writer(peers, clock, retry_deadline_s=10)
        with pytest.raises(NoVBucket), target:
            target.write(documents(numbered(3)))
    assert 10 <= clock.at_s - 1000 <= 11


def test_a_node_that_stays_short_of_memory_ends_the_task_after_the_deadline() -> None:
    clock = HandClock()
    with cluster(script=lambda frame: Status.TEMPORARY_FAILURE) as peers:
        target = writer(peers, clock, retry_deadline_s=10)
        with pytest.raises(Refused, match="Temporary failure"), target:
            target.write(documents(numbered(3)))
    assert 10 <= clock.at_s - 1000 <= 11


@pytest.mark.parametrize("retries", [0, 3])
def test_it_is_given_up_after_so_many_rounds_without_progress(retries: int) -> None:
    clock = HandClock()
    with cluster(script=lambda frame: Status.BUSY) as peers:
        target = writer(peers, clock, retries=retries)
        with pytest.raises(Refused), target:
            target.write(documents({b"k": b"v"}))
        assert len(peers.requests) == retries + 1


def test_pauses_double_up_to_a_limit() -> None:
    clock = HandClock()
    with cluster(script=lambda frame: Status.BUSY) as peers:
        target = writer(peers, clock, retries=5, retry_backoff_s=0.1, retry_backoff_max_s=0.5)
        with pytest.raises(Refused), target:
            target.write(documents({b"k": b"v"}))
    assert clock.slept == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


def test_progress_is_patience() -> None:
    """A node that takes one row a round gets all of them, however many rounds that are."""
    taken: set[bytes] = set()

    def script(frame: RequestFrame) -> Any:
        if taken and frame.key not in taken and len(peers.requests) % 10:
            return Status.TEMPORARY_FAILURE
        taken.add(frame.key)
        return DO

    with cluster(script=script) as peers:
        report = written(peers, documents(numbered(40)), retries=20)
        assert len(peers.documents) == 40
    assert report.applied == 40


def test_a_node_that_refuses_most_of_a_window_is_not_sent_the_others() -> None:
    refuse = [True]
    with cluster(script=lambda frame: Status.TEMPORARY_FAILURE if refuse[0] else DO) as peers:
        clock = HandClock()
        clock.sleep = lambda seconds: refuse.clear() or refuse.append(False)  # type: ignore[method-assign]
        with writer(peers, clock, window=10) as target:
            target.write(documents(numbered(1000)))
            report = target.finish()
        assert len(peers.requests) <= 1000 + 30
    assert report.applied == 1000


# --- rows that cannot be written ------------------------------------------------------------------

BAD = [(None, b"v"), (b"", b"v"), (b"k" * 251, b"v"), (b"k", None), (b"big", b"v" * 101)]


def test_a_bad_row_ends_the_task_by_default_before_its_piece_is_sent() -> None:
    for row in BAD:
        with (
            cluster() as peers,
            pytest.raises(BadRow, match="row 1"),
            writer(peers, value_limit_bytes=100) as target,
        ):
            target.write(documents([(b"good", b"v"), row]))
        assert peers.documents == {}


def test_bad_rows_are_passed_over_and_the_others_written() -> None:
    rows = [(b"good-1", b"v"), *BAD, (b"good-2", b"v")]
    with cluster() as peers:
        report = written(peers, documents(rows), on_error="skip", value_limit_bytes=100)
        assert sorted(peers.documents) == [b"good-1", b"good-2"]
    assert (report.applied, report.errors) == (2, 5)
    assert [text.split(":")[1].strip() for text in report.first_errors] == [
        "NO_KEY", "EMPTY_KEY", "KEY_TOO_LONG", "NO_VALUE", "VALUE_TOO_LARGE",
    ]  # fmt: skip


@pytest.mark.parametrize(("what", "counter"), [("skip", "skipped"), ("delete", "applied")])
def test_a_row_without_value_does_what_it_is_told(what: Any, counter: str) -> None:
    with cluster(documents={b"k": (b"old", 0)}) as peers:
        report = written(peers, documents([(b"k", None)]), ignore_null=what)
        assert (b"k" in peers.documents) == (what == "skip")
    assert getattr(report, counter) == 1


def test_error_rows_are_in_the_file_as_they_come(tmp_path: Path) -> None:
    def script(frame: RequestFrame) -> Any:
        return Status.OUT_OF_MEMORY if frame.key == b"refused" else DO

    with cluster(script=script) as peers:
        options = {"on_error": "file", "errors_path": str(tmp_path / "errors")}
        clock = HandClock()
        target = Writer(
            WriteOptions(ACCESS, durability="none", **options),
            3, 1, lambda row: f"in.csv:{row + 1}",
            nodes=peers.nodes, clock=clock, sleep=clock.sleep, now=clock,
        )  # fmt: skip
        with target:
            target.write(documents([(b"refused", b"v" * 300), (None, b"v"), (b"good", b"v")]))
            (path,) = (tmp_path / "errors").iterdir()
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            target.reject(ErrorRow(3, "BAD_LINE", "no JSON"))
            report = target.finish()
    assert path.name == "errors-00003-1.jsonl"
    assert report.error_file == str(path)
    assert (report.rows, report.applied, report.errors) == (4, 1, 3)
    assert report.balanced
    no_key, refused = lines
    assert (no_key["code"], no_key["key"], no_key["vb"]) == ("NO_KEY", None, None)
    assert (refused["code"], refused["status"]) == ("REFUSED", "OUT_OF_MEMORY")
    assert b64decode(refused["key"]) == b"refused"
    assert b64decode(refused["value"]) == b"v" * 256
    assert (refused["partition"], refused["attempt"], refused["row"]) == (3, 1, 0)
    assert refused["place"] == "in.csv:1"
    assert json.loads(path.read_text().splitlines()[-1])["code"] == "BAD_LINE"


def test_so_many_errors_are_borne_and_not_one_more() -> None:
    rows = [(None, b"v")] * 3 + [(b"k", b"v")]
    with cluster() as peers:
        report = written(peers, documents(rows), on_error="skip", max_errors=3)
        assert (report.errors, report.applied) == (3, 1)
        with pytest.raises(TooManyErrors, match="more than 2"):
            written(peers, documents(rows), on_error="skip", max_errors=2)


def test_error_rows_of_a_task_that_is_given_up_stay(tmp_path: Path) -> None:
    with cluster() as peers:
        target = writer(peers, on_error="file", errors_path=str(tmp_path), max_errors=1)
        with pytest.raises(TooManyErrors), target:
            target.write(documents([(None, b"v")] * 3))
    (path,) = tmp_path.iterdir()
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"value": pa.array([b"v"])}),
        pa.record_batch({"key": pa.array([b"k"])}),
        pa.record_batch({"key": pa.array([1]), "value": pa.array([b"v"])}),
        pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([1.5])}),
        pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([[b"v"]])}),
        documents({b"k": b"v"}, _flags=[1.5]),
        documents({b"k": b"v"}, _op=[1]),
        pa.RecordBatch.from_arrays([pa.array([b"k"])] * 3, names=["key", "key", "value"]),
    ],
)
def test_a_column_that_is_missing_or_of_the_wrong_type_is_one_error(batch: pa.RecordBatch) -> None:
    with cluster() as peers:
        with pytest.raises(BadSchema, match="column"), writer(peers, on_error="skip") as target:
            target.write(batch)
        assert not peers.requests


# --- pace, dry runs, nothing at all ---------------------------------------------------------------


def test_a_rate_is_kept() -> None:
    clock = HandClock()
    with cluster() as peers, writer(peers, clock, rate=100) as target:
        target.write(documents(numbered(1000)))
        report = target.finish()
    assert report.applied == 1000
    assert 9.8 <= clock.at_s - 1000 <= 10
    assert max(clock.slept) <= 0.11


def test_a_rate_saves_up_nothing_while_there_are_no_rows() -> None:
    clock = HandClock()
    with cluster() as peers, writer(peers, clock, rate=100) as target:
        target.write(documents(numbered(10)))
        clock.at_s += 1000
        began = clock.at_s
        target.write(documents(numbered(500)))
        assert clock.at_s - began >= 4.8


def test_a_dry_run_sends_nothing_and_finds_bad_rows() -> None:
    with cluster() as peers:
        report = written(peers, documents([(b"k", b"v"), (None, b"v")]), dry_run=True,
                         on_error="skip")  # fmt: skip
        assert (peers.refreshes, peers.dials, peers.requests) == (0, 0, [])
    assert (report.dry_run, report.applied, report.errors) == (True, 1, 1)
    assert "would be written" in report.summary()


def test_a_task_without_rows_connects_to_nobody() -> None:
    with cluster() as peers:
        report = written(peers, documents({}))
        assert peers.refreshes == 0
    assert report.rows == 0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=40), st.integers(1, 10), st.integers(1, 5000))
def test_rows_arrive_whatever_the_windows_are(
    sizes: list[int], window: int, window_bytes: int
) -> None:
    rows = [(b"k%d" % n, b"v" * size) for n, size in enumerate(sizes)]
    with cluster() as peers:
        report = written(peers, documents(rows), window=window, window_bytes=window_bytes)
        assert {key: value for key, (value, _) in peers.documents.items()} == dict(rows)
    assert report.applied == len(rows)


def test_a_lost_connection_that_never_comes_back_ends_the_task() -> None:
    clock = HandClock()
    with cluster(script=lambda frame: LOSE_BEFORE) as peers:
        target = writer(peers, clock, retry_deadline_s=5)
        with pytest.raises(NodeUnreachable), target:
            target.write(documents({b"k": b"v"}))


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "append"},
        {"window": 0},
        {"window": 100_001},
        {"window_bytes": 0},
        {"retries": -1},
        {"on_error": "file"},
        {"rate": 0},
        {"max_errors": -1},
        {"ttl_column": "a", "exp_column": "b"},
        {"mode": "insert", "ignore_null": "delete"},
        {"force": True},
        {"mode": "delete", "flags_column": "f"},
        {"durability": "replicate"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        WriteOptions(ACCESS, **options)
