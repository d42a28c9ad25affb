"""Settings from a file, the environment and the command line, and which of these set each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from uprmc.config.checking import build
from uprmc.config.described import Settings, describe
from uprmc.config.naming import nearest_setting
from uprmc.config.toml_file import read_file
from uprmc.errors import ConfigError

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
