"""Which records are tombstones, and which of them a compaction drops.

The functions here are the interpreted form; `uprmc.core.native.tombstones` replaces them if it
runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uprmc.core import form
from uprmc.engine.disposal import Record
from uprmc.record import FRONT, KIND_AT, LIFE_BITS, cas_of, key_of

#: The last seqno examined, the lowest one of a tombstone that stays, the oldest time of deletion of
#: those.
Left = tuple[int, int, int]


def pick(
    records: list[bytes],
    bounds: tuple[int, int, int],
    most: int,
    found: list[Record],
    left: Left,
) -> tuple[int, int, int, bool]:
    """Append to `found` the tombstones that are to go, until it has `most`.

    Args:
        records: by rising seqno.
        bounds: where to stop; and of tombstones that go, the time after the deletion and the
            highest seqno.
        most: at least one more than `found` has.
        found: what was found before.
        left: what earlier calls returned.

    Returns:
        `Left`, and whether there was a record above the bound.
    """
    limit, before_s, upto = bounds
    after, first_left, oldest_left = left
    for record in records:
        _, kind, _, deleted_at_s, _, _, seqno = FRONT.unpack_from(record)
        if seqno > limit:
            return after, first_left, oldest_left, True
        after = seqno
        if not kind & LIFE_BITS:
            continue
        if deleted_at_s < before_s and seqno <= upto:
            found.append((key_of(record), seqno))
            if len(found) >= most:
                break
        else:
            first_left = min(first_left, seqno)
            oldest_left = min(oldest_left, deleted_at_s)
    return after, first_left, oldest_left, False


def dead_among(records: list[bytes]) -> list[bytes]:
    """Return the tombstones among records."""
    return [record for record in records if record[KIND_AT] & LIFE_BITS]


def highest_cas(records: list[bytes]) -> int:
    """Return the highest CAS of records, 0 of none."""
    return max(map(cas_of, records), default=0)


if form.FORM == form.COMPILED and not TYPE_CHECKING:
    from uprmc.core.native.tombstones import dead_among, highest_cas, pick  # noqa: F401
