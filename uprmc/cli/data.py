"""``uprmc data``: what an operator has to tell about a data directory."""

from __future__ import annotations

from pathlib import Path

import click

from uprmc.server.world import SystemEntropy
from uprmc.storage.directory import begin_new_history


@click.group()
def data() -> None:
    """Work on a data directory while no node runs on it."""


@data.command("new-history")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
def new_history(directory: Path) -> None:
    """Let a data directory that was restored begin a new history.

    A node recognises by itself that its data directory is a copy, or an older state that was put
    back. It cannot if all files of the directory were put back in place, or the entire disk was
    copied. Then run this before you start the node: the bucket gets a new uuid, and each active
    vBucket begins a new branch, so that consumers do not take new changes for old ones.
    """
    uuid = SystemEntropy().uuid48()
    begin_new_history(directory, uuid)
    click.echo(f"{directory}: a new history begins when a node starts on it; uuid {uuid:032x}")
