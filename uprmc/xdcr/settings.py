"""Settings of one link: name, default, bounds, and how people write them.

Source: contracts of the systems to come, section 3; systems reference b.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from uprmc import units
from uprmc.errors import InvalidArguments

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
