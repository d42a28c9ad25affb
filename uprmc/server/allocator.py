"""How the C library's allocator keeps this process's memory: in one arena, and not for long.

By default glibc gives each thread an arena of its own, so what the committing thread frees is of
no use to the reactor; and it keeps freed memory at the top of the heap in proportion to the largest
block that was ever freed. Both show as memory beyond the quota. The reactor's thread allocates
nearly everything, under the interpreter's lock, so one arena costs it nothing.

Where the C library is another one nothing happens, and nothing is lost but memory.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_ARENA_MAX = -1, -8

#: Free memory at the heap's end that is kept; less costs system calls, more is out of reach.
_KEPT_BYTES = 64 * 1_024


def keep_little() -> bool:
    """Set the limits; call it before the first thread is started.

    Returns:
        whether the C library took them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, 1) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
