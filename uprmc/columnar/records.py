"""Header and extras of the frames that come or go by the million, as numpy sees them.

Fields have the names and the order of the construct declarations. A field of the extras that the
header has, too, is called ``document_...``: of the CAS of a document there are two in one frame.
"""

from __future__ import annotations

import numpy as np
from construct import Struct as Layout

from uprmc.protocol.binary import StoreExtras
from uprmc.protocol.derive import derive, derive_merged
from uprmc.protocol.header import RequestHeader
from uprmc.protocol.management import (
    WithMetaExtras,
    WithMetaNmetaExtras,
    WithMetaOptionsExtras,
    WithMetaOptionsNmetaExtras,
)
from uprmc.protocol.upr import MutationExtras

_NUMPY = {"B": "u1", "H": ">u2", "L": ">u4", "Q": ">u8"}


def record_of(extras: Layout) -> np.dtype[np.void]:
    """Return header and these extras as a numpy record without gaps."""
    taken = {subcon.name for subcon in RequestHeader.subcons}
    renamed = [
        f"document_{subcon.name}" / subcon.subcon if subcon.name in taken else subcon
        for subcon in extras.subcons
    ]
    frame = Layout(*RequestHeader.subcons, *renamed)
    names, codes = [subcon.name for subcon in frame.subcons], derive(frame).format.removeprefix(">")
    record: np.dtype[np.void] = np.dtype(
        [(name, _NUMPY[code]) for name, code in zip(names, codes, strict=True)]
    )
    return record


MUTATION = record_of(MutationExtras)
BARE = record_of(Layout())
STORE = record_of(StoreExtras)
WITH_META = record_of(WithMetaExtras)
WITH_META_OPTIONS = record_of(WithMetaOptionsExtras)
WITH_META_NMETA = record_of(WithMetaNmetaExtras)
WITH_META_OPTIONS_NMETA = record_of(WithMetaOptionsNmetaExtras)

#: What finding the next frame takes of a header: magic and opcode as one number, the body length.
FRAME_SCAN = derive_merged(
    RequestHeader,
    ("magic", "opcode"),
    ("key_length", "extras_length", "datatype", "vbucket"),
    ("body_length",),
    ("opaque", "cas"),
    unread=(1, 3),
)
