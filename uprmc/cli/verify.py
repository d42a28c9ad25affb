"""``uprmc verify``: do two sides hold the same? The work: `uprmc.backup.verifying`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from uprmc.cli.arguments import NAMES, VBUCKETS, seconds, whole
from uprmc.cli.bulk_options import BulkVerb, Common, common
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
    help="What must be the same, of value,rev,cas,flags,exp; default: all that both sides have.",
)
@click.option("--vbuckets", type=VBUCKETS, help="Only these, as the first one numbers them.")
@click.option("--prefix", default="", metavar="TEXT", help="Only keys that begin so.")
@click.option("--deletes", is_flag=True, help="Deletions count, too.")
@click.option(
    "--lag",
    type=seconds(),
    default="2",
    show_default=True,
    help="What differs is looked at again after this; 0 = at once.",
)
@click.option("--at", type=whole(), help="Of a backup: number of the increment.")
@click.option("--chain", metavar="NAME", help="Of a backup: directory of the chain.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Every difference: JSON lines, or Parquet by its name.",
)
@common(servers=False)
def verify(shared: Common, a: str, b: str, **given: Any) -> None:
    """Compare two nodes or clusters, or one with a backup; exit code 0: they are the same."""
    with running(**shared.showing, afterwards=_afterwards) as run:
        from uprmc.backup.verifying import verify as work

        sides = [_side(each, shared, given) for each in (a, b)]
        with shared.running_engine() as engine:
            report = run.report = work(
                *sides,
                engine=engine,
                by=given["by"],
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
