"""``uprmc backup``: everything at one moment, then what changed. Work: `backup.backups`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from uprmc.cli.arguments import VBUCKETS, seconds, whole
from uprmc.cli.bulk_options import RATE, BulkVerb, Common, common
from uprmc.cli.bulk_run import running
from uprmc.columnar.errors import BadOption
from uprmc.jobs.progress import Step

if TYPE_CHECKING:
    from uprmc.backup.backups import Kind

_EPILOG = """\b
Examples:
  uprmc backup /backups/users
  uprmc backup /backups/users --full --engine spark
  uprmc backup forget /backups/users     # no deletions are kept for it
"""

_DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command(cls=BulkVerb)
@click.argument("directory", type=_DIRECTORY, metavar="DIR")
@common()
def forget(shared: Common, directory: Path, **_: Any) -> None:
    """End the registration of a backup directory: no deletion is kept for it any longer.

    Do this before you delete the directory. Its files stay as they are, and a later backup to it
    registers again.
    """
    with running(**shared.showing, afterwards=_nothing_to_repeat) as run:
        from uprmc.backup.registered import forget as work

        run.report = work(shared.access(), directory)


class BackupVerb(BulkVerb):
    """``uprmc backup DIR``, and ``uprmc backup forget DIR``."""

    def make_context(
        self, info_name: str | None, args: list[str], *more: Any, **keywords: Any
    ) -> click.Context:
        if args[:1] == ["forget"]:
            return forget.make_context(f"{info_name} forget", args[1:], *more, **keywords)
        return super().make_context(info_name, args, *more, **keywords)


@click.command(cls=BackupVerb, epilog=_EPILOG)
@click.argument("directory", type=_DIRECTORY, metavar="DIR")
@click.option("--full", is_flag=True, help="Begin a new chain with a full backup.")
@click.option(
    "--incremental", is_flag=True, help="Add to the newest chain, or fail if there is none."
)
@click.option(
    "--vbuckets",
    type=VBUCKETS,
    help="Back up only these vBuckets. By default all, or those of the chain.",
)
@click.option(
    "--groups",
    type=whole(least=1),
    help="Number of directories of a full backup; each has some of the vBuckets.",
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "snappy", "lz4", "gzip", "none"]),
    default="zstd",
    show_default=True,
    help="Compression of the Parquet files.",
)
@click.option(
    "--no-value",
    is_flag=True,
    help="Save keys and metadata only: enough for verify, not for restore.",
)
@click.option("--no-deletes", is_flag=True, help="Leave deletions out of a full backup.")
@click.option(
    "--lease-seconds",
    type=seconds(),
    default="600",
    show_default=True,
    help="How long the nodes keep the snapshot if this process dies.",
)
@click.option(
    "--no-register",
    is_flag=True,
    help="Do not have the nodes keep deletions until the next backup to DIR.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be read; write nothing.")
@RATE
@common()
def backup(shared: Common, directory: Path, **given: Any) -> None:
    """Save a snapshot of nodes in a directory.

    The first backup in DIR contains everything, later ones by default only what has changed since.
    """
    if given["full"] and given["incremental"]:
        raise BadOption("--full and --incremental contradict each other")
    kind: Kind = "full" if given["full"] else "incremental" if given["incremental"] else "auto"
    with running(**shared.showing, afterwards=_afterwards) as run:
        access = shared.access()
        early = () if given["dry_run"] else ("uprmc.backup.group_reading",)
        with shared.running_engine(*early) as engine:
            from uprmc.backup.backups import backup as work

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
                register=not given["no_register"],
                progress=run.progress,
            )


def _nothing_to_repeat(_: Step | None) -> str:
    return "the same command removes what is left"


def _afterwards(step: Step | None) -> str:
    if step is None:
        return "nothing was read yet"
    return "this increment does not count; the same command makes it again"
