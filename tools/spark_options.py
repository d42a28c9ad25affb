"""Write the tables of Spark's options in ``docs/spark-reference.md`` from the code that reads them.

``python -m tools.spark_options`` rewrites the page; a test holds that it says the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tools.reference import table
from uprmc.columnar.option import Option
from uprmc.spark.options import ACCESS, READ, WRITE

PAGE = Path(__file__).resolve().parents[1] / "docs" / "spark-reference.md"

_OWN_OF_READ = [each for each in READ if each not in ACCESS]
_OWN_OF_WRITE = [each for each in WRITE if each not in ACCESS]


def written(page: str) -> str:
    """Return the page with its tables as the code has them."""
    for heading, options in (
        ("## Options", ACCESS),
        ("### Read", _OWN_OF_READ),
        ("### Write", _OWN_OF_WRITE),
    ):
        before, found, after = page.partition(f"\n{heading}\n")
        new = re.sub(
            r"(?:^\|.*\n)+", lambda _, rows=options: _table(rows), after, count=1, flags=re.M
        )
        page = before + found + new
    return page


def _table(options: Iterable[Option]) -> str:
    rows = [(f"`{each.name}`", each.default or "-", each.help) for each in options]
    return table(("option", "default", "meaning"), rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
