"""A feed in a process of its own, to be killed: SERVERS DIR CHECKPOINT TRIGGER ROWS."""

from __future__ import annotations

import sys

from uprmc.jobs.engines import LocalEngine
from uprmc.spark.feeding import feed


def main(servers: str, to: str, checkpoint: str, trigger: str, rows: str) -> None:
    """Run until there is nothing new, or until somebody kills it."""
    feed(
        servers,
        to,
        checkpoint,
        trigger=trigger,
        engine=LocalEngine(1),
        key_type="binary",
        on_rollback="rewind",
        max_rows_per_trigger=rows,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
