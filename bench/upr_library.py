"""How old changes are when a program of `uprmc.client` has them; compare `bench.upr_consumer`.

As a program it runs in a process of its own, for `bench.upr`:

    python -m bench.upr_library HOST:PORT --items N
"""

from __future__ import annotations

import argparse
import threading
from typing import Any

from bench.upr_consumer import latency_of, quantiles, say
from uprmc.client import Handler, UprClient

_LIMIT_S = 60.0


class _Ages(Handler):
    """Notes the age of each change that comes after ``started``."""

    def __init__(self, items: int) -> None:
        self.started = False
        self.complete = threading.Event()
        self.found: list[float] = []
        self._items = items

    def mutation(self, change: Any) -> None:
        if not self.started:
            return
        self.found.append(latency_of(change.value))
        if len(self.found) == self._items:
            self.complete.set()


def main() -> None:
    options = argparse.ArgumentParser(description="see the module")
    options.add_argument("what", choices=["latency"])
    options.add_argument("address")
    options.add_argument("--items", type=int, default=1_000)
    words = options.parse_args()
    ages = _Ages(words.items)
    with UprClient([words.address], ages, name="bench") as client:
        client.start()
        client.barrier(timeout_s=_LIMIT_S)
        ages.started = True
        print("ready", flush=True)
        ages.complete.wait(_LIMIT_S)
    say(quantiles(ages.found) | {"items": len(ages.found)})


if __name__ == "__main__":
    main()
