"""``python -m uprmc`` under a wall clock that another process steps by writing seconds to a file.

What the kernel does to a process when somebody sets the machine's clock: `time.time` jumps,
`time.monotonic` does not. Run it as ``python -m tests.system.stepped_clock serve ...``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

FILE_VARIABLE = "STEPPED_CLOCK_FILE"

#: Set to anything, the process has to do without epoll, as on other systems.
WITHOUT_EPOLL_VARIABLE = "STEPPED_CLOCK_WITHOUT_EPOLL"


def _install() -> None:
    offset_file = Path(os.environ[FILE_VARIABLE])
    unstepped_s, unstepped_ns = time.time, time.time_ns

    def offset_s() -> int:
        return int(offset_file.read_text() or 0)

    time.time = lambda: unstepped_s() + offset_s()
    if os.environ.get(WITHOUT_EPOLL_VARIABLE):
        sys.modules["twisted.internet.epollreactor"] = None
    time.time_ns = lambda: unstepped_ns() + offset_s() * 1_000_000_000
    from uprmc.server.system import SystemClock

    SystemClock.now = staticmethod(time.time)  # a nursery has imported it before


if __name__ == "__main__":
    _install()  # before anything keeps a reference to the functions of `time`
    from uprmc.cli.main import main

    main()
