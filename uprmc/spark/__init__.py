"""Spark side: exact snapshots in, streams out, loads that can be retried. See ``docs/spark.md``.

    import uprmc.spark

    documents = uprmc.spark.read(spark, "127.0.0.1:11210")

Functions are imported when they are first asked for: workers import a module or two, and what needs
no JVM needs no pyspark either. Nothing in this package imports Twisted, construct or any other part
of uprmc but its errors; so a zip of it (`shipping`) is all that a worker has to be sent.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uprmc.spark.api import changes, current_offsets, hold, read, write
    from uprmc.spark.backups import backup
    from uprmc.spark.feeding import feed
    from uprmc.spark.inference import infer_schema, read_json
    from uprmc.spark.loading import load
    from uprmc.spark.restoring import restore
    from uprmc.spark.session import register
    from uprmc.spark.verifying import verify

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
    "backup": "backups",
    "changes": "api",
    "current_offsets": "api",
    "feed": "feeding",
    "hold": "api",
    "infer_schema": "inference",
    "load": "loading",
    "read": "api",
    "read_json": "inference",
    "register": "session",
    "restore": "restoring",
    "verify": "verifying",
    "write": "api",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
