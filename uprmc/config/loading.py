"""Settings from a file, the environment and the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from uprmc.config.checking import build
from uprmc.config.described import Settings, describe
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
    }
)


#: Settings that have another name now.
_FORMER_NAMES = {"engine.compaction_slice": "purge.batch_items"}


#: Values that have another name now.
_FORMER_VALUES = {"tap.rollback": {"correct": "rewind", "reset": "restart"}}


def from_file(path: Path) -> dict[str, Any]:
    """Read a TOML file into ``{"section.name": value}``; raises `ConfigError`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path}: {error}") from None
    found: dict[str, Any] = {}
    for section, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {section!r} stands outside of a [section]")
        found.update({f"{section}.{name}": value for name, value in table.items()})
    return found


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Pick ``UPRMC_SECTION_NAME`` variables; one that names no setting is refused."""
    names = [*(info.name for info in describe()), *_FORMER_NAMES]
    known = {f"UPRMC_{name.replace('.', '_').upper()}": name for name in names}
    found: dict[str, Any] = {}
    for variable, value in environment.items():
        if not variable.startswith("UPRMC_") or variable in _OF_VERBS:
            continue
        if variable not in known:
            raise ConfigError(f"the environment variable {variable} names no setting")
        found[known[variable]] = value
    return found


def _unheard(_: str) -> None:
    """Take a warning that is of no interest."""


def load(
    file: Path | None,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
    warn: Callable[[str], None] = _unheard,
) -> Settings:
    """Combine file, environment and command line options, later ones winning.

    `warn` is called with a line about each setting and each value that has another name now.
    """
    changes: dict[str, Any] = {}
    for source in (from_file(file) if file else {}, from_environment(environment), options):
        for name, value in source.items():
            if name in _FORMER_NAMES:
                warn(f"{name} is now {_FORMER_NAMES[name]}")
            changes[_FORMER_NAMES.get(name, name)] = value
    for name, former in _FORMER_VALUES.items():
        given = changes.get(name)
        if isinstance(given, str) and given in former:
            changes[name] = former[given]
            warn(f"{given!r} of {name} is now {former[given]!r}")
    return build(changes)
