"""A TOML file of settings: what it sets and on which line, and what is wrong with it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from uprmc.config.described import SECTIONS
from uprmc.config.naming import did_you_mean
from uprmc.errors import ConfigError

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
