"""Settings from a file, the environment and the command line, and which of these set each."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from uprmc import units
from uprmc.config.described import CHOICES, SECTIONS, SettingInfo, Settings, describe
from uprmc.config.sections import MIB, unix_mode
from uprmc.errors import ConfigError

# --- naming ---------------------------------------------------------------------------------------
# Names of settings that do not exist: which one may have been meant.


def nearest_setting(name: str, known: list[str]) -> str:
    """Return which of the settings ``section.name`` may have been meant; empty if none is near.

    A section that is misspelt, missing or another one is forgiven if the rest is exact.
    """
    section, _, item = name.rpartition(".")
    same = [each for each in known if item and each.endswith(f".{item}")]
    if len(same) > 1:
        meant = units.nearest(section, [each.rpartition(".")[0] for each in same])
        same = [f"{meant}.{item}"] if meant else []
    return same[0] if same else units.nearest(name, known)


def did_you_mean(name: str, known: list[str]) -> str:
    """Return advice for a name that is none of `known`."""
    meant = nearest_setting(name, known)
    return f"did you mean {meant}?" if meant else "'uprmc settings' lists them all"


# --- toml file ------------------------------------------------------------------------------------
# A TOML file of settings: what it sets and on which line, and what is wrong with it.


#: How `tomllib` says where it stopped.
_WHERE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)")
_HEAD_OR_KEY = re.compile(r"""\s*(?:\[+\s*([\w."' -]+?)\s*\]|([\w."' -]+?)\s*=)""")


class InFile(NamedTuple):
    """One setting as a file has it; `where` is ``FILE:LINE``, or ``FILE`` alone."""

    value: Any
    where: str


def read_file(path: Path) -> dict[str, InFile]:
    """Return what a file sets by ``section.name``; raises `ConfigError`, which names the line."""
    text = _text_of(path)
    try:
        document = tomllib.loads(text)
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise ConfigError(_located(path, text, str(error))) from None
    lines = _lines(text)

    def where(name: str) -> str:
        return f"{path}:{lines[name]}" if name in lines else str(path)

    found: dict[str, InFile] = {}
    for section, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{where(section)}: {section!r} stands outside of a [section]")
        if not table and section not in SECTIONS:
            hint = did_you_mean(section, list(SECTIONS))
            raise ConfigError(f"{where(section)}: there is no section [{section}]; {hint}")
        for item, value in table.items():
            name = f"{section}.{item}"
            found[name] = InFile(value, where(name))
    return found


def _text_of(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: is not text in UTF-8") from None


def _located(path: Path, text: str, error: str) -> str:
    found = _WHERE.search(error)
    if found is None:
        return f"{path}: {error}"
    reason = " ".join((error[: found.start()] + error[found.end() :]).split())
    if found[1]:
        return f"{path}:{found[1]}: {reason} (column {found[2]})"
    return f"{path}:{len(text.splitlines()) or 1}: {reason} (at the end of the file)"


def _lines(text: str) -> dict[str, int]:
    """Return the line on which each section and each ``section.name`` begins.

    It looks at the beginnings of lines; an inline table, for one, has none for its names.
    """
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.split("\n"), 1):
        matched = _HEAD_OR_KEY.match(line)
        if matched is None:
            continue
        if matched[1]:
            name = _plain(matched[1])
            section = f"{name}."
        else:
            name = section + _plain(matched[2])
        found.setdefault(name, number)
    return found


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


# --- checking -------------------------------------------------------------------------------------
# Values of settings: read from text, converted, checked by themselves and together.


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


# --- loading --------------------------------------------------------------------------------------


#: Environment variables of verbs and of the core, which name no settings.
_OF_VERBS = frozenset(
    {
        "UPRMC_CORE",
        "UPRMC_NODE",
        "UPRMC_VIEWS",
        "UPRMC_TLS",
        "UPRMC_TLS_CA",
        "UPRMC_USER",
        "UPRMC_PASSWORD_FILE",
        "UPRMC_CLIENT_FILE",
        "UPRMC_NO_TLS_VERIFY",
        "UPRMC_TIMEOUT",
    }
)

#: Where a setting comes from that nothing changes, and one from an option that names none.
DEFAULT = "default"
_OPTION = "option"


class Loaded(NamedTuple):
    """Settings, and by name where each value comes from, which is not `DEFAULT`."""

    settings: Settings
    origins: dict[str, str]


def from_file(path: Path) -> dict[str, Any]:
    """Read a TOML file into ``{"section.name": value}``; raises `ConfigError`."""
    return {name: found.value for name, found in read_file(path).items()}


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"UPRMC_{name.replace('.', '_').upper()}"


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Pick ``UPRMC_SECTION_NAME`` variables; one that names no setting is refused."""
    known = {variable_of(info.name): info.name for info in describe()}
    found: dict[str, Any] = {}
    for variable, value in environment.items():
        if not variable.startswith("UPRMC_") or variable in _OF_VERBS:
            continue
        if variable not in known:
            meant = nearest_setting(variable, [*known, *_OF_VERBS])
            hint = f"; did you mean {meant}?" if meant else ""
            raise ConfigError(f"the environment variable {variable} names no setting{hint}")
        found[known[variable]] = value
    return found


def load(file: Path | None, environment: Mapping[str, str], options: Mapping[str, Any]) -> Settings:
    """Combine file, environment and command line options, later ones winning."""
    return load_with_origins(file, environment, options).settings


def load_with_origins(
    file: Path | None,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
    option_names: Mapping[str, str] | None = None,
) -> Loaded:
    """Do the same as `load`, and tell where each value comes from.

    `option_names` has the option that gave a setting, where that is known.
    """
    changes: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, value, origin in _given(file, environment, options, option_names or {}):
        changes[name], origins[name] = value, origin
    in_files = {name: origin for name, origin in origins.items() if not _is_option(origin)}
    return Loaded(build(changes, in_files), origins)


def _is_option(origin: str) -> bool:
    """Tell whether an origin is an option of the command line."""
    return origin == _OPTION or origin.startswith("-")


def _given(
    file: Path | None,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
    option_names: Mapping[str, str],
) -> Iterator[tuple[str, Any, str]]:
    if file is not None:
        for name, (value, where) in read_file(file).items():
            yield name, value, where
    for name, value in from_environment(environment).items():
        yield name, value, variable_of(name)
    for name, value in options.items():
        yield name, value, option_names.get(name, _OPTION)
