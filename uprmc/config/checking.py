"""Values of settings: read from text, converted, checked by themselves and together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from uprmc import units
from uprmc.config.described import CHOICES, SECTIONS, SettingInfo, Settings, describe
from uprmc.config.naming import did_you_mean
from uprmc.config.serving import unix_mode
from uprmc.config.sizes import MIB
from uprmc.errors import ConfigError


def _converted(info: SettingInfo, value: Any) -> Any:
    if isinstance(value, str) and info.kind is not str:
        value = _from_text(info, value)
    if info.kind is float and type(value) is int:
        value = _as_float(value)
    if type(value) is not info.kind:
        raise ConfigError(f"{info.name}: {value!r} is not {_kind_name(info)}")
    return value


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # the range check refuses it


def _from_text(info: SettingInfo, text: str) -> Any:
    try:
        return _reader(info)(text)
    except ValueError as error:
        raise ConfigError(f"{info.name}: {text!r} is not {error}") from None


def _reader(info: SettingInfo) -> Callable[[str], Any]:
    if info.kind is bool:
        return units.switch
    if info.unit == "bytes":
        return units.size
    if info.unit == "seconds":
        return units.seconds if info.kind is float else _whole_seconds
    return lambda text: _number(info, text)


def _whole_seconds(text: str) -> int:
    found = units.seconds(text)
    if not found.is_integer():
        raise ValueError("a whole number of seconds")
    return int(found)


def _number(info: SettingInfo, text: str) -> Any:
    try:
        return info.kind(text)
    except ValueError:
        raise ValueError(_kind_name(info)) from None


def _kind_name(info: SettingInfo) -> str:
    names = {int: "a whole number", float: "a number", bool: "yes or no", str: "text"}
    return f"{names[info.kind]} of {info.unit}" if info.kind in (int, float) else names[info.kind]


def checked(info: SettingInfo, value: Any) -> Any:
    value = _converted(info, value)
    if info.low is not None and not value >= info.low:
        raise ConfigError(f"{info.name}: {value} is below the least, {info.low} {info.unit}")
    if info.high is not None and not value <= info.high:
        raise ConfigError(f"{info.name}: {value} is above the most, {info.high} {info.unit}")
    choices = CHOICES.get(info.name)
    if choices and value not in choices:
        raise ConfigError(f"{info.name}: {value!r} is none of {', '.join(choices)}")
    return value


def build(changes: Mapping[str, Any], places: Mapping[str, str] | None = None) -> Settings:
    """Make settings from the defaults and ``{"section.name": value}``; text values are converted.

    `places` says where a change is written, for messages: ``uprmc.toml:3``.

    Raises:
        ConfigError: a name is unknown, a value malformed or out of range, or two contradict.
    """
    known = {info.name: info for info in describe()}
    sections: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        try:
            section, item, found = _one(known, name, value)
        except ConfigError as error:
            place = (places or {}).get(name)
            raise ConfigError(f"{place}: {error}" if place else str(error)) from None
        sections.setdefault(section, {})[item] = found
    settings = Settings(**{name: kind(**sections.get(name, {})) for name, kind in SECTIONS.items()})
    _check_together(settings)
    return settings


def _one(known: Mapping[str, SettingInfo], name: str, value: Any) -> tuple[str, str, Any]:
    if name not in known:
        raise ConfigError(f"there is no setting {name!r}; {did_you_mean(name, list(known))}")
    section, item = name.split(".")
    return section, item, checked(known[name], value)


def _check_together(settings: Settings) -> None:
    unix_mode(settings.server.unix_mode, "server.unix_mode")
    vbuckets = settings.engine.vbuckets
    if vbuckets & (vbuckets - 1):
        raise ConfigError(f"engine.vbuckets: {vbuckets} is not a power of two")
    memory = settings.memory
    if not memory.low_mark < memory.high_mark < memory.mutation_limit:
        raise ConfigError("memory: low_mark < high_mark < mutation_limit must hold")
    if bool(settings.server.tls_cert) != bool(settings.server.tls_key):
        raise ConfigError("server.tls_cert and server.tls_key go together; one is missing")
    if settings.kv.max_item_bytes > memory.quota * memory.mutation_limit:
        raise ConfigError("kv.max_item_bytes: such an item would not fit into memory.quota")
    if settings.kv.max_item_bytes > settings.kv.max_frame_bytes - 1 * MIB:
        raise ConfigError("kv.max_item_bytes must be at least 1 MiB below kv.max_frame_bytes")
    if settings.kv.max_item_bytes > settings.server.buffer_bytes // 2:
        raise ConfigError("kv.max_item_bytes: server.buffer_bytes must be at least twice as much")
    if settings.storage.map_initial > settings.storage.map_max:
        raise ConfigError("storage.map_initial is above storage.map_max")
