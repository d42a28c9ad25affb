"""Where tasks run: in this process, in processes of this machine, or (`spark_engine`) in Spark.

`backup`, `restore`, `verify` and `load` cut their work into tasks that may be run twice; an engine
runs them. Its promises are the same everywhere: a task that fails for a passing reason is tried
again, one that fails for good ends the work at once, and a process that is killed costs one
attempt of the task it had, nothing else.

The processes are ordinary programs (`uprmc.jobs.worker`) that get pickles over a pipe, not
children of `multiprocessing`: those run the caller's main program once more, and one that is killed
breaks the whole pool. A worker ends when its pipe does, so none outlives a driver that was killed.
"""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from uprmc import children
from uprmc.columnar.errors import BadOption, TaskFailed
from uprmc.remote.errors import Busy, ClientError, NodeUnreachable

#: Attempts at a task that fails for a passing reason, as many as Spark makes by default.
ATTEMPTS = 4
#: More processes than this are a slip of the finger.
PROCESSES_MAX = 256
#: This many processes are started before it is known how many tasks there are.
EARLY_PROCESSES = 4

T = TypeVar("T")
R = TypeVar("R")
OnResult = Callable[[int, R], None]


class Engine(Protocol):
    """What runs tasks.

    Attributes:
        parallelism: tasks that run at the same time.
    """

    @property
    def parallelism(self) -> int:
        """See the class."""

    def run(
        self,
        function: Callable[[T], R],
        tasks: Sequence[T],
        on_result: OnResult[R] | None = None,
    ) -> list[R]:
        """Return what `function` makes of each task, in the order of the tasks.

        Args:
            function: one of a module's, so that other processes can import it.
            tasks: values that can be pickled. Each may be run several times, even side by side.
            on_result: called here with a task's index and result, once for each task, as soon as
                the engine knows.

        Raises:
            ClientError: a task failed for good; the others are given up.
        """


def is_final(error: BaseException) -> bool:
    """Return whether running the task again would fail in the same way."""
    return isinstance(error, ClientError) and not isinstance(error, NodeUnreachable | Busy)


_attempt = 0


def current_attempt() -> int:
    """Return how often the task that runs in this process was begun before: 0 the first time."""
    return _attempt


def attempted(function: Callable[[T], R], task: T, attempt: int) -> R:
    """Run a task in this process, which is what workers do."""
    global _attempt
    _attempt = attempt
    return function(task)


def given_up(error: BaseException, attempts: int) -> ClientError:
    """Return what to raise for a task that failed for good."""
    if isinstance(error, ClientError):
        return error
    failed = TaskFailed(f"after {attempts} attempts: {type(error).__name__}: {error}")
    for note in getattr(error, "__notes__", ()):
        failed.add_note(note)
    return failed


class LocalEngine:
    """Processes of this machine; one process = no other than this one.

    Processes are started when there is work for them, or by `start`, and stay for the next `run`,
    until the engine is closed or forgotten.

    Args:
        processes: how many; 0 = one for each processor.

    Raises:
        BadOption: no such number of processes.
    """

    def __init__(self, processes: int = 0) -> None:
        if not 0 <= processes <= PROCESSES_MAX:
            raise BadOption(f"parallelism {processes}: say 1 to {PROCESSES_MAX}")
        self._processes = processes or min(len(os.sched_getaffinity(0)), PROCESSES_MAX)
        self._idle: list[_Worker] = []
        weakref.finalize(self, _end_all, self._idle)

    def start(self, *modules: str) -> None:
        """Let some processes import what work to come will need, while its caller gets it ready."""
        if modules and self._processes > 1:
            wanted = min(self._processes, EARLY_PROCESSES)
            self._idle += [_Worker(*modules) for _ in range(wanted - len(self._idle))]

    def close(self) -> None:
        """End the processes; work to come starts new ones."""
        _end_all(self._idle)

    @property
    def parallelism(self) -> int:
        """See `Engine`."""
        return self._processes

    def run(
        self,
        function: Callable[[T], R],
        tasks: Sequence[T],
        on_result: OnResult[R] | None = None,
    ) -> list[R]:
        """See `Engine`."""
        processes = min(self._processes, len(tasks))
        if processes <= 1:
            return [
                _told(on_result, index, _here(function, task)) for index, task in enumerate(tasks)
            ]
        with _Crew(self._idle, function, tasks, on_result) as crew:
            return crew.run(processes)


