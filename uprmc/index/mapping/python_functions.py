"""Maps that are Python functions, of modules that only the operator can name.

``def by_city(doc, meta): yield doc["city"], None``: a function gets the document and its `meta`,
and gives pairs of key and value, or ``None`` for no row. It is trusted: there is no sandbox for
Python. Source: systems reference c.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uprmc.config import IndexSettings
from uprmc.index.collation import Collation, sort_key
from uprmc.index.functions import Function
from uprmc.index.json_text import dumps
from uprmc.index.mapping.limits import Limits, MapError
from uprmc.index.model import Emission

__all__ = ["compile_function"]


def compile_function(
    function: Function, collation: Collation, settings: IndexSettings
) -> Callable[[Any, dict[str, Any]], list[Emission]]:
    """Return what gives the rows of a document and its `meta`; raises `MapError` if too much."""
    limits = Limits(settings)

    def run(document: Any, meta: dict[str, Any]) -> list[Emission]:
        rows: list[Emission] = []
        size = 0
        for key, value in function(document, meta) or ():
            key_text, value_text = dumps(key), dumps(value)
            limits.check_row(key_text, value_text)
            size += len(key_text) + len(value_text)
            if len(rows) >= limits.rows:
                raise MapError(f"it emitted more than {limits.rows} rows")
            if size > limits.document:
                raise MapError(f"its rows have more than {limits.document} bytes")
            rows.append(Emission(sort_key(key, collation), key_text, value_text))
        return rows

    return run
