"""Where a stream stands in every vBucket, as plain values and as the JSON that Spark keeps for it.

Equal offsets have equal text: Spark compares texts to see whether there is anything new. A position
that nothing was read from is left out, so the beginning is an offset without positions, and a
vBucket that is made later begins at 0.

    {"v": 1, "n": 64, "id": ID, "lease": TOKEN, "vb": {"5": {"u": "00f1...", "s": 1155, ...}}}

| key | of a position |
|---|---|
| `u` | history (vb_uuid, 16 hex digits) that `s` was given in |
| `s` | everything up to here was read |
| `a`, `e` | `s` lies inside of a snapshot: after the complete state `a`, it goes up to `e` |
| `b` | older complete states, newest first, at most `BOUNDARIES_MAX` |
| `r` | the batch that ends here first goes back to `r`: history had branched |
| `o` | the reader began here and holds nothing at or below it |
| `m` | the batch that ends here read something of this vBucket, from the lease `lease` |

`id` is what the nodes know the stream by (`registration`); it stays for the life of a checkpoint.
Without `lease` every position is known to be exactly what was read: see `batch_planner`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from uprmc.columnar.errors import BadFile, BadOption
from uprmc.protocol.watermarks import ID_MAX_BYTES
from uprmc.remote.ranges import VBUCKETS_MAX

#: Goes up when an older program would misread what a newer one wrote.
VERSION = 1

#: Older complete states that are remembered of each vBucket.
BOUNDARIES_MAX = 6

_SEQNO_MAX = 2**63 - 1
_EARLIEST, _LATEST = "earliest", "latest"


@dataclass(frozen=True)
class OffsetPosition:
    """One vBucket's part of an offset; the table in the module docstring says what is what."""

    uuid: int = 0
    seqno: int = 0
    snapshot: tuple[int, int] | None = None
    boundaries: tuple[int, ...] = ()
    rewound_to: int | None = None
    origin: int = 0
    moved: bool = False

    @property
    def boundary(self) -> int:
        """The newest complete state: `seqno`, or where the lease's snapshot began."""
        return self.seqno if self.snapshot is None else self.snapshot[0]

    @property
    def whole(self) -> tuple[int, ...]:
        """All complete states that are remembered, newest first; the beginning is not listed."""
        return tuple(each for each in (self.boundary, *self.boundaries) if each)

    def quiet(self) -> OffsetPosition:
        """Return the same without what is only of interest to the batch that ends here."""
        return replace(self, rewound_to=None, moved=False)


@dataclass(frozen=True)
class Offset:
    """See the module docstring."""

    vbuckets: int  # how many the nodes have in all
    # by vBucket, without those at the beginning.
    positions: Mapping[int, OffsetPosition] = field(default_factory=dict)
    lease: str | None = None  # token of the lease that the batch which ends here was read from
    # the id of the stream's rows in the watermark tables, ``None`` = it has none.
    instance: str | None = None

    def at(self, vbucket: int) -> OffsetPosition:
        """Return where it stands."""
        return self.positions.get(vbucket, BEGINNING)

    @property
    def under_way(self) -> bool:
        """Whether the lease holds more than was read of it."""
        return any(each.snapshot is not None for each in self.positions.values())

    def to_dict(self) -> dict[str, Any]:
        """Return what becomes JSON; equal offsets give equal text."""
        found: dict[str, Any] = {"v": VERSION, "n": self.vbuckets}
        if self.instance is not None:
            found["id"] = self.instance
        if self.lease is not None:
            found["lease"] = self.lease
        positions = sorted(self.positions.items())
        return found | {"vb": {str(n): _plain(each) for n, each in positions if each != BEGINNING}}

    def to_json(self) -> str:
        """Return the text."""
        return json.dumps(self.to_dict(), separators=(",", ":"))


BEGINNING = OffsetPosition()


def thinned(boundaries: Iterable[int]) -> tuple[int, ...]:
    """Return at most `BOUNDARIES_MAX` of some complete states, newest first.

    The newest and the oldest stay; between them the gaps grow with the age, so that going far back
    costs about as much as what has to be read again anyway.
    """
    kept = sorted({each for each in boundaries if each}, reverse=True)
    while len(kept) > BOUNDARIES_MAX:
        newest = kept[0]
        gaps = [
            (kept[at - 1] - kept[at + 1]) / (newest - kept[at + 1])
            for at in range(1, len(kept) - 1)
        ]
        del kept[1 + gaps.index(min(gaps))]
    return tuple(kept)


# --- JSON -----------------------------------------------------------------------------------------


