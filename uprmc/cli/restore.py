"""``uprmc restore``: a backup back into nodes. The work: `uprmc.backup.restoring`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from uprmc.cli.arguments import VBUCKETS, whole
from uprmc.cli.bulk_options import BulkVerb, Common, common, on_error_of
from uprmc.cli.bulk_run import running
from uprmc.columnar.errors import BadRow, SparkError
from uprmc.jobs.progress import Step

_EPILOG = """\b
Examples:
  uprmc restore /backups/users --node 10.0.0.2:11210
  uprmc restore /backups/users --at 3 --prefix user: --dry-run
"""


@click.command(cls=BulkVerb, epilog=_EPILOG)
@click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR"
)
@click.option("--at", type=whole(), help="Number of the increment; default newest.")
@click.option("--chain", metavar="NAME", help="Directory of the chain; default the newest.")
@click.option(
    "--mode",
    type=click.Choice(["append-meta", "upsert"]),
    default="append-meta",
    show_default=True,
    help="append-meta: newer versions of the node win; upsert: as new documents.",
)
@click.option("--force", is_flag=True, help="append-meta: the backup wins over newer versions.")
@click.option("--vbuckets", type=VBUCKETS, help="Only these, as the backup numbers them.")
@click.option("--prefix", default="", metavar="TEXT", help="Only keys that begin so.")
@click.option("--no-check", is_flag=True, help="Do not compare at the end.")
@click.option("--errors", type=click.Path(file_okay=False), help="Directory for bad rows: go on.")
@click.option("--max-errors", type=whole(), help="Continue after up to this many bad rows.")
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Note done groups in FILE, and pass over those that it names.",
)
@click.option("--dry-run", is_flag=True, help="Read and check every row, send nothing.")
@click.option("--rate", type=whole("ROWS", 1), help="Rows a second, all tasks together.")
@common()
def restore(shared: Common, directory: Path, **given: Any) -> None:
    """Write the newest state of a backup in DIR to nodes, and compare them with it."""
    resume: Path | None = given["resume"]
    with running(**shared.showing, afterwards=lambda step: _afterwards(step, resume)) as run:
        from uprmc.backup.restoring import restore as work
        from uprmc.columnar.write_options import WriteOptions

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
    if not report.complete:
        raise SparkError("the nodes lack what the backup has: see the comparison")


def _afterwards(step: Step | None, resume: Path | None) -> str:
    if step is None:
        return "nothing was written yet"
    done = f"{step.done:,} of {step.of:,} groups are done ({step.what})"
    if resume is not None:
        return f"{done}; the same command goes on from there"
    return f"{done}; the same command begins again, which does no harm"
