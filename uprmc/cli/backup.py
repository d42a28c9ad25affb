"""``uprmc backup``: everything at one moment, then what changed. Work: `backup.backups`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from uprmc.cli.arguments import VBUCKETS, seconds, whole
from uprmc.cli.bulk_options import BulkVerb, Common, common
from uprmc.cli.bulk_run import running
from uprmc.columnar.errors import BadOption
from uprmc.jobs.progress import Step

if TYPE_CHECKING:
    from uprmc.backup.backups import Kind

_EPILOG = """\b
Examples:
  uprmc backup /backups/users
  uprmc backup /backups/users --full --engine spark
"""


@click.command(cls=BulkVerb, epilog=_EPILOG)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option("--full", is_flag=True, help="Begin a new chain.")
@click.option("--incremental", is_flag=True, help="Add to the newest chain, or fail.")
@click.option("--vbuckets", type=VBUCKETS, help="Only these vBuckets; default all, or the chain's.")
@click.option("--groups", type=whole(least=1), help="Directories of a full backup.")
@click.option(
    "--compression",
    type=click.Choice(["zstd", "snappy", "lz4", "gzip", "none"]),
    default="zstd",
    show_default=True,
)
@click.option("--no-value", is_flag=True, help="Keys and metadata only: to compare with.")
@click.option("--no-deletes", is_flag=True, help="Leave deletions out of a full backup.")
@click.option(
    "--lease-seconds",
    type=seconds(),
    default="600",
    show_default=True,
    help="How long nodes keep the snapshot if this process dies.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be read, write nothing.")
@click.option("--rate", type=whole("ROWS", 1), help="Rows a second, all tasks together.")
@common()
def backup(shared: Common, directory: Path, **given: Any) -> None:
    """Save a snapshot of nodes in DIR: in full, or what changed since the last one."""
    if given["full"] and given["incremental"]:
        raise BadOption("--full and --incremental contradict each other")
    kind: Kind = "full" if given["full"] else "incremental" if given["incremental"] else "auto"
    with running(**shared.showing, afterwards=_afterwards) as run:
        from uprmc.backup.backups import backup as work

        access = shared.access()
        with shared.running_engine() as engine:
            run.report = work(
                access,
                directory,
                kind=kind,
                engine=engine,
                vbuckets=given["vbuckets"],
                groups=given["groups"],
                compression=given["compression"],
                no_value=given["no_value"],
                include_deletes=not given["no_deletes"],
                lease_s=given["lease_seconds"],
                dry_run=given["dry_run"],
                rate=given["rate"],
                progress=run.progress,
            )


def _afterwards(step: Step | None) -> str:
    if step is None:
        return "nothing was read yet"
    return "this increment does not count; the same command makes it again"
