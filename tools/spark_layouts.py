"""Write ``uprmc/columnar/layouts.py``: the wire's layouts and numbers without construct.

A Spark worker has neither construct nor the server. What it needs of the wire is derived here from
`uprmc.protocol`, which stays the only place where a layout is declared; a test runs this program
and compares. Run ``python -m tools.spark_layouts`` after a change there.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Sequence
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

from construct import Const, Struct

from uprmc.model import VBucketState
from uprmc.protocol import binary, header, management, opcodes, upr, upr_extensions
from uprmc.protocol.derive import derive, derive_merged

TARGET = Path(__file__).parent.parent / "uprmc" / "columnar" / "layouts.py"

#: Header fields that are written and read as one number each where all fields of a frame are.
_HEADER_GROUPS = (
    ("magic", "opcode"),
    ("key_length",),
    ("extras_length", "datatype", "vbucket"),
    ("body_length",),
    ("opaque",),
    ("cas",),
)

#: Layouts by the name of their struct.
LAYOUTS: dict[str, Struct] = {
    "REQUEST_HEADER": header.RequestHeader,
    "RESPONSE_HEADER": header.ResponseHeader,
    "OPEN_EXTRAS": upr.OpenExtras,
    "STREAM_REQUEST_EXTRAS": upr.StreamRequestExtras,
    "ROLLBACK_VALUE": upr.RollbackValue,
    "FAILOVER_ENTRY": upr._FailoverEntry,
    "TERM_EXTRAS": upr.TermExtras,
    "BUFFER_ACK_EXTRAS": upr.BufferAckExtras,
    "STREAM_END_EXTRAS": upr.StreamEndExtras,
    "SNAPSHOT_MARKER_EXTRAS": upr.SnapshotMarkerExtras,
    "VERSIONED_MARKER_EXTRAS": upr.VersionedMarkerExtras,
    "VERSIONED_MARKER_VALUE": upr.VersionedMarkerValue,
    "MUTATION_EXTRAS": upr.MutationExtras,
    "DELETION_EXTRAS": upr.DeletionExtras,
    "TIMED_DELETION_EXTRAS": upr.TimedDeletionExtras,
    "EXPIRATION_EXTRAS": upr.ExpirationExtras,
    "VBUCKET_FACTS_EXTRAS": upr_extensions.VBucketFactsExtras,
    "LEASE_ACQUIRE_EXTRAS": upr_extensions.LeaseAcquireExtras,
    "LEASE_RENEW_EXTRAS": upr_extensions.LeaseRenewExtras,
    "LEASE_RELEASE_EXTRAS": upr_extensions.LeaseReleaseExtras,
    "LEASE_GRANT_EXTRAS": upr_extensions.LeaseGrantExtras,
    "LEASED_VBUCKET": upr_extensions._LEASED,
    "STORE_EXTRAS": binary.StoreExtras,
    "TOUCH_EXTRAS": binary.TouchExtras,
    "GET_REPLY_EXTRAS": binary.GetReplyExtras,
    "MUTATION_SEQNO_EXTRAS": binary.MutationSeqnoExtras,
    "OBSERVE_SEQNO_REQUEST": binary.ObserveSeqnoRequest,
    "OBSERVE_SEQNO_REPLY": binary.ObserveSeqnoReply,
    "OBSERVE_SEQNO_FAILOVER_REPLY": binary.ObserveSeqnoFailoverReply,
    "VBUCKET_SEQNOS_EXTRAS": management.VBucketSeqnosExtras,
    "VBUCKET_SEQNO": management._VBucketSeqno,
    "VBUCKET_SEQNO_TERM": management._VBucketSeqnoTerm,
    "SEQNO_PERSISTENCE_EXTRAS": management.SeqnoPersistenceExtras,
    "WITH_META_EXTRAS": management.WithMetaExtras,
    "WITH_META_NMETA_EXTRAS": management.WithMetaNmetaExtras,
    "WITH_META_OPTIONS_EXTRAS": management.WithMetaOptionsExtras,
    "WITH_META_OPTIONS_NMETA_EXTRAS": management.WithMetaOptionsNmetaExtras,
    "GET_META_EXTRAS": management.GetMetaExtras,
    "GET_META_REPLY_EXTRAS": management.GetMetaReplyExtras,
    "GET_META_DATATYPE_REPLY_EXTRAS": management.GetMetaDatatypeReplyExtras,
}

#: Structs of rows that have a single field.
ROWS: dict[str, tuple[struct.Struct, str]] = {
    "LEASE_VBUCKET": (upr_extensions.LEASE_VBUCKET, "vbucket"),
    "HELLO_FEATURE": (binary.HELLO_FEATURE, "feature"),
}

#: Header and extras of the frames that come or go by the million.
FRAMES: dict[str, Struct] = {
    "MUTATION": upr.MutationExtras,
    "DELETION": upr.DeletionExtras,
    "TIMED_DELETION": upr.TimedDeletionExtras,
    "EXPIRATION": upr.ExpirationExtras,
    "BARE": Struct(),
    "STORE": binary.StoreExtras,
    "WITH_META": management.WithMetaExtras,
    "WITH_META_OPTIONS": management.WithMetaOptionsExtras,
}

ENUMS: tuple[type[IntEnum] | type[IntFlag], ...] = (
    opcodes.Opcode,
    opcodes.Status,
    opcodes.OpenFlag,
    opcodes.StreamFlag,
    opcodes.MarkerFlag,
    opcodes.EndReason,
    opcodes.Feature,
    opcodes.DataType,
    management.WithMetaOption,
    VBucketState,
)

_TOP = '''"""Layouts and numbers of the wire, for workers without construct. Generated; do not edit.

