"""The core's way through text commands: the same replies and effects as the session's own.

On the interpreted core both ways are one, and this shows little.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kv.harness import Rig, drained, talk, talk_in_pieces
from tests.kv.test_binary_stream import answered, state
from uprmc.kv.text import TextSession

keys = st.sampled_from([b"a", b"bb", b"a-longer-key", b"k" * 250, b"k" * 251, b"\xff\x00", b""])
numbers = st.sampled_from(
    [b"0", b"1", b"00", b"4294967295", b"999999999", b"-1", b"1x", b"", b"100"]
)
lengths = st.sampled_from([b"0", b"1", b"3", b"300", b"4096", b"4097", b"99999999", b"-1", b"3 "])
expiries = st.sampled_from([b"0", b"0", b"1", b"100", b"2592001", b"-1"])
endings = st.sampled_from(
    [b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b" \r\n", b" noreply\r\n", b" norepl\r\n"]
)
gets = st.builds(lambda key, ending: b"get " + key + ending, keys, endings)
sets = st.builds(
    lambda key, flags, expiry, length, ending, end: (
        b"set %b %b %b %b%b%b"
        % (key, flags, expiry, length, ending, b"v" * min(int(length or b"0"), 5_000) + end)
    ),
    keys,
    numbers,
    expiries,
    lengths.filter(lambda text: text != b"-1"),
    endings,
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"xx", b"\n"]),
)
others = st.sampled_from(
    [
        *(b"delete a\r\n", b"gets a bb\r\n", b"get a bb\r\n", b"touch a 5\r\n", b"incr a 1\r\n"),
        *(b"stats\r\n", b"version\r\n", b"get  a\r\n", b"GET a\r\n", b"cas a 0 0 1 5\r\nx\r\n"),
    ]
)


def rig_and_session(*, served: bool) -> tuple[Rig, TextSession]:
    rig = Rig(engine__vbuckets=4, kv__max_item_bytes=8_192)
    session = rig.text()
    if not served:
        session._serving = None
    return rig, session


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(gets, sets, sets, others), max_size=12),
    st.lists(st.integers(0, 6_000), max_size=6),
    st.sampled_from([answered, talk]),
    st.sampled_from([None, "full disk", "short memory", "lock", "later", "ejected"]),
)
def test_served_or_not_the_replies_and_what_they_leave_behind_are_the_same(
    commands: list[bytes], cuts: list[int], way: object, trouble: str | None
) -> None:
    data = b"".join(commands)
    said = []
    states = []
    for served in (True, False):
        rig, session = rig_and_session(served=served)
        rig.fetch_at_once()
        replies = [talk(session, b"set a 7 50 1\r\nx\r\nset bb 0 0 2\r\nyy\r\nget a\r\n")]
        if trouble == "later":
            rig.clock.time += 60
        elif trouble == "lock":
            rig.bucket.of_key(b"bb").lock(b"bb", 15)
        elif trouble == "ejected":
            rig.eject(b"a", b"bb")
        elif trouble is not None:
            rig.bucket.account.write_limit = -1 if trouble == "full disk" else 0
            rig.bucket.account._disk_reason = "full" if trouble == "full disk" else ""
        replies.append(talk_in_pieces(session, data, cuts, way))
        replies.append(drained(session))
        said.append(b"".join(replies))
        states.append([*state(rig), session.closing])
    assert said[0] == said[1]
    assert states[0] == states[1]


@pytest.mark.parametrize("size", [0, 1, 4_096, 4_097, 100_000])
def test_values_of_any_size_are_answered(size: int) -> None:
    session = Rig().text()
    value = b"v" * size
    assert talk(session, b"set k 4294967295 0 %d\r\n%b\r\n" % (size, value)) == b"STORED\r\n"
    hit = b"VALUE k 4294967295 %d\r\n%b\r\nEND\r\n" % (size, value)
    assert talk(session, b"get k\r\n" * 3) == hit * 3
    assert answered(session, b"get k\r\nget none\r\n") == hit + b"END\r\n"
