"""What a link is: where it goes and how, as an operator made it, and as it is kept over restarts.

The local document is JSON with a version: ``{"version": 1, "links": [{"name": ..., ...}]}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any

from uprmc import places
from uprmc.errors import InvalidArguments
from uprmc.xdcr import versioned
from uprmc.xdcr.settings import LinkSettings

#: The local document's name.
NAME = b"uprmc/xdcr"

_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")
_FILTER_MAX = 1_000


DEFAULTS = LinkSettings()


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One link.

    Attributes:
        name: chosen by the operator; unique on this node.
        id: made once, for life.
        to: HOST:PORT of nodes of the target, separated by commas.
        filter_key: send only keys in which this regular expression is found; empty = all.
        settings: how it sends.
        tls_ca: PEM file of whom to trust; empty = no TLS.
        user, password_file: who to log in as, and where the password is read from; empty = nobody.
        mixed: names the time since a filter of deletions or expirations was changed; what arrived
            before it went through another one.
        paused: nothing is sent until it is resumed.
    """

    name: str
    id: str
    to: str
    filter_key: str = ""
    settings: LinkSettings = DEFAULTS
    tls_ca: str = ""
    user: str = ""
    password_file: str = ""
    mixed: str = ""
    paused: bool = False

    @property
    def places(self) -> tuple[str, ...]:
        """The nodes that were named."""
        return places.several(self.to)

    @property
    def filter_hash(self) -> str:
        """Identifies what the link leaves out; links that leave nothing out have the same one."""
        settings = self.settings
        if not (self.filter_key or settings.filter_deletions or settings.filter_expirations):
            return self.mixed
        parts = (self.filter_key, settings.filter_deletions, settings.filter_expirations)
        return sha256(json.dumps([*parts, self.mixed]).encode()).hexdigest()[:32]

    def pattern(self) -> re.Pattern[bytes] | None:
        """Return the filter, ``None`` if there is none."""
        return re.compile(self.filter_key.encode()) if self.filter_key else None


def checked(spec: LinkSpec) -> LinkSpec:
    """Return the link if it can be one; raises `InvalidArguments` with one line."""
    if not _NAME.fullmatch(spec.name):
        raise InvalidArguments(
            f"{spec.name[:80]!r} is no name: use up to 50 letters, digits and . _ -"
        )
    try:
        if any(places.parsed(place).path for place in spec.places):
            raise ValueError("HOST:PORT")
    except ValueError as error:
        raise InvalidArguments(f"{spec.to!r} is no target: use {error}") from None
    if bool(spec.user) != bool(spec.password_file):
        raise InvalidArguments("a user and a password file go together; one is missing")
    if len(spec.filter_key) > _FILTER_MAX:
        raise InvalidArguments(f"the filter is longer than {_FILTER_MAX} characters")
    try:
        spec.pattern()
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidArguments(
            f"the filter {spec.filter_key!r} is no regular expression: {error}"
        ) from None
    return spec


def with_settings(spec: LinkSpec, changes: Mapping[str, object], now: str) -> LinkSpec:
    """Return a link with other settings; raises `InvalidArguments`.

    Args:
        spec: the link.
        changes: by name, as people write them.
        now: an id that names this moment.
    """
    settings = spec.settings.changed(changes)
    filters = [
        (each.filter_deletions, each.filter_expirations) for each in (spec.settings, settings)
    ]
    mixed = now if filters[0] != filters[1] else spec.mixed
    return replace(spec, settings=settings, mixed=mixed)


def encode(specs: Iterable[LinkSpec]) -> bytes | None:
    """Return the document that keeps links, ``None`` for none."""
    rows = [_row(spec) for spec in specs]
    return (
        json.dumps({"version": _VERSION, "links": rows}, sort_keys=True).encode() if rows else None
    )


def decode(document: bytes | None) -> list[LinkSpec]:
    """Read it back; raises `ValueError`, one line, for what this module has not written."""
    if document is None:
        return []
    return versioned.read(document, _VERSION, lambda found: [*map(_spec, found["links"])])


def _row(spec: LinkSpec) -> dict[str, Any]:
    row = {each.name: getattr(spec, each.name) for each in fields(spec)}
    return {**row, "settings": spec.settings.shown()}


def _spec(row: Mapping[str, Any]) -> LinkSpec:
    settings = LinkSettings().changed(row["settings"])
    texts = {name: row[name] for name in _TEXTS}
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError(row)
    return checked(LinkSpec(**texts, settings=settings, paused=bool(row["paused"])))


_TEXTS = ("name", "id", "to", "filter_key", "tls_ca", "user", "password_file", "mixed")
