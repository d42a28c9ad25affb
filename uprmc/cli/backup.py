"""``uprmc backup``, ``restore`` and ``verify``: what nodes have, kept in files, put back, compared.

The work: `uprmc.backup`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from uprmc.cli.arguments import NAMES, VBUCKETS, seconds, whole
from uprmc.cli.bulk import (
    DRY_RUN,
    PREFIX,
    RATE,
    RESUME,
    BulkCommon,
    BulkVerb,
    bad_rows,
    common,
    on_error_of,
    running,
)
from uprmc.cli.shown import rounded_size, table
from uprmc.columnar.errors import BackupDamaged, BadOption, BadRow, Differences
from uprmc.columnar.write_options import WriteOptions
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
def forget(shared: BulkCommon, directory: Path, **_: Any) -> None:
    """End the registration of a backup directory: no deletion is kept for it any longer.

    Do this before you delete the directory. Its files stay as they are, and a later backup to it
    registers again.
    """
    with running(**shared.showing, afterwards=_nothing_to_repeat) as run:
        from uprmc.backup.backups import forget as work

        run.report = work(shared.access(), directory)


@click.command(name="list", cls=BulkVerb)
@click.argument("directory", type=_DIRECTORY, metavar="DIR")
@_CHECK
@common(servers=False)
def list_(shared: BulkCommon, directory: Path, no_check: bool, **_: Any) -> None:
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
        rows = [("chain", "number", "kind", "began", "rows", "deletions", "on disk", "state")]
        whole = "complete" if listing.contents else "not read"
        for each in listing.increments:
            number = "" if each.number is None else str(each.number)
            sizes = (f"{each.rows:,}", f"{each.deletes:,}", rounded_size(each.file_bytes))
            state = "damaged" if each.problem else whole
            rows.append((each.chain, number, each.kind, each.began, *sizes, state))
        for path in listing.unfinished:
            place = Path(path)
            rows.append((place.parent.name, place.name, "", "", "", "", "", "not finished"))
        problems = {each.chain: each.problem for each in listing.increments if each.problem}
        return "\n".join(
            [table(rows), *(f"{name}: {problem}" for name, problem in problems.items())]
        )


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
def backup(shared: BulkCommon, directory: Path, **given: Any) -> None:
    """Save a snapshot of nodes in a directory.

    The first backup in DIR contains everything, later ones by default only what has changed since,
    once the files of the chain were found to be undamaged.
    """
    if given["full"] and given["incremental"]:
        raise BadOption("--full and --incremental contradict each other")
    kind: Kind = "full" if given["full"] else "incremental" if given["incremental"] else "auto"
    with running(**shared.showing, afterwards=_afterwards) as run:
        access = shared.access()
        early = () if given["dry_run"] else ("uprmc.backup.backups",)
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


# --- restore --------------------------------------------------------------------------------------


_RESTORE_EPILOG = """\b
Examples:
  uprmc restore /backups/users --node 10.0.0.2:11210
  uprmc restore /backups/users --at 3 --prefix user: --dry-run
  uprmc restore /backups/users --force          # after an accident
