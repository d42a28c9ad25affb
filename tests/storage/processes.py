"""Running pieces of Python in processes of their own: for limits, locks and kills."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

from interop.nursery import run
from uprmc.storage import layout
from uprmc.storage.layout import Identity
from uprmc.storage.lmdb_store import LmdbStore

ROOT = Path(__file__).parents[2]


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the command that runs `code` with our own package and tests importable."""
    return [sys.executable, "-c", dedent(code), *arguments]


def run_python(code: str, *arguments: str) -> str:
    """Run `code`, expect it to end well, and return what it printed."""
    ended, out, err = run(python_command(code, *arguments), cwd=ROOT, text=True)
    assert ended == 0, err
    return str(out)


def claim(store: LmdbStore, identity: Identity) -> None:
    """Make a directory say that it is something else."""
    files = store._files
    with files.env.begin(files.databases.meta, write=True) as txn:
        txn.put(layout.IDENTITY_KEY, layout.pack_identity(identity))
