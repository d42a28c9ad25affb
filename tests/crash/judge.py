"""What may be on disk after a crash, and what may not.

The judge knows nothing of servers: it is told what was written, what the server confirmed as
persisted, and what a restarted server holds, and says what is wrong with that. A version is a
number that is never used twice; a deletion is a version too. Its rules, per key:

- the newest confirmed version, or a later one that was sent, is what a restart shows;
- a value that was never written, or was lost in an earlier crash, does not appear;
- what a restart has shown is on disk, so it counts as confirmed from then on.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

NOTHING = 0
"""The version of a key that was never written."""


def value_of(key: bytes, version: int) -> bytes:
    """The only value that this version of the key can have; 20 to 1,500 bytes."""
    head = b"%s #%d " % (key, version)
    filler = b"%08x" % zlib.crc32(head)
    return head + filler * (1 + version * 7_919 % 180)


def version_in(key: bytes, value: bytes) -> int | None:
    """Which version a value is, or ``None`` when it is no value of this key at all."""
    head, mark, rest = value.partition(b" #")
    number = rest.split(b" ", 1)[0]
    if head != key or not mark or not number.isdigit():
        return None
    version = int(number)
    return version if value == value_of(key, version) else None


@dataclass(slots=True)
class _Key:
    # (version, present) in the order sent; the first is what the disk held at the last restart
    sent: list[tuple[int, bool]] = field(default_factory=lambda: [(NOTHING, False)])
    confirmed: int = 0  # index in `sent`
    newest_ever: int = NOTHING


class Judge:
    """The history of every key since the data directory was made."""

    def __init__(self) -> None:
        self._keys: dict[bytes, _Key] = {}

    def sent(self, key: bytes, version: int, *, present: bool) -> None:
        """A store (``present``) or deletion is on its way; it may or may not have an effect."""
        history = self._keys.setdefault(key, _Key())
        assert version > history.newest_ever, "versions of a key rise"
        history.newest_ever = version
        history.sent.append((version, present))

    def latest(self, key: bytes) -> tuple[int, bool]:
        """The version sent last and whether it is a value: what the next reply tells about."""
        return self._keys.setdefault(key, _Key()).sent[-1]

    def confirmed(self, key: bytes, version: int) -> None:
        """The server said that this version is persisted."""
        history = self._keys[key]
        for index, (sent, _) in enumerate(history.sent):
            if sent == version:
                history.confirmed = max(history.confirmed, index)
                return
        raise AssertionError(f"{key!r}: version {version} was confirmed but never sent")

    def confirm_everything(self) -> None:
        """A clean stop promises that all that was accepted is on disk."""
        for history in self._keys.values():
            history.confirmed = len(history.sent) - 1

    @property
    def keys(self) -> list[bytes]:
        return list(self._keys)

    def unconfirmed(self) -> int:
        """How many keys have a version that a crash may still take."""
        return sum(len(k.sent) - 1 > k.confirmed for k in self._keys.values())

    def restarted(self, found: Mapping[bytes, bytes | None]) -> list[str]:
        """Judge what a restarted server holds of every key; gives complaints, none if all is well.

        Afterwards what was found is the ground that the next crash must not take away.
        """
        complaints = []
        for key, history in self._keys.items():
            complaint, kept = _judged(key, history, found[key])
            if complaint:
                complaints.append(f"{key!r}: {complaint}")
            history.sent = [kept]
            history.confirmed = 0
        return complaints


def _judged(key: bytes, history: _Key, value: bytes | None) -> tuple[str, tuple[int, bool]]:
    """A complaint or nothing, and the state that is on disk now."""
    allowed = history.sent[history.confirmed :]
    expected = f"allowed: {allowed}"
    if value is None:
        gone = [state for state in allowed if not state[1]]
        if gone:
            return "", gone[-1]
        return f"is gone; {expected}", (history.newest_ever, False)
    version = version_in(key, value)
    if version is None:
        return f"holds {value[:60]!r}, which was never written; {expected}", allowed[0]
    state = (version, True)
    if state in allowed:
        return "", state
    if state in history.sent:
        return f"went back to version {version}; {expected}", state
    if version <= history.newest_ever:
        return f"shows version {version}, which was lost or deleted before; {expected}", state
    return f"holds version {version}, which was never sent; {expected}", state
