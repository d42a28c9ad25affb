"""``uprmc verify``: do two sides hold the same? The work: `uprmc.backup.verifying`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from uprmc.cli.arguments import NAMES, VBUCKETS, seconds, whole
from uprmc.cli.bulk_options import PREFIX, BulkVerb, Common, common
from uprmc.cli.bulk_run import running
from uprmc.columnar.errors import BadOption, Differences
from uprmc.jobs.progress import Step

_EPILOG = """\b
Examples:
  uprmc verify 10.0.0.1:11210 10.0.0.2:11210
  uprmc verify 10.0.0.1:11210 /backups/users --out differences.jsonl
"""


@click.command(cls=BulkVerb, epilog=_EPILOG)
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
def verify(shared: Common, a: str, b: str, **given: Any) -> None:
    """Compare two nodes or clusters, or one of them with a backup.

    A replica may be compared with its source: of two nodes that belong together, each is read by
    itself.

    The exit code is 0 if both sides are the same, and 1 if they differ.
    """
    with running(**shared.showing, afterwards=_afterwards) as run:
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


def _side(text: str, shared: Common, given: dict[str, Any]) -> Any:
    """Return a directory that exists as a backup, everything else as nodes."""
    from uprmc.backup.verifying import BackupSide

    path = Path(text)
    if path.is_dir():
        return BackupSide(path, given["at"], given["chain"])
    if ":" not in text:
        raise BadOption(f"{text} is neither HOST:PORT nor a directory with a backup")
    return shared.access(servers=text)


def _afterwards(step: Step | None) -> str:
    return "nothing was changed; the same command begins again"
