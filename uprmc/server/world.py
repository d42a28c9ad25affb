"""The real clock and the real source of identifiers; simulated ones live in ``tests/sim``."""

from __future__ import annotations

import os
import time


class SystemClock:
    """The machine's clocks: `ports.Clock`."""

    #: Unix time in seconds; it follows every adjustment of the machine's clock.
    now = staticmethod(time.time)
    #: Seconds since some fixed moment; it never goes back.
    monotonic = staticmethod(time.monotonic)


class SystemEntropy:
    """`ports.Entropy` from the operating system's generator, so no two nodes ever agree."""

    def uuid48(self) -> int:
        """Return a random number in ``1 .. 2**48 - 1``."""
        return int.from_bytes(os.urandom(6)) or 1
