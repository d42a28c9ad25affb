"""``uprmc restore``: a backup back into nodes. The work: `uprmc.backup.restoring`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from uprmc.cli.arguments import VBUCKETS, whole
from uprmc.cli.bulk_options import (
    DRY_RUN,
    PREFIX,
    RATE,
    RESUME,
    BulkVerb,
    Common,
    bad_rows,
    common,
    on_error_of,
)
from uprmc.cli.bulk_run import running
from uprmc.columnar.errors import BadRow, Differences
from uprmc.columnar.write_options import WriteOptions
from uprmc.jobs.progress import Step

_EPILOG = """\b
Examples:
  uprmc restore /backups/users --node 10.0.0.2:11210
  uprmc restore /backups/users --at 3 --prefix user: --dry-run
  uprmc restore /backups/users --force          # after an accident
"""


@click.command(cls=BulkVerb, epilog=_EPILOG)
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
def restore(shared: Common, directory: Path, **given: Any) -> None:
    """Write the newest state of a backup to nodes.

    It then compares the nodes with the backup in DIR. The exit code is 1 if they do not have what
    the backup has, also where that is because a newer version is there: --force replaces it.
    """
    resume: Path | None = given["resume"]
    with running(**shared.showing, afterwards=lambda step: _afterwards(step, resume)) as run:
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


def _afterwards(step: Step | None, resume: Path | None) -> str:
    if step is None:
        return "nothing was written yet"
    done = f"{step.done:,} of {step.of:,} groups are done ({step.what})"
    if resume is not None:
        return f"{done}; the same command goes on from there"
    return f"{done}; the same command begins again, which does no harm"
