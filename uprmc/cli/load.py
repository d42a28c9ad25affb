"""``uprmc load``: rows of files become documents. The work: `uprmc.load.loading`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from uprmc.cli.arguments import NAMES, SIZE
from uprmc.cli.bulk import (
    DRY_RUN,
    RATE,
    RESUME,
    BulkCommon,
    BulkVerb,
    bad_rows,
    common,
    declared,
    on_error_of,
    running,
)
from uprmc.columnar.errors import BadRow
from uprmc.columnar.write_options import WriteOptions
from uprmc.jobs.progress import Step

_EPILOG = """\b
Examples:
  uprmc load users.csv --key 'user:{id}' --value json
  uprmc load events/ --format jsonl --key id --value json:all --ttl 1d
  uprmc load part-*.parquet --key key --value value --resume load.journal
  zcat events.gz | uprmc load - --format jsonl --key id --value json
"""


@click.command(cls=BulkVerb, epilog=_EPILOG)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    help="Format of the files. By default their names tell it.",
)
@click.option(
    "--key",
    default="key",
    show_default=True,
    metavar="COLUMN|TEMPLATE",
    help="Column of the key, or a text with columns in it, such as user:{id}.",
)
@click.option(
    "--value",
    default="value",
    show_default=True,
    metavar="COLUMN|TEMPLATE|json|json:all",
    help="Column of the value, or a text with columns in it. json: a document of the other "
    "columns. json:all: a document of all columns.",
)
@click.option(
    "--ttl",
    metavar="COLUMN|TIME",
    help="Time that documents live, such as 300 or 5m, or a column with seconds.",
)
@click.option("--flags", metavar="COLUMN|NUMBER", help="Flags of documents, or a column with them.")
@declared(WriteOptions, "mode", "--mode")
@declared(WriteOptions, "force")
@declared(WriteOptions, "ignore_null", "--on-null")
@bad_rows
@click.option(
    "--delimiter",
    metavar="CHAR",
    help="Character between the fields of a CSV file. By default a comma, or a tab in .tsv files.",
)
@click.option(
    "--quote",
    default='"',
    show_default=True,
    metavar="CHAR",
    help="Character around the fields of a CSV file.",
)
@click.option(
    "--escape",
    metavar="CHAR",
    help="Character before a quote inside of a CSV field, if quotes are not doubled.",
)
@click.option("--columns", type=NAMES, help="Names of the columns of a CSV file without header.")
@click.option(
    "--no-header", is_flag=True, help="The first line of a CSV file is a row, not a header."
)
@click.option("--null", metavar="TEXT", help="A CSV field with this text is NULL.")
@click.option(
    "--infer",
    is_flag=True,
    help="In JSON documents made of CSV, store numbers, true and false as such, not as texts.",
)
@RESUME
@DRY_RUN
@RATE
@declared(WriteOptions, "window")
@declared(WriteOptions, "window_bytes")
@declared(WriteOptions, "retry_deadline_s")
@declared(WriteOptions, "value_limit_bytes")
@declared(WriteOptions, "durability")
@click.option(
    "--task-size",
    type=SIZE,
    default="8m",
    show_default=True,
    help="Approximate amount of a file that one task reads.",
)
@common()
def load(shared: BulkCommon, paths: tuple[str, ...], **given: Any) -> None:
    """Store rows of CSV, JSON lines or Parquet files as documents.

    A PATH is a file, a pipe, - for standard input, a directory, or a pattern such as
    'data/*.parquet'.
    """
    resume: Path | None = given["resume"]
    with running(**shared.showing, afterwards=lambda step: _afterwards(step, resume)) as run:
        from uprmc.load.inputs import plan
        from uprmc.load.loading import check_columns
        from uprmc.load.loading import load as work
        from uprmc.load.row_rules import RowRules
        from uprmc.spark.options import write_options

        write = write_options(_write_options(shared, given)).write
        rules = RowRules(
            given["key"],
            None if given["mode"] == "delete" else given["value"],
            given["ttl"],
            given["flags"],
        )
        reading = {"format": given["format"], "dialect": _dialect(given)}
        rules.check()
        if shared.engine == "spark":
            # What is wrong with the files is said before Spark takes its time to start.
            check_columns(plan(paths, **reading), rules)
        with shared.running_engine() as engine:
            report = run.report = work(
                paths,
                write=write,
                engine=engine,
                rules=rules,
                **reading,
                resume=resume,
                rate=given["rate"],
                progress=run.progress,
                task_bytes=given["task_size"],
            )
    if report.errors:
        raise BadRow(f"{report.errors:,} of {report.counts.rows:,} rows could not be written")


def _afterwards(step: Step | None, resume: Path | None) -> str:
    if step is None:
        return "nothing was written yet"
    done = f"{step.done:,} of {step.of:,} tasks are done"
    if resume is not None:
        return f"{done}; the same command goes on from there"
    return f"{done}; the same command begins again (with --resume FILE it would go on)"


def _write_options(shared: BulkCommon, given: dict[str, Any]) -> dict[str, str]:
    found = {
        "writeMode": given["mode"],
        "onError": on_error_of(given),
        "errorsPath": given["errors"],
        "maxErrors": given["max_errors"],
        "ignoreNullValue": given["on_null"],
        "window": given["window"],
        "windowBytes": given["window_bytes"],
        "retryDeadline": given["retry_deadline"],
        "valueLimit": given["value_limit"],
        "durability": given["durability"],
        "dryRun": str(given["dry_run"]).lower(),
        "force": str(given["force"]).lower(),
    }
    texts = {name: str(value) for name, value in found.items() if value is not None}
    return shared.access_options() | texts


def _dialect(given: dict[str, Any]) -> Any:
    from uprmc.load.inputs import Dialect

    return Dialect(
        delimiter=given["delimiter"],
        quote=given["quote"],
        escape=given["escape"],
        header=not given["no_header"],
        columns=given["columns"] or (),
        null=given["null"],
        infer=given["infer"],
    )
