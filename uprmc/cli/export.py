"""``uprmc export``: changes into files, for as long as it runs. Work: `uprmc.spark.feeding`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import click

from uprmc.cli.arguments import NAMES, whole
from uprmc.cli.bulk import BulkCommon, BulkVerb, common, running
from uprmc.jobs.progress import Step

_EPILOG = """\b
Examples:
  uprmc export changes/ --checkpoint state --trigger available-now
  uprmc export changes/ --checkpoint state --format jsonl --trigger 10s
"""


@click.command(cls=BulkVerb, epilog=_EPILOG)
@click.argument("to", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option(
    "--checkpoint",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Directory that remembers how far the export is.",
)
@click.option(
    "--format",
    type=click.Choice(["parquet", "jsonl"]),
    default="parquet",
    show_default=True,
    help="Format of the files.",
)
@click.option(
    "--trigger",
    default="available-now",
    show_default=True,
    metavar="available-now|TIME",
    help="available-now: export what there is, then end. A time: look for changes that often.",
)
@click.option(
    "--start",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|JSON|MANIFEST",
    help="Where a new export begins. Later the checkpoint decides.",
)
@click.option(
    "--on-rollback",
    type=click.Choice(["fail", "rewind", "restart"]),
    default="fail",
    show_default=True,
    help="What to do when history branched. fail: stop. rewind: go back to the branch. restart: "
    "read the vBucket from its beginning.",
)
@click.option(
    "--max-rows", type=whole(least=1), help="Approximate maximum number of rows in a batch."
)
@click.option("--columns", type=NAMES, help="Write only these columns.")
@common()
def export(shared: BulkCommon, to: Path, **given: Any) -> None:
    """Write changes to files in DIR, each batch exactly once.

    What a node has at one moment, with readable values and without a checkpoint: "uprmc dump".

    With a time as --trigger it runs until SIGTERM (exit code 0) or Ctrl-C.
    """
    stopped = threading.Event()
    with running(**shared.showing, afterwards=_afterwards) as run:
        from uprmc.spark.feeding import AVAILABLE_NOW
        from uprmc.spark.feeding import feed as work

        if given["trigger"] != AVAILABLE_NOW:
            _end_at_sigterm(stopped)
        options = shared.access_options()
        columns = given["columns"]
        with shared.running_engine() as engine:
            run.report = work(
                options.pop("servers"),
                to,
                given["checkpoint"],
                format=given["format"],
                trigger=given["trigger"],
                engine=engine,
                stop=stopped.is_set,
                progress=run.progress,
                starting_offsets=given["start"],
                on_rollback=given["on_rollback"],
                max_rows_per_trigger=given["max_rows"],
                columns=None if columns is None else ",".join(columns),
                **options,
            )


def _end_at_sigterm(stopped: threading.Event) -> None:
    """Have SIGTERM end it after the present batch: that is how a service is stopped."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())


def _afterwards(step: Step | None) -> str:
    return "the same command goes on where it stopped"
