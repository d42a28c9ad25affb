"""The page about TAP on the wire tells the truth: its tables are compared here.

Its examples are replayed by `test_docs`.
"""

from __future__ import annotations

import re

from tests.documents import TAP_MESSAGES, rows, section
from uprmc.protocol import tap
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.tap import PUSHED, ConnectFlag, TapFlag

MESSAGES = {int(row[0].strip("`"), 16): row[1:] for row in rows(TAP_MESSAGES) if len(row) == 6}


def first_number(text: str) -> int:
    return int(re.findall(r"\d+", text)[0])


def test_every_message_is_told() -> None:
    assert {number: row[0] for number, row in MESSAGES.items()} == {
        opcode: Opcode(opcode).name.removeprefix("TAP_") for opcode in (Opcode.TAP_CONNECT, *PUSHED)
    }


def test_lengths_of_extras_and_sections_are_the_layouts() -> None:
    with_item = {Opcode.TAP_MUTATION, Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END}
    sections = {
        Opcode.TAP_MUTATION: tap.TAP_MUTATION_SPECIFIC,
        Opcode.TAP_DELETE: tap.TAP_REVISION_SPECIFIC,
        Opcode.TAP_OPAQUE: tap.TAP_WORD_SPECIFIC,
        Opcode.TAP_VBUCKET_SET: tap.TAP_WORD_SPECIFIC,
        Opcode.TAP_CHECKPOINT_START: tap.TAP_REVISION_SPECIFIC,
    }
    for opcode in map(Opcode, PUSHED):
        _, extras, told, *_ = MESSAGES[opcode]
        expected = tap.TAP_ITEM_EXTRAS if opcode in with_item else tap.TAP_EXTRAS
        assert first_number(extras) == expected.size
        assert first_number(told) == (sections[opcode].size if opcode in sections else 0)


def test_every_flag_of_a_message_is_told() -> None:
    told = TAP_MESSAGES.partition("`flags` are ")[2].partition(";")[0]
    assert list(map(int, re.findall(r"\d", told))) == list(map(int, TapFlag))


def test_every_flag_of_a_connect_is_told() -> None:
    table = rows(section(TAP_MESSAGES, "### CONNECT"))
    told = {int(row[0].strip("`"), 16): row[1].partition(":")[0] for row in table}
    assert told == {int(flag): flag.name for flag in ConnectFlag}
