"""The user's own file for verbs that talk to a node: what would otherwise be options each time.

    # ~/.config/uprmc/client.toml
    node = "db1.example:11210"
    tls_ca = "/etc/ssl/uprmc-ca.pem"
    user = "alice"
    password_file = "/home/alice/.uprmc-password"
    timeout = "10s"

Options and environment variables come first. ``UPRMC_CLIENT_FILE`` names another file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from uprmc import units
from uprmc.errors import ConfigError
from uprmc.units import nearest

VARIABLE = "UPRMC_CLIENT_FILE"

#: What may stand in it, with what is expected.
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "node": (str, "text such as '127.0.0.1:11210'"),
    "tls": (bool, "true or false"),
    "tls_ca": (str, "the path of a PEM file"),
    "no_tls_verify": (bool, "true or false"),
    "user": (str, "a user's name"),
    "password_file": (str, "the path of a file"),
    "timeout": ((str, int, float), "a time such as '5s'"),
}
KEYS = tuple(_KINDS)


def default_path() -> Path:
    """Return where the file is unless the environment says something else."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home, "uprmc", "client.toml").expanduser()


def from_file(key: str, otherwise: Any = None) -> Callable[[], Any]:
    """Return what gives the default of an option: what the file says, or `otherwise`.

    The file is read when the verb runs, not for ``--help``. It raises `ConfigError`.
    """

    def default() -> Any:
        named = os.environ.get(VARIABLE)
        found = _read(Path(named) if named else default_path(), bool(named)).get(key, otherwise)
        return str(found) if isinstance(found, int | float) and key == "timeout" else found

    return default


@lru_cache(maxsize=1)
def _read(path: Path, must_exist: bool) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(f"{VARIABLE}: {path}: there is no such file") from None
        return {}
    except NotADirectoryError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # no TOML (which says the line), or no UTF-8
        raise ConfigError(f"{path}: {error}") from None
    for key, value in document.items():
        _check(path, key, value)
    return document


def _check(path: Path, key: str, value: Any) -> None:
    if key == "password":
        raise ConfigError(f"{path}: a password stands in a file of its own: say password_file")
    if key not in _KINDS:
        meant = nearest(key, list(KEYS))
        hint = f"did you mean {meant}?" if meant else f"it may have {', '.join(KEYS)}"
        raise ConfigError(f"{path}: there is no {key!r}: {hint}")
    kind, expected = _KINDS[key]
    right = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    if right and key == "timeout":
        right = _is_time(value)
    if not right:
        raise ConfigError(f"{path}: {key} = {value!r}: say {expected}")


def _is_time(value: Any) -> bool:
    try:
        return units.seconds(str(value)) > 0
    except ValueError:
        return False
