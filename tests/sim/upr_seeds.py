"""Running many seeds, or one again: ``python -m tests.sim.upr_seeds FIRST [LAST]``.

One seed fails with the end of its log. Of a range [FIRST, LAST) the seeds that failed are told,
then how many there were, how long they took, and what they went through.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable

from tests.sim.node import shrink
from tests.sim.upr_run import UprRun


def main() -> None:
    """See the module docstring."""
    shrink()
    run_seeds(lambda seed: UprRun.random(seed).account())


def run_seeds(account: Callable[[int], dict[str, int]]) -> None:
    """Do what the command line says; `account` runs one seed and tells what happened in it."""
    first = int(sys.argv[1])
    if len(sys.argv) == 2:
        _say(str(dict(account(first))))
        return
    last, failed, total = int(sys.argv[2]), 0, Counter[str]()
    began = time.perf_counter()
    for seed in range(first, last):
        try:
            total.update(account(seed))
        except Exception as error:  # a seed that broke is told, the others go on
            failed += 1
            told = str(error).split("\nthe last events", maxsplit=1)[0]
            _say(f"{type(error).__name__}: {told[:2_000]}")
    took_s = time.perf_counter() - began
    _say(f"{last - first} seeds, {failed} failed, {took_s:.1f} s")
    _say(", ".join(f"{name} {count}" for name, count in sorted(total.items())))
    sys.exit(failed > 0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
