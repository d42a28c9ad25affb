"""Spark side: exact snapshots in, streams out, loads that can be retried. See ``docs/spark.md``.

    import uprmc.spark

    documents = uprmc.spark.read(spark, "127.0.0.1:11210")

Functions are imported when they are first asked for: workers import a module or two, and what needs
no JVM needs no pyspark either. Neither this package nor what it stands on (`columnar`, `backup`,
`load`, `jobs`, `remote`, `protocol`) imports Twisted: a zip of them and construct (`shipping`) is
all that a worker needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uprmc.backup.backups import backup
    from uprmc.backup.restoring import restore
    from uprmc.backup.verifying import verify
    from uprmc.load.loading import load
    from uprmc.spark.api import changes, current_offsets, hold, infer_schema, read, read_json, write
    from uprmc.spark.feeding import feed
    from uprmc.spark.session import register

__all__ = [
    "backup",
    "changes",
    "current_offsets",
    "feed",
    "hold",
    "infer_schema",
    "load",
    "read",
    "read_json",
    "register",
    "restore",
    "verify",
    "write",
]

_HOMES = {
    "backup": "uprmc.backup.backups",
    "changes": "uprmc.spark.api",
    "current_offsets": "uprmc.spark.api",
    "feed": "uprmc.spark.feeding",
    "hold": "uprmc.spark.api",
    "infer_schema": "uprmc.spark.api",
    "load": "uprmc.load.loading",
    "read": "uprmc.spark.api",
    "read_json": "uprmc.spark.api",
    "register": "uprmc.spark.session",
    "restore": "uprmc.backup.restoring",
    "verify": "uprmc.backup.verifying",
    "write": "uprmc.spark.api",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from uprmc.spark.worker_errors import plainly

    found: object = plainly(getattr(import_module(_HOMES[name]), name))  # errors with their words
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
