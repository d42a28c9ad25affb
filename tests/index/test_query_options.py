"""Options of queries: what is understood, and what each refusal names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from uprmc.index.errors import QueryRefused
from uprmc.index.json_text import DIGITS_MAX
from uprmc.index.model import Stale, Token
from uprmc.index.query_options import KEYS_MAX, TOKENS_MAX, Query, partition_of


def parsed(*pairs: tuple[str, str], body: Any = None, reduces: bool = False) -> Query:
    return Query.parse(pairs, body, reduces=reduces)


def refused(*pairs: tuple[str, str], body: Any = None, reduces: bool = False) -> str:
    with pytest.raises(QueryRefused) as caught:
        parsed(*pairs, body=body, reduces=reduces)
    assert (caught.value.status, caught.value.error) == (400, "bad_request")
    assert "\n" not in caught.value.reason
    return caught.value.reason


def test_without_options_a_query_reads_everything_and_starts_an_update_afterwards() -> None:
    query = parsed()
    assert (query.start, query.end, query.keys, query.limit, query.skip) == (None,) * 4 + (0,)
    assert query.stale is Stale.UPDATE_AFTER
    assert not any((query.descending, query.reduce, query.stop, query.include_docs, query.new))
    assert query.inclusive_end
    assert query.timeout_s is None


def test_a_view_with_a_reduce_reduces_unless_the_query_says_otherwise() -> None:
    assert parsed(reduces=True).reduce
    assert not parsed(("reduce", "false"), reduces=True).reduce
    assert not parsed(("reduce", "false")).reduce


@pytest.mark.parametrize(
    ("option", "text", "stale"),
    [
        ("stale", "ok", Stale.OK),
        ("stale", "update_after", Stale.UPDATE_AFTER),
        ("stale", "false", Stale.FALSE),
        ("update", "true", Stale.FALSE),
        ("update", "false", Stale.OK),
        ("update", "lazy", Stale.UPDATE_AFTER),
    ],
)
def test_freshness_has_couchbases_words_and_couchdbs(option: str, text: str, stale: Stale) -> None:
    assert parsed((option, text)).stale is stale
    assert parsed(body={option: text}).stale is stale


def test_freshness_may_be_a_switch_of_json() -> None:
    assert parsed(body={"stale": False}).stale is Stale.FALSE
    assert parsed(body={"update": True}).stale is Stale.FALSE


@pytest.mark.parametrize(
    ("spelling", "option"),
    [
        ("start_key", "startkey"),
        ("end_key", "endkey"),
        ("start_key_doc_id", "startkey_docid"),
        ("end_key_doc_id", "endkey_docid"),
    ],
)
def test_both_spellings_are_one_option(spelling: str, option: str) -> None:
    assert parsed((spelling, '"a"')).given == parsed((option, '"a"')).given
    assert refused((spelling, '"a"'), (option, '"a"')) == f"{option} is given twice"


def test_keys_of_a_range_are_json_and_ids_are_bare() -> None:
    query = parsed(("startkey", '["a",1]'), ("endkey", "{}"), ("startkey_docid", 'x"'))
    assert query.start is not None
    assert query.end is not None
    assert (query.start.key, query.start.docid) == (["a", 1], b'x"')
    assert (query.end.key, query.end.docid) == ({}, None)


def test_a_key_is_a_range_of_its_own() -> None:
    query = parsed(("key", "3"), ("startkey_docid", "a"), ("endkey_docid", "b"))
    assert query.start == (3, query.start and query.start.sort_key, b"a")
    assert query.end == (3, query.end and query.end.sort_key, b"b")


def test_a_body_may_hold_any_option_and_the_url_the_rest() -> None:
    body = {"keys": ["b", "a", "b"], "limit": 2, "descending": True, "at": ["1:2:3", "4:5:6"]}
    query = parsed(("skip", "1"), body=body)
    assert query.keys is not None
    assert [key for key, _ in query.keys] == ["b", "a", "b"]
    assert (query.limit, query.skip, query.descending) == (2, 1, True)
    assert query.at == (Token(1, 2, 3), Token(4, 5, 6))


def test_versions_to_wait_for_are_a_list_with_commas() -> None:
    largest = 2**64 - 1
    assert parsed(("at", f"1:{largest}:3,0:0:0")).at == (Token(1, largest, 3), Token(0, 0, 0))


@pytest.mark.parametrize("text", ["", "1", "1:2", "a:b:c", "-1:2:3", f"1:{2**64}:3", "1:2:3,"])
def test_what_is_no_version_is_refused(text: str) -> None:
    assert refused(("at", text)).startswith("at: ")


def test_partitions_name_this_node_or_only_one() -> None:
    query = parsed(("partitions", '{"a:1": [0, 2], "b:2": []}'), ("epoch", "7"))
    assert partition_of(query, ["x:1", "a:1"]) == {0, 2}
    assert partition_of(query, ["b:2"]) == frozenset()
    assert query.epoch == 7
    with pytest.raises(QueryRefused, match="does not name this node"):
        partition_of(query, ["x:1"])
    assert partition_of(parsed(("partitions", '{"a:1": [3]}')), ["x:1"]) == {3}
    assert partition_of(parsed(), ["x:1"]) is None


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        ([("limit", "5"), ("limit", "5")], "limit is given twice"),
        ([("limits", "5")], "did you mean limit?"),
        ([("_", "5")], "no option '_'"),
        ([("stal\udcff", "5")], "no option 'stal\\udcff'"),
        ([("key", "a")], "a string needs quotes"),
        ([("key", "1"), ("keys", "[1]")], "key and keys contradict"),
        ([("key", "1"), ("startkey", "1")], "key and startkey contradict"),
        ([("keys", "[1]"), ("endkey", "1")], "keys and endkey contradict"),
        ([("keys", "1")], "keys is an array"),
        ([("stale", "ok"), ("update", "false")], "stale and update contradict"),
        ([("stale", "maybe")], "stale is one of ok, update_after, false"),
        ([("on_error", "panic")], "on_error is one of continue, stop"),
        ([("limit", "-1")], "limit is a whole number"),
        ([("limit", "1.5")], "limit is a whole number"),
        ([("limit", "٣")], "limit is a whole number"),
        ([("limit", "9" * 30)], "limit is a whole number"),
        ([("skip", "")], "skip is a whole number"),
        ([("descending", "yes")], "descending is true or false"),
        ([("reduce", "true")], "has no reduce"),
        ([("group", "true")], "group: "),
        ([("group_level", "1")], "group_level: "),
        ([("connection_timeout", "0")], "connection_timeout is a number of milliseconds"),
        ([("connection_timeout", "99999999999")], "connection_timeout is a number"),
        ([("rev", "old")], "rev is one of new"),
        ([("epoch", "1")], "epoch belongs to partitions"),
        ([("partitions", "[]")], "partitions is an object"),
        ([("partitions", '{"a:1": [1.5]}')], "partitions is an object"),
        ([("partitions", '{"a:1": [true]}')], "partitions is an object"),
        ([("startkey", "2"), ("endkey", "1")], "startkey is beyond endkey"),
        ([("startkey", "1"), ("endkey", "2"), ("descending", "true")], "startkey is beyond endkey"),
        (
            [("key", "1"), ("startkey_docid", "b"), ("endkey_docid", "a")],
            "startkey is beyond endkey",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(pairs: list[tuple[str, str]], named: str) -> None:
    assert named in refused(*pairs)


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        ([("group", "true"), ("group_level", "1")], "group and group_level contradict"),
        ([("group", "true"), ("reduce", "false")], "group: "),
        ([("include_docs", "true")], "say reduce=false"),
        ([("keys", "[1]")], "with a reduce they need group=true"),
        ([("keys", "[1]"), ("group_level", "1")], "with a reduce they need group=true"),
    ],
)
def test_what_a_reduce_cannot_do_is_refused(pairs: list[tuple[str, str]], named: str) -> None:
    assert named in refused(*pairs, reduces=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nul",
        "NaN",
        "-Infinity",
        "1e999",
        "[" * 100_000,
        '{"a":' * 5_000,
        "9" * (DIGITS_MAX + 1),
        '"\udcff"',
        "[1] [2]",
        "'a'",
    ],
)
def test_a_key_that_is_no_json_is_refused(text: str) -> None:
    reason = refused(("startkey", text))
    assert reason.startswith("the value of startkey ")
    assert len(reason) < 200


def test_a_key_that_is_nested_too_deeply_is_refused() -> None:
    for value in (
        json.loads("[" * 300 + "]" * 300),
        [[["x"]] * 3, json.loads("[" * 250 + "]" * 250)],
    ):
        assert "startkey" in refused(body={"startkey": value})


@pytest.mark.parametrize("body", [[], "keys", 5, True])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    assert "the body is a JSON object" in refused(body=body)


def test_a_body_is_checked_as_the_url_is() -> None:
    assert refused(("limit", "1"), body={"limit": 1}) == "limit is given twice"
    assert "limit is a whole number" in refused(body={"limit": True})
    assert "startkey_docid" in refused(body={"startkey_docid": 5})
    assert "half of a character" in refused(body={"startkey_docid": "\ud800"})
    assert "at is a list" in refused(body={"at": [5]})


def test_keys_versions_and_digits_at_their_limits_are_taken_and_one_more_is_refused() -> None:
    for name, values in (("keys", [None] * KEYS_MAX), ("at", ["1:2:3"] * TOKENS_MAX)):
        assert getattr(parsed(body={name: values}, reduces=False), name) is not None
        assert refused(body={name: [*values, values[0]]}).startswith(f"{name} has more than")
    digits = "9" * DIGITS_MAX
    assert "digits" in refused(("limit", "1"), ("keys", f"[{digits}9]"))
    assert parsed(("key", digits)).start is not None


def test_an_id_of_any_bytes_can_be_named() -> None:
    query = parsed(("startkey", "1"), ("startkey_docid", "\udcff\udc00"[:1]))
    assert query.start is not None
    assert query.start.docid == b"\xff"