Made from `uprmc.protocol` by ``python -m tools.spark_layouts``; a test runs it and compares. A
struct's comment names its fields in order; fields in brackets are one number, the first named is
its most significant part. ``*_FIELDS`` is the same frame for numpy: name and type, in order, no
gaps.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct
'''

_NUMPY = {"B": "u1", "H": ">u2", "L": ">u4", "Q": ">u8"}


def frame_struct(extras: Struct) -> struct.Struct:
    """Return header and extras as one struct, its header merged into six numbers."""
    return derive_merged(_frame(extras), *_HEADER_GROUPS, *_each_alone(extras))


def scan_struct() -> struct.Struct:
    """Return a struct over a header that reads the opcode with the magic, and the body length."""
    codes = []
    for group in _HEADER_GROUPS:
        width = sum(_width(header.RequestHeader, name) for name in group)
        kept = group in (("magic", "opcode"), ("body_length",))
        codes.append({2: "H", 4: "L"}[width] if kept else f"{width}x")
    return struct.Struct(">" + "".join(codes))


def numpy_fields(extras: Struct) -> list[tuple[str, str]]:
    """Return header and extras as a numpy record's fields."""
    frame = _frame(extras)
    codes = _codes(derive(frame))
    return [(name, _NUMPY[code]) for name, code in zip(_names(frame), codes, strict=True)]


def generated() -> str:
    """Return the text of the module."""
    parts = [_TOP, _numbers(), *(_enum(each) for each in ENUMS), _tables(), _structs(), _frames()]
    return "\n".join(parts)


def _numbers() -> str:
    names = ("MAGIC_REQUEST", "MAGIC_RESPONSE", "HEADER_BYTES", "KEY_MAX_BYTES", "FRAME_MAX_BYTES")
    lines = [f"{name} = {getattr(opcodes, name):#04x}" for name in names[:2]]
    lines += [f"{name} = {getattr(opcodes, name)}" for name in names[2:]]
    return "\n".join(lines) + "\n"


def _enum(kind: type[IntEnum] | type[IntFlag]) -> str:
    base = "IntFlag" if issubclass(kind, IntFlag) else "IntEnum"
    doc = (kind.__doc__ or "").strip().splitlines()[0]
    members = [f"    {name} = 0x{int(member):02X}" for name, member in kind.__members__.items()]
    return "\n".join([f"\nclass {kind.__name__}({base}):", f'    """{doc}"""', "", *members]) + "\n"


def _tables() -> str:
    lines = ["", "#: Quiet opcode -> the opcode that does the same and always answers."]
    lines.append("QUIET: dict[int, int] = {")
    lines += [
        f"    Opcode.{opcodes.Opcode(quiet).name}: Opcode.{opcodes.Opcode(loud).name},"
        for quiet, loud in opcodes.QUIET.items()
    ]
    lines += ["}", "", "#: What a node says of a status, in words."]
    lines.append("STATUS_TEXT: dict[int, str] = {")
    lines += [
        f'    Status.{opcodes.Status(number).name}: "{text.decode()}",'
        for number, text in opcodes.STATUS_TEXT.items()
    ]
    return "\n".join([*lines, "}"]) + "\n"


def _structs() -> str:
    lines = []
    for name, layout in LAYOUTS.items():
        lines += _struct(name, derive(layout), [(each,) for each in _names(layout)])
        lines += _constants(name, layout)
    for name, (row, field) in ROWS.items():
        lines += _struct(name, row, [(field,)])
    lines += _struct("FRAME_SCAN", scan_struct(), [("magic", "opcode"), ("body_length",)])
    return "\n".join(lines)


def _frames() -> str:
    lines = []
    for name, extras in FRAMES.items():
        groups = [*_HEADER_GROUPS, *_each_alone(extras)]
        lines += _struct(f"{name}_FRAME", frame_struct(extras), groups)
        lines.append(f"{name}_FIELDS = (")
        lines += [f'    ("{field}", "{code}"),' for field, code in numpy_fields(extras)]
        lines += [")", ""]
    return "\n".join(lines).rstrip() + "\n"


def _struct(name: str, found: struct.Struct, groups: Iterable[Sequence[str]]) -> list[str]:
    words = [group[0] if len(group) == 1 else f"({', '.join(group)})" for group in groups]
    comment, lines = "#: ", []
    for number, word in enumerate(words):
        piece = word if number == len(words) - 1 else word + ", "
        if len(comment + piece.rstrip()) > 99:
            lines.append(comment.rstrip())
            comment = "#: "
        comment += piece
    return [*lines, comment, f'{name} = Struct("{found.format}")', ""]


def _constants(name: str, layout: Struct) -> list[str]:
    """Numbers that a layout fixes: whoever packs it must know them."""
    return [
        f"{name.removesuffix('_EXTRAS')}_{field.upper()} = {value}\n"
        for field, value in _fixed(layout)
        if name != "REQUEST_HEADER" and name != "RESPONSE_HEADER"
    ]


def _fixed(layout: Struct) -> list[tuple[str, int]]:
    return [(str(each.name), each.subcon.value) for each in layout.subcons if _is_const(each)]


def _is_const(subcon: Any) -> bool:
    return isinstance(getattr(subcon, "subcon", None), Const)


def _frame(extras: Struct) -> Struct:
    return Struct(*header.RequestHeader.subcons, *_renamed(extras))


def _each_alone(extras: Struct) -> list[tuple[str, ...]]:
    return [(str(subcon.name),) for subcon in _renamed(extras)]


def _renamed(extras: Struct) -> list[Any]:
    """Fields of extras that the header has, too, get a name of their own."""
    taken = _names(header.RequestHeader)
    return [
        f"document_{each.name}" / each.subcon if each.name in taken else each
        for each in extras.subcons
    ]


def _names(layout: Struct) -> list[str]:
    return [str(subcon.name) for subcon in layout.subcons]


def _width(layout: Struct, name: str) -> int:
    return int(next(each for each in layout.subcons if each.name == name).sizeof())


def _codes(found: struct.Struct) -> str:
    return str(found.format).removeprefix(">")


def main() -> int:
    """Write the module; ``--check`` only tells whether it is as it should be."""
    text = generated()
    if "--check" in sys.argv[1:]:
        return int(TARGET.read_text() != text)
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
