"""Names of settings that do not exist: which one may have been meant."""

from __future__ import annotations

from uprmc import units


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
