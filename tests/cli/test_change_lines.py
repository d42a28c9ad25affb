"""Changes as lines: nothing that a client can store breaks out of them."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.cli.shown import readable
from uprmc.cli.tail import as_json_line, plain
from uprmc.client.handler import Change, Rollback, SnapshotBegin, SnapshotEnd
from uprmc.remote.json_fields import text_or_base64


def a_set(key: bytes = b"k", value: bytes | None = b"v", **more: int) -> Change:
    fields = {"flags": 0, "expiry": 0, "datatype": 0} | more
    return Change("set", 3, 17, 0xABC, key, value, 2, 99, **fields)


A_DELETION = Change("delete", 3, 18, 0xABC, b"k", None, 3, 100, deleted_at=1_700_000_000)


@given(st.binary(min_size=1, max_size=250), st.none() | st.binary(max_size=500))
def test_a_plain_line_is_one_line_that_prints(key: bytes, value: bytes | None) -> None:
    assert plain(a_set(key, value)).isprintable()


@given(st.binary(min_size=1, max_size=250), st.none() | st.binary(max_size=500))
def test_json_gives_keys_and_values_back(key: bytes, value: bytes | None) -> None:
    line = as_json_line(a_set(key, value))
    assert "\n" not in line
    row = json.loads(line)
    for name, original in (("key", key), ("value", value)):
        text = row[name]
        if row.get(f"{name}_encoding") == "base64":
            assert b64decode(text) == original
        else:
            assert (None if text is None else text.encode()) == original


def test_text_is_text_and_what_is_none_says_so() -> None:
    assert text_or_base64("key", "größe".encode()) == {"key": "größe"}
    assert text_or_base64("key", b"\xff") == {"key": "/w==", "key_encoding": "base64"}


@pytest.mark.parametrize(
    ("data", "most", "shown"),
    [
        (b"plain", None, "plain"),
        ("größe".encode(), None, "größe"),
        (b"a\nb\x1b[31m\x00", None, r"a\nb\x1b[31m\x00"),
        (b"\xff", None, r"\xff"),
        ("\u2028\u202e".encode(), None, r"\u2028\u202e"),
        (b"12345", 5, "12345"),
        (b"123456", 5, "12345..."),
        ("äöüß€".encode(), 5, "äöüß€"),
        ("äöüß€x".encode(), 5, "äöüß€..."),
    ],
)
def test_bytes_are_shown_on_one_line(data: bytes, most: int | None, shown: str) -> None:
    assert readable(data, most) == shown


def test_a_long_value_is_cut_and_its_size_told() -> None:
    line = plain(a_set(value=b"x" * 1_234))
    assert '"' + "x" * 60 + '..."' in line
    assert "1,234 bytes" in line
    assert "bytes" not in plain(a_set(value=b"x" * 60))


def test_flags_and_expiry_are_shown_where_there_are_any() -> None:
    assert plain(a_set()) == '   3:17       set      k  "v"  rev 2, CAS 99'
    assert plain(a_set(flags=5, expiry=1_700_000_000)).endswith(
        "rev 2, CAS 99, flags 5, expires 2023-11-14T22:13:20Z"
    )
    assert plain(a_set(value=None)) == "   3:17       set      k  rev 2, CAS 99"
    assert plain(A_DELETION) == "   3:18       delete   k  rev 3, CAS 100"


def test_json_has_the_same_fields_for_every_change() -> None:
    assert json.loads(as_json_line(a_set(flags=5))) == {
        "op": "set",
        "vbucket": 3,
        "seqno": 17,
        "vb_uuid": str(0xABC),
        "key": "k",
        "value": "v",
        "rev": 2,
        "cas": "99",
        "flags": 5,
        "expiry": 0,
        "datatype": 0,
        "deleted_at": None,
    }
    deletion = json.loads(as_json_line(A_DELETION))
    assert deletion.keys() == json.loads(as_json_line(a_set())).keys()
    assert (deletion["value"], deletion["flags"]) == (None, None)
    assert deletion["deleted_at"] == 1_700_000_000


def test_snapshots_and_rollbacks_have_lines_of_their_own() -> None:
    begin, end = SnapshotBegin(3, 1, 17, from_disk=False), SnapshotEnd(3, 17, 2)
    rollback = Rollback(3, 17)
    assert plain(begin) == "   3:1        begin    snapshot up to 17, memory"
    assert plain(end) == "   3:17       end      snapshot complete, 2 changes"
    assert plain(rollback) == "   3:17       rollback everything after it is void"
    assert [json.loads(as_json_line(event)) for event in (begin, end, rollback)] == [
        {
            "op": "snapshot-begin",
            "vbucket": 3,
            "start": 1,
            "end": 17,
            "from_disk": False,
        },
        {"op": "snapshot-end", "vbucket": 3, "end": 17, "items": 2},
        {"op": "rollback", "vbucket": 3, "seqno": 17},
    ]
