"""What a link is: where it goes and how, as an operator made it, and as it is kept over restarts.

The local document is JSON with a version: ``{"version": 1, "links": [{"name": ..., ...}]}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any, Protocol

import re2

from uprmc import places
from uprmc.errors import InvalidArguments
from uprmc.xdcr import versioned
from uprmc.xdcr.settings import LinkSettings

#: The local document's name.
NAME = b"uprmc/xdcr"

_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")

#: A filter is no longer than this, and its program no larger: both bound what a key costs.
FILTER_MAX_BYTES = 1_000
FILTER_MAX_STEPS = 2_000

#: Memory for a filter's program and the states that it was in.
_FILTER_MEMORY_BYTES = 1024 * 1024


DEFAULTS = LinkSettings()


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One link.

    Attributes:
        name: chosen by the operator; unique on this node.
        id: made once, for life.
        to: HOST:PORT of nodes of the target, separated by commas.
        filter_key: send only keys in which this regular expression of RE2 is found; empty = all.
            A kept one may be none: then the link does not run.
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

    @property
    def passes_on(self) -> bool:
        """Whether what the target has got says what others have sent to this node.

        It does not if deletions are left out: a document that came here and was deleted then does
        not reach the target, and its deletion does not either.
        """
        return not (self.settings.filter_deletions or self.settings.filter_expirations)

    def pattern(self) -> Pattern | None:
        """Return the filter, ``None`` if there is none; raises `InvalidArguments`."""
        return pattern_of(self.filter_key) if self.filter_key else None


class Pattern(Protocol):
    """A regular expression that takes time in proportion to what it looks at."""

    @property
    def programsize(self) -> int:
        """How many steps it has; each byte costs no more than all of them."""

    def search(self, text: bytes) -> object | None:
        """Return a match, ``None`` if there is none."""


def pattern_of(text: str) -> Pattern:
    """Compile a regular expression of a stranger, which sees bytes; raises `InvalidArguments`.

    Python's own go back and try again, so a short one may run for years.
    """
    if len(text.encode()) > FILTER_MAX_BYTES:
        raise InvalidArguments(f"the filter is longer than {FILTER_MAX_BYTES} bytes")
    options = re2.Options()
    options.max_mem = _FILTER_MEMORY_BYTES
    options.log_errors = False  # or the library writes to standard error by itself
    options.never_capture = True
    options.encoding = re2.Options.Encoding.LATIN1  # keys need not be UTF-8
    try:
        found: Pattern = re2.compile(text.encode(), options)
    except re2.error as error:
        why = error.args[0] if error.args else error
        if isinstance(why, bytes):
            why = why.decode("utf-8", "replace")
        raise InvalidArguments(
            f"the filter {text[:80]!r} is no regular expression of RE2, which has no look-around "
            f"and no back-references: {why}"
        ) from None
    if found.programsize > FILTER_MAX_STEPS:
        raise InvalidArguments(
            f"the filter {text[:80]!r} is too large: it has {found.programsize} steps, and "
            f"{FILTER_MAX_STEPS} are allowed; repeat less"
        )
    return found


def checked(spec: LinkSpec) -> LinkSpec:
    """Return a new link if it can be one; raises `InvalidArguments` with one line."""
    spec.pattern()
    return _well_formed(spec)


def _well_formed(spec: LinkSpec) -> LinkSpec:
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
    return _well_formed(LinkSpec(**texts, settings=settings, paused=bool(row["paused"])))


_TEXTS = ("name", "id", "to", "filter_key", "tls_ca", "user", "password_file", "mixed")
