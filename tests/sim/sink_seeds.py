"""Running many seeds, or one again: ``python -m tests.sim.sink_seeds FIRST [LAST]``.

See `upr_seeds`; of a range [FIRST, LAST) the seeds that failed are told, then what happened in all.
"""

from __future__ import annotations

from tests.sim.node import shrink
from tests.sim.sink_run import SinkRun
from tests.sim.upr_seeds import run_seeds


def main() -> None:
    """See the module docstring."""
    shrink()
    run_seeds(lambda seed: SinkRun.random(seed).account())


if __name__ == "__main__":
    main()
