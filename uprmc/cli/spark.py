"""``uprmc spark``: data in and out in bulk, on Spark or, with ``--engine local``, without it.

What a verb needs is imported when it runs: a plain ``uprmc serve`` neither needs nor waits for
pyarrow and pyspark.
"""

from __future__ import annotations

from difflib import get_close_matches

import click

from uprmc.cli.spark_backup import backup
from uprmc.cli.spark_feed import feed
from uprmc.cli.spark_load import load
from uprmc.cli.spark_restore import restore
from uprmc.cli.spark_verify import verify
from uprmc.columnar.errors import BadOption


class _SparkVerbs(click.Group):
    """Says which verb a wrong name may have meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            meant = get_close_matches(name, self.commands, n=1, cutoff=0.4)
            hint = f"did you mean {meant[0]}?" if meant else f"there are {', '.join(self.commands)}"
            raise BadOption(f"there is no verb {name!r} of uprmc spark: {hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=_SparkVerbs)
def spark() -> None:
    """Load, back up, restore, compare and follow data, on Spark or without it.

    Every verb runs on Spark by default (Java 17 and pip install 'uprmc[spark]'), and in plain
    processes of this machine with --engine local (pip install 'uprmc[arrow]').
    """


for _verb in (load, backup, restore, verify, feed):
    spark.add_command(_verb)
