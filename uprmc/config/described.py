"""All sections together, and each setting described for help pages and statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from uprmc import units
from uprmc.config.sections import (
    EngineSettings,
    FlushSettings,
    HttpSettings,
    IndexSettings,
    KvSettings,
    LogSettings,
    MemorySettings,
    PurgeSettings,
    ServerSettings,
    StorageSettings,
    TapSettings,
    UprSettings,
    XdcrSettings,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All sections. Build it with `load`, or directly in tests."""

    server: ServerSettings = field(default_factory=ServerSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    kv: KvSettings = field(default_factory=KvSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    flush: FlushSettings = field(default_factory=FlushSettings)
    purge: PurgeSettings = field(default_factory=PurgeSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    upr: UprSettings = field(default_factory=UprSettings)
    xdcr: XdcrSettings = field(default_factory=XdcrSettings)
    index: IndexSettings = field(default_factory=IndexSettings)
    tap: TapSettings = field(default_factory=TapSettings)
    log: LogSettings = field(default_factory=LogSettings)


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting, described for help pages and statistics."""

    name: str
    kind: type
    default: Any
    unit: str
    low: float | None
    high: float | None
    doc: str


SECTIONS: dict[str, type[Any]] = {
    "server": ServerSettings,
    "http": HttpSettings,
    "kv": KvSettings,
    "engine": EngineSettings,
    "memory": MemorySettings,
    "flush": FlushSettings,
    "purge": PurgeSettings,
    "storage": StorageSettings,
    "upr": UprSettings,
    "xdcr": XdcrSettings,
    "index": IndexSettings,
    "tap": TapSettings,
    "log": LogSettings,
}


CHOICES = {
    "engine.after_unclean_start": ("active", "pending"),
    "engine.conflict_resolution": ("stored", "revision", "timestamp"),
    "upr.register": ("off", "connected"),
    "upr.rollback_rule": ("current", "3.0.0"),
    "tap.rollback": ("rewind", "restart"),
    "log.level": ("debug", "info", "warn", "error"),
    "log.format": ("text", "json"),
}


def describe() -> Iterator[SettingInfo]:
    """Yield every setting in the order in which they are declared."""
    defaults = Settings()
    for section in fields(Settings):
        values = getattr(defaults, section.name)
        for item in fields(values):
            default = getattr(values, item.name)
            meta = item.metadata
            yield SettingInfo(
                f"{section.name}.{item.name}",
                type(default),
                default,
                meta["unit"],
                meta["low"],
                meta["high"],
                meta["doc"],
            )


def values_of(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield ``(name, value)`` of every setting in force."""
    for info in describe():
        section, name = info.name.split(".")
        yield info.name, getattr(getattr(settings, section), name)


# --- sample ---------------------------------------------------------------------------------------
# A configuration file with every setting in it, as a comment that may be uncommented.


_HEAD = """\
# Settings of uprmc: uprmc serve --config FILE
#
# Each line shows a default. Remove the '#' before a name to change its value. Sizes are written
# "512M" or "1.5G", times "500ms", "5m" or a number of seconds. The environment (UPRMC_MEMORY_QUOTA)
# and options of the command line win over this file.
"""


def sample() -> str:
    """Return the text of the file; as it is, it changes nothing."""
    lines = [_HEAD]
    section = ""
    for info in describe():
        if not info.name.startswith(f"{section}.") or not section:
            section = info.name.partition(".")[0]
            lines += [f"[{section}]", ""]
        lines += [f"# {info.doc}", *_limits(info)]
        lines += [f"#{info.name.partition('.')[2]} = {_as_toml(info, info.default)}", ""]
    return "\n".join(lines)


def _limits(info: SettingInfo) -> list[str]:
    if info.name in CHOICES:
        return [f"# One of {', '.join(CHOICES[info.name])}."]
    if info.low is None:
        return []
    unit = "" if info.unit == "bytes" else f" {info.unit}"
    return [f"# {_as_text(info, info.low)} to {_as_text(info, info.high or 0)}{unit}."]


def _as_text(info: SettingInfo, value: float) -> str:
    return units.size_text(value) if info.unit == "bytes" else f"{value:.15g}"


def _as_toml(info: SettingInfo, value: object) -> str:
    """Write a value; JSON's texts, numbers and switches are also TOML's."""
    if info.unit == "bytes" and isinstance(value, int):
        shown = units.size_text(value)
        return shown if shown.isdecimal() else f'"{shown}"'
    return json.dumps(value, ensure_ascii=False)