def parsed(found: Any, where: str = "offset") -> Offset:
    """Return the offset that `Offset.to_dict` or `Offset.to_json` made.

    Raises:
        BadFile: it is no offset, or a newer program's.
    """
    try:
        plain = json.loads(found) if isinstance(found, str) else found
        if plain["v"] != VERSION:
            raise BadFile(f"{where}: version {plain['v']!r}; this program knows {VERSION}")
        lease, instance = _text(plain, "lease"), _text(plain, "id")
        if instance is not None and not 1 <= len(instance.encode()) <= ID_MAX_BYTES:
            raise ValueError("id")
        vbuckets = _number(plain["n"], 1, VBUCKETS_MAX)
        return Offset(vbuckets, _positions(plain["vb"], vbuckets), lease, instance)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadFile(f"{where} is no offset of uprmc: {type(error).__name__}: {error}") from None


def starting_at(text: str, vbuckets: int) -> Offset | None:
    """Return the offset that a user names as the place to begin; ``None`` = latest.

    Args:
        text: ``earliest``, ``latest``, JSON (an offset, or ``{"5": {"u": ..., "s": ...}}``), or the
            path of a backup's manifest. A vBucket that is not named begins at 0.
        vbuckets: how many the nodes have.

    Raises:
        BadOption: it is none of these.
        BadFile, BackupDamaged, BackupForeign: the manifest cannot be used.
    """
    word = text.strip()
    if word.lower() == _LATEST:
        return None
    if word.lower() == _EARLIEST:
        return Offset(vbuckets)
    if word.startswith("{"):
        return _of_user(word, vbuckets)
    return _of_manifest(Path(word))


def _of_user(text: str, vbuckets: int) -> Offset:
    try:
        found = json.loads(text)
        if "v" in found:
            return replace(parsed(found, "startingOffsets"), lease=None, instance=None)
        positions = _positions(found.get("vb", found), vbuckets)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadOption(
            'startingOffsets: say earliest, latest, {"VBUCKET": {"u": "UUID IN HEX", "s": SEQNO}} '
            f"or the path of a manifest ({type(error).__name__}: {error})"
        ) from None
    except BadFile as error:
        raise BadOption(error.text) from None
    return Offset(vbuckets, positions)


def _of_manifest(path: Path) -> Offset:
    from uprmc.backup.checking import check_manifests
    from uprmc.backup.manifest import FILE_NAME, read_manifest
    from uprmc.backup.repository import REPOSITORY_FILE, Repository

    file = path / FILE_NAME if path.is_dir() else path
    if not file.exists():
        raise BadOption(f"startingOffsets={path}: not earliest, not latest, no JSON, no file")
    manifest = read_manifest(file)
    directory = file.absolute().parents[2]
    if (directory / REPOSITORY_FILE).exists():
        name = file.absolute().parents[1].name
        check_manifests(Repository(directory).chain(name).until(manifest.number))
    positions = {
        n: OffsetPosition(part.uuid, part.end) for n, part in manifest.vb.items() if part.end
    }
    return Offset(manifest.vbuckets, positions)


def _positions(found: Mapping[str, Any], vbuckets: int) -> dict[int, OffsetPosition]:
    positions = {
        _number(int(number), 0, vbuckets - 1): _position(each) for number, each in found.items()
    }
    return {number: each for number, each in sorted(positions.items()) if each != BEGINNING}


def _plain(position: OffsetPosition) -> dict[str, Any]:
    found: dict[str, Any] = {"u": f"{position.uuid:016x}", "s": position.seqno}
    if position.snapshot is not None:
        found["a"], found["e"] = position.snapshot
    if position.boundaries:
        found["b"] = list(position.boundaries)
    if position.rewound_to is not None:
        found["r"] = position.rewound_to
    if position.origin:
        found["o"] = position.origin
    if position.moved:
        found["m"] = 1
    return found


def _position(found: Mapping[str, Any]) -> OffsetPosition:
    unknown = set(found) - set("usaebrom")
    if unknown:
        raise ValueError(f"there is no {min(unknown)!r} in a position")
    seqno = _number(found.get("s", 0))
    uuid = int(found["u"], 16) if seqno or "u" in found else 0
    if not 0 <= uuid < 2**64:
        raise ValueError(f"u={found['u']!r}")
    snapshot = (_number(found["a"]), _number(found["e"])) if "a" in found else None
    if snapshot is not None and not snapshot[0] <= seqno <= snapshot[1]:
        raise ValueError(f"s={seqno} is not inside of {snapshot[0]}..{snapshot[1]}")
    rewound_to = _number(found["r"]) if "r" in found else None
    boundaries = tuple(_number(each, 1) for each in found.get("b", ()))
    falling = all(newer > older for newer, older in pairwise(boundaries))
    if len(boundaries) > BOUNDARIES_MAX or not falling:
        raise ValueError(f"b={found['b']!r}")
    origin, moved = _number(found.get("o", 0)), bool(found.get("m", 0))
    return OffsetPosition(uuid, seqno, snapshot, boundaries, rewound_to, origin, moved)


def _text(found: Mapping[str, Any], name: str) -> str | None:
    text = found.get(name)
    if text is not None and not isinstance(text, str):
        raise ValueError(name)
    return text


def _number(value: object, least: int = 0, most: int = _SEQNO_MAX) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{value!r} is not from {least} to {most}")
    return value
