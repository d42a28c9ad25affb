"""What is done with which vBucket: pure rules over `States`.

By itself an index follows what its source has active. A vBucket that is new there is pending until
everything has come that the source has: queries that need it wait, so a takeover shows neither a
missing nor a doubled row. One that the source has lost is not shown from then on, and cleaned up a
little later, since a node that restarts may have it again at once. `set_states` takes over from
that for good.

Rows I10 to I12, I15 to I17.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# --- bitmaps --------------------------------------------------------------------------------------
# Sets of vBuckets as integers: bit n stands for vBucket n.


_ONE = ord("1")


def bitmap(vbuckets: Iterable[int]) -> int:
    """Return the bitmap of some vBuckets."""
    found = sorted(vbuckets)
    if not found:
        return 0
    last = found[-1]
    digits = bytearray(b"0" * (last + 1))
    for vbucket in found:
        digits[last - vbucket] = _ONE
    return int(digits, 2)


def numbers(bits: int) -> list[int]:
    """Return the vBuckets of a bitmap, by rising number."""
    return [n for n, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]


# --- vbucket sets ---------------------------------------------------------------------------------


class States(NamedTuple):
    """What is done with each vBucket, as bitmaps."""

    active: int = 0  # indexed and shown
    pending: int = 0  # indexed, and active once everything has come that the source has
    passive: int = 0  # indexed and not shown
    cleanup: int = 0  # rows are to be removed
    paused: int = 0  # not followed at present; shown or not as the others say
    epoch: int = 0  # of the last `_set_states`
    managed: bool = False  # whether that decides, not what the source has active

    @property
    def indexed(self) -> int:
        """Bitmap of those that have, or will have, rows to be kept."""
        return self.active | self.pending | self.passive

    @property
    def followed(self) -> int:
        """Bitmap of those whose changes are to come."""
        return self.indexed & ~self.paused


class Wish(NamedTuple):
    """What `_set_states` says, as bitmaps; ``None`` = not named."""

    active: int | None = None
    passive: int | None = None
    cleanup: int | None = None
    pause: int | None = None
    epoch: int | None = None


def follow_source(states: States, at_source: int, kept: int, *, first: bool = False) -> States:
    """Return what to do after the source has said what it has active.

    Args:
        states: as they are.
        at_source: active there.
        kept: lost there so recently that their rows stay.
        first: nothing is indexed yet: all are active at once, and the index says "building".
    """
    if states.managed:
        return states
    shown = states.active & at_source
    pending = (states.pending | states.passive | (at_source & ~states.active)) & at_source
    if first:
        shown, pending = shown | pending, 0
    lost = states.indexed & ~at_source
    gone = lost & ~kept
    cleanup = (states.cleanup | gone) & ~at_source
    return states._replace(
        active=shown,
        pending=pending,
        passive=lost & kept,
        cleanup=cleanup,
        paused=states.paused & (shown | pending | (lost & kept)),
    )


def caught_up(states: States, vbuckets: int) -> States:
    """Return the states once everything has come that the source had of some vBuckets."""
    ready = states.pending & vbuckets
    return states._replace(active=states.active | ready, pending=states.pending & ~ready)


def wished(states: States, wish: Wish) -> States:
    """Return the states that `_set_states` asks for.

    What is not named stays as it is, as far as it is not named for something else; a vBucket that
    is in none of them afterwards is cleaned up.
    """
    cleanup = wish.cleanup or 0
    active = states.active | states.pending if wish.active is None else wish.active
    passive = states.passive if wish.passive is None else wish.passive
    if wish.active is None:
        active &= ~(passive | cleanup)
    if wish.passive is None:
        passive &= ~(active | cleanup)
    ready = states.active & active
    indexed = active | passive
    return States(
        active=ready,
        pending=active & ~ready,
        passive=passive,
        cleanup=(states.cleanup | cleanup | states.indexed) & ~indexed,
        paused=(states.paused if wish.pause is None else wish.pause) & indexed,
        epoch=states.epoch if wish.epoch is None else wish.epoch,
        managed=True,
    )


def contradiction(wish: Wish) -> str | None:
    """Return why a wish makes no sense, ``None`` = it does."""
    sets = {"active": wish.active, "passive": wish.passive, "cleanup": wish.cleanup}
    named = [(name, bits) for name, bits in sets.items() if bits is not None]
    for place, (name, bits) in enumerate(named):
        for other, others in named[place + 1 :]:
            if bits & others:
                return f"a vBucket is both in {name} and in {other}"
    if wish.pause and wish.pause & (wish.cleanup or 0):
        return "a vBucket is both in pause and in cleanup"
    return None
