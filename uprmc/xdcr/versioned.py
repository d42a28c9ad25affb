"""Local documents of links: JSON objects with a version; one line says what is wrong with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from uprmc.errors import InvalidArguments

T = TypeVar("T")


def read(document: bytes, version: int, content: Callable[[dict[str, Any]], T]) -> T:
    """Return what `content` makes of a document.

    Raises:
        ValueError: it has another version, or not the form that this version has.
    """
    try:
        found = json.loads(document)
        if found["version"] != version:
            raise ValueError(f"it has version {found['version']}; this uprmc knows {version}")
        return content(found)
    except InvalidArguments as error:
        raise ValueError(str(error)) from None
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("it does not have the form that this uprmc writes") from None
