"""A lease's messages and its token: both ends mean the same, and nonsense is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.errors import RemoteProtocolError
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr_extensions import (
    LEASE_GRANT_EXTRAS,
    LeasedVBucket,
    decode_lease_vbuckets,
    encode_lease_grant,
)
from uprmc.remote import lease
from uprmc.remote.lease import Grant, parsed_token, token_of, whole_seconds

_PLACES = st.sampled_from(["10.0.0.1:11210", "host.example:1", "[::1]:65535"])
_GRANTS = st.lists(
    st.builds(
        Grant,
        _PLACES,
        st.integers(0, 2**64 - 1),
        st.sets(st.integers(0, 0xFFFF), min_size=1, max_size=50).map(lambda n: tuple(sorted(n))),
    ),
    max_size=4,
)
_ID = "0" * 16


@given(_GRANTS, st.integers(1, 2**32 - 1))
def test_a_token_says_all_that_a_reader_needs(grants: list[Grant], seconds: int) -> None:
    token = token_of(grants, seconds)
    assert parsed_token(token) == (grants, seconds)
    assert not set(token) & set(" \n\"'")


@pytest.mark.parametrize(
    "token",
    ["", "lease1", "lease1;x", "lease1;0", "lease2;60", "lease1;60;a", "lease1;60;a:1/g/0",
     "lease1;60;a:1/1/0", "lease1;60;a:1/-000000000000001/0", "lease1;60;a:1/00000000000000001/0",
     *(f"lease1;60;{rest}" for rest in (f"a:1/{_ID}/", f"a/{_ID}/0", f"a:1/{_ID}/5-3",
                                        f"a:1/{_ID}/70000"))],
)  # fmt: skip
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whose words are not shown
        parsed_token(token)


@pytest.mark.parametrize("seconds", [0, -1, 2**32, float("nan")])
def test_a_lifetime_that_makes_no_sense_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="say 1 to 4294967295"):
        whole_seconds(seconds)
    assert whole_seconds(0.2) == 1


def test_questions_are_laid_out_as_the_node_reads_them() -> None:
    asked = lease.acquire([7, 3], 60)
    assert (asked.opcode, asked.extras) == (Opcode.LEASE_ACQUIRE, b"\0\0\0\x3c")
    assert decode_lease_vbuckets(asked.value) == [7, 3]
    assert lease.acquire([7, 3], 60, spare=2).extras == b"\0\0\0\x3c\0\0\0\2"
    assert lease.renew(5, 60).extras == b"\0\0\0\0\0\0\0\5\0\0\0\x3c"
    assert lease.release(5).extras == b"\0\0\0\0\0\0\0\5"


def test_what_was_granted_is_read_and_a_torn_answer_refused() -> None:
    held = [LeasedVBucket(3, 9, 100, 20)]
    extras, value = LEASE_GRANT_EXTRAS.pack(5, 40), encode_lease_grant(held)
    answer = ResponseFrame(Opcode.LEASE_ACQUIRE, extras=extras, value=value)
    assert lease.granted(answer) == (5, 40, held)
    for torn in (extras[:-1], value), (extras, value[:-1]):
        with pytest.raises(RemoteProtocolError, match="a torn lease"):
            lease.granted(ResponseFrame(Opcode.LEASE_ACQUIRE, extras=torn[0], value=torn[1]))
