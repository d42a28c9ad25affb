"""What a link is: where it goes and how, as an operator made it, and as it is kept over restarts.

The local document is JSON with a version: ``{"version": 1, "links": [{"name": ..., ...}]}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from typing import Any, Protocol, Self, TypeVar

import re2

from uprmc import places, units
from uprmc.errors import InvalidArguments

# --- versioned ------------------------------------------------------------------------------------
# Local documents of links: JSON objects with a version; one line says what is wrong with one.


T = TypeVar("T")


def read_versioned(document: bytes, version: int, content: Callable[[dict[str, Any]], T]) -> T:
    """Return what `content` makes of a document.

    Raises:
        ValueError: it has another version, or not the form that this version has.
    """
    try:
        found = json.loads(document)
        if found["version"] != version:
            raise ValueError(f"it has version {found['version']}; this uprmc knows {version}")
        return content(found)
    except InvalidArguments as error:
        raise ValueError(str(error)) from None
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("it does not have the form that this uprmc writes") from None


# --- settings -------------------------------------------------------------------------------------
# Settings of one link: name, default, bounds, and how people write them.


KIB = 1024
MIB = 1024 * KIB

ACCEPTED, PERSISTED, REPLICATED = "accepted", "persisted", "replicated"
REPORT, STOP = "report", "stop"
RETRY, SKIP = "retry", "skip"


def _setting(default: Any, read: Callable[[str], Any], doc: str, low: float, high: float) -> Any:
    return field(default=default, metadata={"read": read, "doc": doc, "low": low, "high": high})


def _choice(default: str, doc: str, *words: str) -> Any:
    return field(default=default, metadata={"read": units.one_of(*words), "doc": doc})


def _switch(doc: str) -> Any:
    return field(default=False, metadata={"read": units.switch, "doc": doc})


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """The settings of one link."""

    checkpoint_interval_s: float = _setting(
        600.0, units.seconds, "Write a checkpoint this often.", 10, 14_400
    )
    batch_items: int = _setting(
        500, units.whole, "Send at most this many documents in one batch.", 10, 10_000
    )
    batch_bytes: int = _setting(
        2 * MIB, units.size, "Close a batch at this size.", 10 * KIB, 10_000 * KIB
    )
    optimistic_bytes: int = _setting(
        256,
        units.size,
        "Send documents up to this size at once; ask the target for its version of larger ones "
        "first.",
        0,
        20 * MIB,
    )
    ship: str = _choice(
        ACCEPTED,
        "Send a change once it is accepted, persisted, or persisted on a replica as well.",
        ACCEPTED,
        PERSISTED,
        REPLICATED,
    )
    bandwidth: int = _setting(
        0, units.size, "Send at most this many bytes per second; 0 = no limit.", 0, 2**40
    )
    filter_deletions: bool = _switch("Do not send deletions.")
    filter_expirations: bool = _switch("Do not send expirations.")
    on_branch: str = _choice(
        REPORT,
        "If changes that were sent are lost at the source: report them and go on, or stop.",
        REPORT,
        STOP,
    )
    on_refused: str = _choice(
        RETRY,
        "If the target refuses a document that is not too large for it: try again until it is "
        "accepted or replaced, and write no checkpoint beyond it, or skip it.",
        RETRY,
        SKIP,
    )

    def changed(self, changes: Mapping[str, object]) -> Self:
        """Return the settings with some changed, each given as people write it.

        Raises:
            InvalidArguments: one line that says what is wrong.
        """
        known = {each.name: each for each in fields(self)}
        found = {}
        for name, value in changes.items():
            if name not in known:
                raise InvalidArguments(
                    f"a link has no setting {name!r}: use one of {', '.join(known)}"
                )
            found[name] = _read(name, str(value), known[name].metadata)
        return replace(self, **found)

    def shown(self) -> dict[str, object]:
        """Return all settings by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def _read(name: str, text: str, about: Mapping[str, Any]) -> Any:
    try:
        value = about["read"](text)
    except ValueError as error:
        raise InvalidArguments(f"{name}: {text!r} is not {error}") from None
    if "low" in about and not about["low"] <= value <= about["high"]:
        raise InvalidArguments(
            f"{name}: {text} is not between {about['low']:g} and {about['high']:g}"
        )
    return value


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """Read ``KEY=VALUE`` texts; raises `InvalidArguments`."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidArguments(f"{text!r} is no setting: use KEY=VALUE")
        found[name.strip()] = value.strip()
    return found


# --- spec -----------------------------------------------------------------------------------------


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
    """One link."""

    name: str  # chosen by the operator; unique on this node
    id: str  # made once, for life
    to: str  # HOST:PORT of nodes of the target, separated by commas
    # Send only keys in which this regular expression of RE2 is found; empty = all. A kept one may
    # be none: then the link does not run.
    filter_key: str = ""
    settings: LinkSettings = DEFAULTS  # how it sends
    tls_ca: str = ""  # PEM file of whom to trust; empty = no TLS
    user: str = ""  # who to log in as, and where the password is read from; empty = without a login
    password_file: str = ""
    # Names the time since a filter of deletions or expirations was changed; what arrived before it
    # went through another one.
    mixed: str = ""
    paused: bool = False  # nothing is sent until it is resumed

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
    return read_versioned(document, _VERSION, lambda found: [*map(_spec, found["links"])])


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
