"""A configuration file with every setting in it, as a comment that may be uncommented."""

from __future__ import annotations

import json

from uprmc import units
from uprmc.config.described import CHOICES, SettingInfo, describe

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
