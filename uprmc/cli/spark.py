"""``uprmc spark VERB``: the former names of the bulk verbs, for one release."""

from __future__ import annotations

import click

from uprmc.cli.backup import backup
from uprmc.cli.export import export
from uprmc.cli.former_names import renamed, warn
from uprmc.cli.load import load
from uprmc.cli.restore import restore
from uprmc.cli.verify import verify


class _FormerNames(click.Group):
    """Runs the verb, after a line that says what it is called now."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, verb, rest = super().resolve_command(ctx, args)
        if verb is None or verb.name is None:
            return name, verb, rest
        warn(f"'uprmc spark {name}' is now 'uprmc {verb.name}' (--engine spark: on Spark)")
        return name, verb, renamed(verb.name, rest)


@click.group(cls=_FormerNames, hidden=True)
def spark() -> None:
    """Former names of load, backup, restore, verify and export, on Spark by default."""


for _name, _verb in (
    *(("load", load), ("backup", backup), ("restore", restore)),
    *(("verify", verify), ("feed", export)),
):
    spark.add_command(_verb, _name)
