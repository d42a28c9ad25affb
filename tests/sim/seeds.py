"""Running many seeds of a simulation, or one: ``python -m tests.sim.seeds NAME FIRST [LAST]``.

One seed fails with the end of its log. Of a range [FIRST, LAST) the seeds that failed are shown,
then how many there were, how long they took, and what they went through.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.sim.cluster_run import INDEX, REPLICAS, SINKS, TAP, WATERMARKS
from tests.sim.links import LINKS
from tests.sim.node import shrink
from tests.sim.push import PUSH
from tests.sim.run import STORE, STREAMS

SIMULATIONS = {
    each.name: each
    for each in (STORE, STREAMS, REPLICAS, WATERMARKS, TAP, PUSH, INDEX, SINKS, LINKS)
}


def main() -> None:
    """See the module docstring."""
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in SIMULATIONS:
        sys.exit(f"usage: python -m tests.sim.seeds {{{','.join(SIMULATIONS)}}} FIRST [LAST]")
    shrink()
    simulation, first = SIMULATIONS[sys.argv[1]], int(sys.argv[2])
    if len(sys.argv) == 3:
        _say(str(dict(simulation.random(first).account())))
        return
    last, failed, total = int(sys.argv[3]), 0, Counter[str]()
    began = time.perf_counter()
    for seed in range(first, last):
        try:
            total.update(simulation.random(seed).account())
        except Exception as error:  # a seed that broke is shown, the others go on
            failed += 1
            said = str(error).split("\nthe last events", maxsplit=1)[0]
            _say(f"{type(error).__name__}: {said[:2_000]}")
    took_s = time.perf_counter() - began
    _say(f"{last - first} seeds, {failed} failed, {took_s:.1f} s")
    _say(", ".join(f"{name} {count}" for name, count in sorted(total.items())))
    sys.exit(failed > 0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
