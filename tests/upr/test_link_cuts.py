"""What a link makes of its input does not depend on how it is cut, whatever the input is."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contents import table_of
from tests.upr.link_rig import Script, replica_rig
from tests.upr.peer import (
    ACK,
    DELETION,
    MEMORY,
    NOOP,
    SET_STATE,
    STREAM_END,
    frame,
    marker,
    mutation,
    untouched,
)

NUMBERS = st.integers(0, 1)
SEQNOS = st.integers(0, 12)
KEYS = st.sampled_from([b"a", b"b", b"c"])


def frames_of(opaques: list[int]) -> st.SearchStrategy[bytes]:
    """Frames of two streams, most of them in their place."""
    opaque_of = opaques.__getitem__
    return st.one_of(
        st.builds(
            lambda n, low, size, kind: marker(n, opaque_of(n), low, low + size, kind),
            NUMBERS,
            SEQNOS,
            st.integers(0, 9),
            st.sampled_from([MEMORY, MEMORY | ACK]),
        ),
        *[
            st.builds(
                lambda n, seqno, key, value: mutation(n, opaque_of(n), seqno, key, value),
                NUMBERS,
                SEQNOS,
                KEYS,
                st.binary(max_size=40),
            )
        ]
        * 4,
        st.builds(
            lambda n, seqno, key: frame(
                DELETION,
                key=key,
                extras=struct.pack(">QQIB", seqno, 1, 7, 0),
                vbucket=n,
                opaque=opaque_of(n),
            ),
            NUMBERS,
            SEQNOS,
            KEYS,
        ),
        st.just(frame(NOOP, opaque=5)),
        st.builds(
            lambda n: frame(STREAM_END, extras=bytes(4), vbucket=n, opaque=opaque_of(n)), NUMBERS
        ),
        st.builds(
            lambda n: frame(SET_STATE, extras=b"\x03", vbucket=n, opaque=opaque_of(n)), NUMBERS
        ),
    )


def in_order() -> st.SearchStrategy[list[bytes]]:
    """Snapshots one behind the other, of stream 0."""
    return st.lists(st.integers(1, 6), max_size=5).map(_snapshots)


def _snapshots(sizes: list[int]) -> list[bytes]:
    frames, seqno = [], 0
    for size in sizes:
        frames.append(marker(0, OPAQUES[0], seqno + 1, seqno + size, MEMORY | ACK))
        for _ in range(size):
            seqno += 1
            frames.append(mutation(0, OPAQUES[0], seqno, b"k%d" % (seqno % 5), bytes(seqno)))
    return frames


def opened() -> tuple[Script, list[int]]:
    script = Script(replica_rig())
    return script, [script.follow(number) for number in (0, 1)]


OPAQUES = opened()[1]


def outcome(data: bytes, cuts: list[int]) -> Any:
    """Everything that can be seen of a link after it got `data`."""
    script, opaques = opened()
    assert opaques == OPAQUES
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        script.link.receive_data(data[start:end])
    sent = [each for each in script.sent() if not script.link.closing]
    rig = script.target
    state = [
        (part.high_seqno, part.receiving, [item._fields() for item in table_of(part).values()])
        for part in (rig.bucket.vbuckets[number] for number in (0, 1))
    ]
    found = (sent, state, script.link.error, script.owner.take(), script.link.items)
    rig.check()
    script.link.connection_lost()
    untouched(rig)
    return found


@settings(max_examples=150, deadline=None)
@given(
    frames=st.one_of(st.lists(frames_of(OPAQUES), max_size=25), in_order()),
    cuts=st.lists(st.integers(0, 3_000), max_size=30),
    rest=st.binary(max_size=60),
)
def test_input_cut_anywhere_gives_the_same(
    frames: list[bytes], cuts: list[int], rest: bytes
) -> None:
    data = b"".join(frames) + rest
    assert outcome(data, cuts) == outcome(data, [])


@settings(max_examples=60, deadline=None)
@given(frames=in_order())
def test_input_byte_by_byte_gives_the_same(frames: list[bytes]) -> None:
    data = b"".join(frames)
    whole = outcome(data, [])
    assert whole == outcome(data, list(range(len(data))))
    assert whole[2] == ""
