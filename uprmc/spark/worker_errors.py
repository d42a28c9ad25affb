"""What Spark shows of our errors: the sentence, without the frames of a worker in which it arose.

Spark's workers hand an exception on as text, with a traceback that says nothing to who has misspelt
an option. A worker that fails ends, so what is set here is for this one error only. Outside of
Spark's own processes errors stay what they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from uprmc.remote.errors import ClientError

P = ParamSpec("P")
T = TypeVar("T")

#: Spark's own switch, which it looks at when an exception reaches the end of a worker.
_HIDE = "SPARK_HIDE_TRACEBACK"


def plainly(work: Callable[P, T]) -> Callable[P, T]:
    """Return a function whose errors are shown by their sentences; also if it returns rows."""

    @wraps(work)
    def worked(*args: P.args, **kwargs: P.kwargs) -> T:
        with _told():
            found: Any = work(*args, **kwargs)
        rows: Any = _rows(found) if isinstance(found, Iterator) else found
        return rows  # type: ignore[no-any-return]

    return worked


def _rows(found: Iterator[Any]) -> Iterator[Any]:
    with _told():
        yield from found


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        error.shows_code = True
        if not _in_worker():
            raise
        os.environ[_HIDE] = "1"
        # The name of its class is what is shown first of an exception.
        raise type(str(error), (Exception,), {"__module__": "builtins"})() from None


def _in_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
