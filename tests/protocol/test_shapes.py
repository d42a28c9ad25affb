"""Which frames are answered at all, and which ones end the connection."""

from __future__ import annotations

import itertools

import pytest

from tests.golden import shapes
from uprmc.protocol.opcodes import SHAPES, Opcode, Part, Refusal, Status, shape_error
from uprmc.protocol.tap import PUSHED

TORN = Refusal(Status.UNKNOWN_COMMAND, closes=True)
UNKNOWN = Refusal(Status.UNKNOWN_COMMAND, closes=False)
MISSHAPEN = Refusal(Status.INVALID_ARGUMENTS, closes=True)
REFUSED = Refusal(Status.INVALID_ARGUMENTS, closes=False)

#: Messages of TAP: their sections lie outside of a shape's parts, so the adapter judges them.
WITHOUT_SHAPE = {Opcode.TAP_CONNECT, *PUSHED}

#: memcached's own opcodes lie below.
FIRST_OTHER = 0x3D

PARTS = {"0": Part.NONE, "1+": Part.REQUIRED, "any": Part.OPTIONAL}


def test_shapes_are_the_references_tables() -> None:
    expected = {
        int(opcode, 16): (frozenset(map(int, extras.split("|"))), PARTS[key], PARTS[value])
        for opcode, extras, key, value in shapes.ROWS
    }
    assert expected == SHAPES
    assert set(SHAPES) == set(Opcode) - WITHOUT_SHAPE


#: Every length that some command has, their neighbours, and the longest.
EXTRAS = sorted(
    {0, 16, 255}
    | {
        int(length) + step
        for _, lengths, _, _ in shapes.ROWS
        for length in lengths.split("|")
        for step in (-1, 0, 1)
        if int(length) + step >= 0
    }
)


@pytest.mark.parametrize(("opcode", "extras", "key", "value"), shapes.ROWS)
def test_every_combination_of_parts_is_judged_as_the_table_says(
    opcode: str, extras: str, key: str, value: str
) -> None:
    rules = {"0": {0}, "1+": {1, 250}, "any": {0, 1, 250}}
    refusal = MISSHAPEN if int(opcode, 16) < FIRST_OTHER else REFUSED
    for extras_length, key_length, value_length in itertools.product(
        EXTRAS, (0, 1, 250), (0, 1, 250)
    ):
        fits = (
            str(extras_length) in extras.split("|")
            and key_length in rules[key]
            and value_length in rules[value]
        )
        body_length = extras_length + key_length + value_length
        judged = shape_error(int(opcode, 16), extras_length, key_length, body_length)
        assert judged == (None if fits else refusal)


@pytest.mark.parametrize("lengths", [(0, 2, 1), (8, 1, 8), (0, 0xFFFF, 0)])
def test_lengths_that_contradict_each_other_close_whatever_the_opcode(
    lengths: tuple[int, int, int],
) -> None:
    assert {opcode: shape_error(opcode, *lengths) for opcode in range(256)} == dict.fromkeys(
        range(256), TORN
    )


def test_a_key_over_250_bytes_closes_whatever_the_opcode() -> None:
    """Also for an opcode that nobody knows: memcached looks at the key first."""
    assert {opcode: shape_error(opcode, 0, 251, 251) for opcode in range(256)} == dict.fromkeys(
        range(256), MISSHAPEN
    )


@pytest.mark.parametrize("lengths", [(0, 0, 0), (4, 250, 300), (255, 0, 255)])
def test_an_unknown_opcode_is_answered_and_the_connection_goes_on(
    lengths: tuple[int, int, int],
) -> None:
    unknown = set(range(256)) - set(SHAPES)
    assert {opcode: shape_error(opcode, *lengths) for opcode in unknown} == dict.fromkeys(
        unknown, UNKNOWN
    )


@pytest.mark.parametrize(
    ("opcode", "lengths"),
    [
        (Opcode.APPEND, (8, 1, 10)),
        (Opcode.DELETE, (0, 1, 2)),
        (Opcode.SET, (0, 1, 1)),
        (Opcode.SET, (4, 1, 5)),
        (Opcode.NOOP, (0, 0, 1)),
        (Opcode.FLUSH, (8, 0, 8)),
        (Opcode.FLUSH, (4, 1, 5)),
        (Opcode.GAT, (0, 1, 1)),
        (Opcode.GETQ, (0, 0, 0)),
        (Opcode.STAT, (4, 0, 4)),
        (Opcode.SASL_AUTH, (0, 0, 4)),
    ],
)
def test_the_references_examples_of_wrong_shapes_close(
    opcode: int, lengths: tuple[int, int, int]
) -> None:
    assert shape_error(opcode, *lengths) == MISSHAPEN


@pytest.mark.parametrize(
    ("opcode", "lengths"),
    [
        (Opcode.UPR_OPEN, (8, 0, 8)),
        (Opcode.UPR_OPEN, (4, 1, 5)),
        (Opcode.UPR_ADD_STREAM, (0, 0, 4)),
        (Opcode.UPR_STREAM_REQUEST, (48, 1, 49)),
        (Opcode.UPR_STREAM_REQUEST, (44, 0, 44)),
        (Opcode.UPR_GET_FAILOVER_LOG, (0, 0, 1)),
        (Opcode.UPR_SNAPSHOT_MARKER, (20, 1, 21)),
        (Opcode.UPR_MUTATION, (30, 1, 31)),
        (Opcode.UPR_DELETION, (20, 1, 21)),
        (Opcode.UPR_EXPIRATION, (21, 1, 22)),
        (Opcode.UPR_NOOP, (0, 0, 4)),
        (Opcode.UPR_BUFFER_ACK, (0, 0, 4)),
        (Opcode.UPR_CONTROL, (0, 22, 22)),
        (Opcode.SET_WITH_META, (25, 1, 26)),
        (Opcode.COMPACT_DB, (17, 0, 17)),
        (Opcode.BARRIER_ADD, (0, 0, 0)),
    ],
)
def test_wrong_shapes_of_the_vbucket_servers_commands_are_only_refused(
    opcode: int, lengths: tuple[int, int, int]
) -> None:
    assert shape_error(opcode, *lengths) == REFUSED
