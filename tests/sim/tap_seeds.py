"""Running many seeds, or one again: ``python -m tests.sim.tap_seeds FIRST [LAST]``.

See `upr_seeds`; of a range [FIRST, LAST) the seeds that failed are told, then what happened in all.
Each seed is a run with TAP clients (`tap_run`) and one with a legacy master (`tap_push_run`).
"""

from __future__ import annotations

from collections import Counter

from tests.sim.node import shrink
from tests.sim.tap_push_run import PushRun
from tests.sim.tap_run import TapRun
from tests.sim.upr_seeds import run_seeds


def main() -> None:
    """See the module docstring."""
    shrink()
    run_seeds(_account)


def _account(seed: int) -> dict[str, int]:
    total = Counter(TapRun.random(seed).account())
    total.update(PushRun.random(seed).account())
    return total


if __name__ == "__main__":
    main()
