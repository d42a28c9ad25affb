"""``uprmc backup``: everything at one moment, then what changed. Work: `backup.backups`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from uprmc.cli.arguments import VBUCKETS, seconds, whole
from uprmc.cli.bulk_options import RATE, BulkVerb, Common, common
from uprmc.cli.bulk_run import running
from uprmc.cli.shown import size_text
from uprmc.columnar.errors import BackupDamaged, BadOption
from uprmc.jobs.progress import Step

if TYPE_CHECKING:
    from uprmc.backup.backups import Kind
    from uprmc.backup.checking import Listing

_EPILOG = """\b
Examples:
  uprmc backup /backups/users
  uprmc backup /backups/users --full --engine spark
  uprmc backup list /backups/users       # what there is, and what is damaged
  uprmc backup forget /backups/users     # no deletions are kept for it
"""

_DIRECTORY = click.Path(file_okay=False, path_type=Path)
_CHECK = click.option(
    "--no-check",
    is_flag=True,
    help="Do not read the files that are there already, only look at their names and sizes.",
)


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


@click.command(name="list", cls=BulkVerb)
@click.argument("directory", type=_DIRECTORY, metavar="DIR")
@_CHECK
@common(servers=False)
def list_(shared: Common, directory: Path, no_check: bool, **_: Any) -> None:
    """Show the increments in a backup directory, and which are damaged.

    All files are read and compared with their manifests. The exit code is 1 if a chain cannot be
    restored. No node is asked.
    """
    with running(**shared.showing, afterwards=lambda _: "nothing was changed") as run:
        with shared.running_engine() as engine:
            from uprmc.backup.checking import listed

            listing = listed(directory, engine, run.progress, contents=not no_check)
        run.report = _Shown(listing)
    if listing.unusable:
        raise BackupDamaged(f"{', '.join(listing.unusable)} cannot be restored")


class _Shown:
    """A listing as a table."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return self._listing.to_json()

    def summary(self) -> str:
        """Return it for people."""
        listing = self._listing
        lines = [("chain", "number", "kind", "began", "rows", "deletions", "on disk", "state")]
        whole = "complete" if listing.contents else "not read"
        for each in listing.increments:
            number = "" if each.number is None else str(each.number)
            sizes = (f"{each.rows:,}", f"{each.deletes:,}", size_text(each.file_bytes))
            state = "damaged" if each.problem else whole
            lines.append((each.chain, number, each.kind, each.began, *sizes, state))
        for path in listing.unfinished:
            place = Path(path)
            lines.append((place.parent.name, place.name, "", "", "", "", "", "not finished"))
        widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]) - 1)]
        texts = ["  ".join([*map(str.ljust, line[:-1], widths), line[-1]]) for line in lines]
        problems = {each.chain: each.problem for each in listing.increments if each.problem}
        return "\n".join([*texts, *(f"{name}: {problem}" for name, problem in problems.items())])


class BackupVerb(BulkVerb):
    """``uprmc backup DIR``, ``uprmc backup list DIR`` and ``uprmc backup forget DIR``."""

    def make_context(
        self, info_name: str | None, args: list[str], *more: Any, **keywords: Any
    ) -> click.Context:
        for verb in (forget, list_):
            if args[:1] == [verb.name]:
                return verb.make_context(f"{info_name} {verb.name}", args[1:], *more, **keywords)
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
@_CHECK
@click.option("--dry-run", is_flag=True, help="Show what would be read; write nothing.")
@RATE
@common()
def backup(shared: Common, directory: Path, **given: Any) -> None:
    """Save a snapshot of nodes in a directory.

    The first backup in DIR contains everything, later ones by default only what has changed since,
    once the files of the chain were found to be undamaged.
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
                check=not given["no_check"],
                progress=run.progress,
            )


def _nothing_to_repeat(_: Step | None) -> str:
    return "the same command removes what is left"


def _afterwards(step: Step | None) -> str:
    if step is None:
        return "nothing was read yet"
    return "this increment does not count; the same command makes it again"
