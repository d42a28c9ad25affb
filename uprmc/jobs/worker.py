"""A process of `engines.LocalEngine`: reads tasks from standard input, answers on standard output.

    python -m uprmc.jobs.worker [MODULE ...]

Modules are imported before the first task; one that cannot be is left to the task that needs it.
Both are pickles of bytes that are pickles again: what cannot be unpickled is then the task's
failure and not the pipe's. When standard input ends, the driver is gone or has no more use for it,
and the process ends at once, in the middle of a task too: tasks can bear that.

There is no pandas here: pyarrow imports it for its first array, which takes longer than most tasks,
and no task needs it.

It ignores SIGINT: Ctrl-C reaches every process of a terminal, and only the driver decides.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module
from typing import IO, Any

from uprmc.columnar.connection import reusing
from uprmc.columnar.errors import TaskFailed
from uprmc.jobs.engines import attempted


def main() -> None:
    """Run tasks until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.modules["pandas"] = None  # type: ignore[assignment]
    answers = _private_stdout()
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, orders), daemon=True).start()
    for module in sys.argv[1:]:
        with suppress(ImportError):
            import_module(module)
    with reusing():  # a worker ends with its process
        while True:
            answer = answer_to(orders.get())
            pickle.dump(answer, answers)
            answers.flush()


def answer_to(order: bytes) -> bytes:
    """Run a pickled function, task and attempt; returns success and result, or the error."""
    try:
        function, task, attempt = pickle.loads(order)
        return pickle.dumps((True, attempted(function, task, attempt)))
    except Exception as error:
        return pickled_error(error)


def pickled_error(error: Exception) -> bytes:
    """Return an answer that says what happened, with where it happened as a note."""
    error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        answer = pickle.dumps((False, error))
        pickle.loads(answer)
    except Exception:
        return pickle.dumps((False, TaskFailed(f"{type(error).__name__}: {error}")))
    return answer


def _private_stdout() -> IO[bytes]:
    """Keep standard output for answers alone: what tasks print goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _listen(orders_in: IO[bytes], orders: queue.SimpleQueue[Any]) -> None:
    while True:
        try:
            orders.put(pickle.load(orders_in))
        except (EOFError, OSError, pickle.UnpicklingError):
            os._exit(0)


if __name__ == "__main__":
    main()
