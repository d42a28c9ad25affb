"""What the log says of a data directory: that it is rewritten, or begins a new history."""

from __future__ import annotations

from collections.abc import Callable

from uprmc.server.log import Log, Throttle

_EVERY_S = 5.0

_log = Log("storage")


def upgrade_log(directory: str, monotonic: Callable[[], float]) -> Callable[[int, int], None]:
    """Return what `open_directory` tells of an upgrade."""
    throttle = Throttle(_EVERY_S, monotonic)
    began: list[float] = []

    def told(done: int, total: int) -> None:
        if not began:
            began.append(monotonic())
            throttle.passed()
            _log.info("upgrade_began", directory=directory, entries=total)
        elif done == total:
            _log.info("upgraded", directory=directory, seconds=round(monotonic() - began[0], 1))
        elif throttle.passed() is not None:
            _log.info("upgrade_progress", done=done, entries=total)

    return told


def log_new_history(directory: str, reason: str, uuid: int) -> None:
    """Say why a data directory begins a new history, and under which uuid."""
    _log.warn("new_history", directory=directory, reason=reason, uuid=f"{uuid:032x}")
