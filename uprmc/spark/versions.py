"""What the Spark that is installed can do with a source in Python.

| Spark | has |
|---|---|
| 3.5 | no such sources |
| 4.0 | batches, and sinks of streams |
| 4.1 | filters for batches |
| 4.2 | streams that are told where their last batch ended, from where a lease is carried on |
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from uprmc.columnar.errors import MissingPackage


def require_sources() -> None:
    """Raise `MissingPackage` where pyspark has no sources in Python."""
    if find_spec("pyspark") is not None and find_spec("pyspark.sql.datasource") is None:
        raise MissingPackage(
            f"Spark {_version()} has no data sources in Python: install pyspark 4.0 or newer, for "
            "streams 4.2 or newer, on the driver and on all workers"
        )


def require_streams() -> None:
    """Raise `MissingPackage` where a stream is not told where its last batch ended."""
    require_sources()
    if find_spec("pyspark.sql.streaming.datasource") is None:
        raise MissingPackage(
            f"Spark {_version()} does not tell a stream from Python where its last batch ended: "
            "install pyspark 4.2 or newer, or read batches with startingOffsets"
        )


def _version() -> str:
    return str(import_module("pyspark").__version__)
