"""Running many seeds, or one again: ``python -m tests.sim.xdcr_seeds FIRST [LAST]``.

See `upr_seeds`; of a range [FIRST, LAST) the seeds that failed are told, then what happened in all.
"""

from __future__ import annotations

from tests.sim import node, xdcr_node
from tests.sim.upr_seeds import run_seeds
from tests.sim.xdcr_run import XdcrRun


def main() -> None:
    """See the module docstring."""
    node.shrink()
    xdcr_node.shrink()
    run_seeds(lambda seed: XdcrRun.random(seed).account())


if __name__ == "__main__":
    main()
