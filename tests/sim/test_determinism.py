"""A run is a function of its seed: without that no failure could be looked at twice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.seeds import seeds
from tests.sim.faults import ALL_FAULTS
from tests.sim.run import STORE, StorePlan

pytestmark = pytest.mark.sim

_PRINT_DIGEST = """
from tests.sim.node import shrink
from tests.sim.faults import ALL_FAULTS
from tests.sim.run import STORE, StorePlan
shrink()
print(STORE.random(3, StorePlan(ALL_FAULTS, steps=1_000)).world.digest())
"""


@pytest.mark.parametrize("seed", seeds(default=5))
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    first, second = (
        STORE.random(seed, StorePlan(ALL_FAULTS, steps=1_000, short_lives=True)).world.log
        for _ in range(2)
    )
    assert first == second
    assert len(first) > 100


def test_another_seed_gives_another_run() -> None:
    """Else the seeds would be worth nothing."""
    plan = StorePlan(ALL_FAULTS, steps=200)
    digests = {STORE.random(seed, plan).world.digest() for seed in range(5)}
    assert len(digests) == 5


def test_another_process_with_another_hash_seed_gives_the_same_run() -> None:
    """Nothing may depend on the order of sets, on ``hash()`` or on ``id()``.

    The order of the compiled core's tables does, so that nobody can choose keys that collide.
    """
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _PRINT_DIGEST],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "UPRMC_CORE": "interpreted",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1