def _told(on_result: OnResult[R] | None, index: int, result: R) -> R:
    if on_result is not None:
        on_result(index, result)
    return result


def _here(function: Callable[[T], R], task: T) -> R:
    for attempt in range(ATTEMPTS):
        try:
            return attempted(function, task, attempt)
        except Exception as error:
            if is_final(error) or attempt == ATTEMPTS - 1:
                raise given_up(error, attempt + 1) from error
    raise AssertionError("unreachable")


class _Crew:
    """The workers of one run; each has one task at a time.

    Those that have nothing to do are idle, for this run or the next; those that still have
    something when the run fails are ended.
    """

    def __init__(
        self,
        idle: list[_Worker],
        function: Callable[[Any], Any],
        tasks: Sequence[Any],
        on_result: OnResult[Any] | None,
    ) -> None:
        self._idle = idle
        self._function, self._tasks, self._on_result = function, tasks, on_result
        self._waiting = deque((index, 0) for index in range(len(tasks)))
        self._results: dict[int, Any] = {}
        self._selector = selectors.DefaultSelector()
        self._workers: dict[_Worker, tuple[int, int]] = {}

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._workers):
            self._dismiss(worker)
        self._selector.close()

    def run(self, processes: int) -> list[Any]:
        """Return all results."""
        for _ in range(processes):
            self._hire()
        while len(self._results) < len(self._tasks):
            for key, _ in self._selector.select():
                self._hear(key.data)
        return [self._results[index] for index in range(len(self._tasks))]

    def _hire(self) -> None:
        worker = self._idle.pop() if self._idle else _Worker()
        self._workers[worker] = (-1, 0)
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)
        self._employ(worker)

    def _employ(self, worker: _Worker) -> None:
        """Give it the next task, if there is one."""
        if not self._waiting:
            self._selector.unregister(worker.answers)
            del self._workers[worker]
            self._idle.append(worker)
            return
        index, attempt = self._workers[worker] = self._waiting.popleft()
        worker.give(pickle.dumps((self._function, self._tasks[index], attempt)))

    def _hear(self, worker: _Worker) -> None:
        index, attempt = self._workers[worker]
        try:
            succeeded, outcome = worker.answer()
        except EOFError:
            signal = self._dismiss(worker)
            self._again(index, attempt, RuntimeError(f"its process ended with {signal}"))
            self._hire()
            return
        if succeeded:
            self._results[index] = _told(self._on_result, index, outcome)
        else:
            self._again(index, attempt, outcome)
        self._employ(worker)

    def _again(self, index: int, attempt: int, error: BaseException) -> None:
        if is_final(error) or attempt == ATTEMPTS - 1:
            raise given_up(error, attempt + 1) from error
        self._waiting.appendleft((index, attempt + 1))

    def _dismiss(self, worker: _Worker) -> int:
        self._selector.unregister(worker.answers)
        del self._workers[worker]
        return worker.end()


def _end_all(idle: list[_Worker]) -> None:
    while idle:
        idle.pop().end()


class _Worker:
    """A process that runs tasks, and the two pipes to it."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            children.command("uprmc.jobs.worker", *modules),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=children.environment(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self.answers = self._process.stdin, self._process.stdout

    def give(self, order: bytes) -> None:
        """Let it run a pickled function, task and attempt."""
        with suppress(OSError):  # it has ended: its other pipe says so
            pickle.dump(order, self._orders)
            self._orders.flush()

    def answer(self) -> tuple[bool, Any]:
        """Return whether it succeeded, and the result or the error.

        Raises:
            EOFError: the process has ended, perhaps in the middle of its answer.
        """
        try:
            answer: bytes = pickle.load(self.answers)
        except (EOFError, pickle.UnpicklingError, OSError):
            raise EOFError from None
        succeeded, outcome = pickle.loads(answer)
        return bool(succeeded), outcome

    def end(self) -> int:
        """Make sure that it has ended; returns its exit code."""
        with suppress(OSError):
            self._orders.close()
        ended = self._process.poll()
        self._process.kill()
        code = self._process.wait()
        self.answers.close()
        return code if ended is None else ended
