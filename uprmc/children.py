"""How our processes start processes of ours: they import what their parent does, and no more.

``python -m`` looks into the current directory before anything else, so that whoever may write there
would choose what the child runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def command(module: str, *words: str) -> list[str]:
    """Return the words that run one of our modules."""
    return [sys.executable, "-P", "-m", module, *words]


def environment() -> dict[str, str]:
    """Return what such a process finds in its environment: the parent's, and where it imports from.

    That is not the current directory if it is there because of how the parent was started, unless
    the parent itself is from there.
    """
    first, *others = [each for each in sys.path if each]
    by_chance = os.path.realpath(first) == os.path.realpath(os.curdir)
    if by_chance and Path(first).resolve() != Path(__file__).resolve().parents[1]:
        found = others
    else:
        found = [first, *others]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found)}
