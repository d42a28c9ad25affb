"""All sections together, and each setting described for help pages and statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from uprmc.config.indexing import IndexSettings
from uprmc.config.keeping import (
    EngineSettings,
    FlushSettings,
    MemorySettings,
    PurgeSettings,
    StorageSettings,
)
from uprmc.config.linking import XdcrSettings
from uprmc.config.serving import HttpSettings, KvSettings, LogSettings, ServerSettings
from uprmc.config.streaming import TapSettings, UprSettings


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
