"""Memory that open views hold while keys are overwritten, in one process and without a network.

A number of views of one vBucket are opened one after the other while a thousand keys are
overwritten a million times. A view can see one version of each key, so all together they may hold
as many entries as there are views times keys, however long the overwriting goes on. What is
reported: entries and bytes (Python's own count) held at the end, the same as a share of that
bound, what is left once all views are closed, and how long the closing took.

    python -m bench.upr_views --views 50 --keys 1000 --overwrites 1000000
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
import tracemalloc
from pathlib import Path

from bench import common
from uprmc.engine.reading import Reading
from uprmc.engine.vbucket import VBucket

_VALUE_BYTES = 100


def _overwrite(vbucket: VBucket, keys: list[bytes], times: int, begin: int) -> None:
    store, count = vbucket.store, len(keys)
    for number in range(begin, begin + times):
        store(keys[number % count], b"%0*d" % (_VALUE_BYTES, number), 0, 0)


def _bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def measure(views: int, keys: int, overwrites: int) -> dict[str, float]:
    """Return the figures of one run."""
    names = [common.key_of(number) for number in range(keys)]
    with tempfile.TemporaryDirectory(prefix="uprmc-bench-") as directory:
        bucket = common.bucket_in(Path(directory), vbuckets=1)
        common.warm_up(bucket)
        vbucket = bucket.vbuckets[0]
        tracemalloc.start()
        _overwrite(vbucket, names, keys, 0)
        without = _bytes()
        _overwrite(vbucket, names, keys, 0)
        entry = without / keys  # a version in the queue, table and all: an upper bound
        held, readings = [], []
        step = overwrites // views
        for number in range(views):
            readings.append(Reading(vbucket, None))
            _overwrite(vbucket, names, step, number * step)
            held.append(vbucket.queue.held)
        full = _bytes()
        began = time.perf_counter()
        for reading in readings:
            reading.close()
        closing_s = time.perf_counter() - began
        left = vbucket.queue.held
        after = _bytes()
        tracemalloc.stop()
        common.close_in_order(bucket)
    bound = views * keys
    return {
        "bound_entries": bound,
        "held_entries": held[-1],
        "of_bound": held[-1] / bound,
        "held_mib": (full - without) / 2**20,
        "bound_mib": bound * entry / 2**20,
        "left_entries": left,
        "left_mib": (after - without) / 2**20,
        "closing_ms": closing_s * 1e3,
    }


def main() -> None:
    options = argparse.ArgumentParser(description="see the module")
    options.add_argument("--views", type=int, default=50)
    options.add_argument("--keys", type=int, default=1_000)
    options.add_argument("--overwrites", type=int, default=1_000_000)
    words = options.parse_args()
    print(json.dumps(measure(words.views, words.keys, words.overwrites)))


if __name__ == "__main__":
    main()
