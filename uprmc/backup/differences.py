"""The file that lists differences: Parquet or JSON lines, by its name."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from uprmc.backup.comparing import Difference, Version
from uprmc.jobs.files import whole_file
from uprmc.remote.json_fields import exact

_VERSION = pa.struct(
    [
        ("deleted", pa.bool_()),
        ("rev", pa.uint64()),
        ("cas", pa.uint64()),
        ("flags", pa.int64()),
        ("exp", pa.int64()),
        ("size", pa.int64()),
        ("hash", pa.uint64()),
    ]
)
DIFFERENCES = pa.schema(
    [
        ("key", pa.binary()),
        ("vbucket", pa.int32()),
        ("what", pa.string()),
        ("a", _VERSION),
        ("b", _VERSION),
    ]
)


def write_differences(path: Path, differences: Sequence[Difference]) -> None:
    """Write differences to a file: Parquet if its name ends so, else JSON lines (key in base64)."""
    rows: list[dict[str, Any]] = [
        {
            "key": each.key,
            "vbucket": each.vbucket,
            "what": each.what,
            "a": _plain(each.a),
            "b": _plain(each.b),
        }
        for each in differences
    ]
    with whole_file(path) as unfinished:
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows, schema=DIFFERENCES), unfinished)
            return
        with unfinished.open("w", encoding="utf-8") as file:
            for row in rows:
                key = base64.b64encode(row["key"]).decode()
                sides = {side: row[side] and exact(row[side]) for side in ("a", "b")}
                file.write(json.dumps(row | sides | {"key": key}, sort_keys=True) + "\n")


def _plain(version: Version | None) -> dict[str, Any] | None:
    return None if version is None else version._asdict()