"""


@click.command(cls=BulkVerb, epilog=_RESTORE_EPILOG)
@click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR"
)
@click.option(
    "--at", type=whole(), help="Number of the increment to restore. By default the newest."
)
@click.option("--chain", metavar="NAME", help="Directory of the chain. By default the newest.")
@click.option(
    "--mode",
    type=click.Choice(["append-meta", "upsert"]),
    default="append-meta",
    show_default=True,
    help="append-meta: keep revisions and CAS; newer versions at the nodes win. upsert: store new "
    "documents.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Let the backup win over newer versions at the nodes, such as what was deleted or "
    "overwritten by accident. It is written with a new revision, so that replicas and linked "
    "clusters get it, too.",
)
@click.option(
    "--vbuckets", type=VBUCKETS, help="Restore only these vBuckets, as the backup numbers them."
)
@PREFIX
@click.option(
    "--no-check", is_flag=True, help="Do not compare the nodes with the backup at the end."
)
@bad_rows
@RESUME
@DRY_RUN
@RATE
@common()
def restore(shared: BulkCommon, directory: Path, **given: Any) -> None:
    """Write the newest state of a backup to nodes.

    It then compares the nodes with the backup in DIR. The exit code is 1 if they do not have what
    the backup has, also where that is because a newer version is there: --force replaces it.
    """
    resume: Path | None = given["resume"]
    with running(**shared.showing, afterwards=lambda step: _after_restoring(step, resume)) as run:
        from uprmc.backup.restoring import restore as work

        access = shared.access()
        options = WriteOptions(
            access,
            on_error=on_error_of(given),
            errors_path=given["errors"],
            max_errors=given["max_errors"],
            durability="persist",
        )
        with shared.running_engine() as engine:
            report = run.report = work(
                directory,
                access,
                at=given["at"],
                chain=given["chain"],
                mode=given["mode"],
                engine=engine,
                vbuckets=given["vbuckets"],
                key_prefix=given["prefix"],
                force=given["force"],
                dry_run=given["dry_run"],
                rate=given["rate"],
                check=not given["no_check"],
                state=resume,
                options=options,
                progress=run.progress,
            )
    if report.errors:
        raise BadRow(f"{report.errors:,} of {report.written.rows:,} rows could not be written")
    if report.superseded:
        differ = "would still differ" if given["dry_run"] else "differ"
        remedy = "they changed meanwhile" if given["force"] else "--force has the backup win"
        raise Differences(
            f"the nodes {differ} from the backup, of which they have {report.superseded:,} "
            f"documents in newer versions: {remedy}"
        )
    if report.lacking:
        raise Differences("the nodes lack what the backup has: see the comparison")


def _after_restoring(step: Step | None, resume: Path | None) -> str:
    if step is None:
        return "nothing was written yet"
    done = f"{step.done:,} of {step.of:,} groups are done ({step.what})"
    if resume is not None:
        return f"{done}; the same command goes on from there"
    return f"{done}; the same command begins again, which does no harm"


# --- verify ---------------------------------------------------------------------------------------


_VERIFY_EPILOG = """\b
Examples:
  uprmc verify 10.0.0.1:11210 10.0.0.2:11210
  uprmc verify 10.0.0.1:11210 /backups/users --out differences.jsonl
"""


@click.command(cls=BulkVerb, epilog=_VERIFY_EPILOG)
@click.argument("a", metavar="HOST:PORT|DIR")
@click.argument("b", metavar="HOST:PORT|DIR")
@click.option(
    "--by",
    type=NAMES,
    help="What to compare besides keys, of value,rev,cas,flags,exp. By default all that both sides "
    "have.",
)
@click.option(
    "--vbuckets", type=VBUCKETS, help="Compare only these vBuckets, as the first side numbers them."
)
@PREFIX
@click.option("--deletes", is_flag=True, help="Compare deletions, too.")
@click.option(
    "--lag",
    type=seconds(),
    default="2",
    show_default=True,
    help="Look at differences again after this time, and report those that remain.",
)
@click.option(
    "--at", type=whole(), help="Number of the increment, if a side is a backup. Default: newest."
)
@click.option(
    "--chain",
    metavar="NAME",
    help="Directory of the chain, if a side is a backup. Default: newest.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write every difference to FILE: as Parquet if its name ends with .parquet, otherwise as "
    "JSON lines.",
)
@common(servers=False)
def verify(shared: BulkCommon, a: str, b: str, **given: Any) -> None:
    """Compare two nodes or clusters, or one of them with a backup.

    A replica may be compared with its source: of two nodes that belong together, each is read by
    itself.

    The exit code is 0 if both sides are the same, and 1 if they differ.
    """
    with running(**shared.showing, afterwards=_after_verifying) as run:
        from uprmc.backup.digest import check_fields
        from uprmc.backup.verifying import verify as work

        by = check_fields(given["by"]) if given["by"] else None  # before an engine is started
        sides = [_side(each, shared, given) for each in (a, b)]
        with shared.running_engine() as engine:
            report = run.report = work(
                *sides,
                engine=engine,
                by=by,
                vbuckets=given["vbuckets"],
                key_prefix=given["prefix"],
                deletes=given["deletes"],
                lag_s=given["lag"],
                out=given["out"],
                progress=run.progress,
            )
    if not report.same:
        raise Differences(f"{report.differences:,} documents differ")


def _side(text: str, shared: BulkCommon, given: dict[str, Any]) -> Any:
    """Return a directory that exists as a backup, everything else as nodes."""
    from uprmc.backup.verifying import BackupSide

    path = Path(text)
    if path.is_dir():
        return BackupSide(path, given["at"], given["chain"])
    if ":" not in text:
        raise BadOption(f"{text} is neither HOST:PORT nor a directory with a backup")
    return shared.access(servers=text)


def _after_verifying(step: Step | None) -> str:
    return "nothing was changed; the same command begins again"
