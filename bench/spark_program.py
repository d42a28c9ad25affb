"""A program that uses Spark, in a process and a session of its own, for `bench.spark`.

Spark takes seconds to start and some jobs until it is warm, so one program runs all rounds. It
takes one request as a line of JSON from standard input, does it, and answers with a line of
figures. Its processor time is that of every process of its session: the JVM, Spark's planners and
Python workers, also those that have ended since.

    python -m bench.spark_program --master local[2]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_TICKS_S = os.sysconf("SC_CLK_TCK")


class CpuOfSession:
    """Processor time of the session that this process leads."""

    def __init__(self) -> None:
        self._session = os.getsid(0)

    def used_s(self) -> float:
        """Return the seconds of all its processes so far; exact to a tick of each.

        A process counts its dead children once it has waited for them, so what ended is in here,
        in the figure of who started it.
        """
        return sum(self._of(stat) for stat in Path("/proc").glob("[0-9]*/stat")) / _TICKS_S

    def _of(self, stat: Path) -> int:
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return 0  # it ended in the meantime
        return sum(map(int, fields[11:15])) if int(fields[3]) == self._session else 0


class Program:
    """What can be asked for: a method for each, with the request's other words as arguments."""

    def __init__(self, master: str, conf: dict[str, str]) -> None:
        from uprmc.spark.session import session

        began = time.perf_counter()
        self.spark = session(master=master, conf=conf)
        self.start_s = time.perf_counter() - began
        self._cpu = CpuOfSession()
        self._frame: Any = None

    def _measured(self, rows: int, job: Callable[[], object]) -> dict[str, float]:
        cpu, began = self._cpu.used_s(), time.perf_counter()
        job()
        wall = time.perf_counter() - began
        cpu = self._cpu.used_s() - cpu
        return {"rows_s": rows / wall, "cpu_us": cpu * 1e6 / rows, "seconds": wall}

    # --- reading --------------------------------------------------------------------------------

    def _documents(self, servers: str, options: dict[str, str]) -> Any:
        return self.spark.read.format("uprmc").options(servers=servers, **options).load()

    def sums(self, servers: str) -> dict[str, Any]:
        """Sum up what a read brings, as `bench.spark_decoder` does."""
        found = self._documents(servers, {}).selectExpr(
            "count(*)", "sum(crc32(cast(key AS BINARY)))", "sum(crc32(value))"
        )
        return {"sums": [int(number or 0) for number in found.first()]}

    def read(self, servers: str, rows: int, **options: str) -> dict[str, float]:
        """Read everything and drop it."""
        documents = self._documents(servers, options)
        return self._measured(rows, lambda: documents.write.format("noop").mode("overwrite").save())

    # --- writing --------------------------------------------------------------------------------

    def prepare(self, rows: int, value_bytes: int, partitions: int) -> dict[str, Any]:
        """Make the documents that are written, and keep them in memory."""
        self._frame = (
            self.spark.range(0, rows, numPartitions=partitions)
            .selectExpr(
                "lpad(cast(id AS STRING), 19, '0') AS number",
                f"cast(substring(repeat(lpad(hex(id * 2654435761), 16, '0'), "
                f"{value_bytes // 16 + 1}), 1, {value_bytes}) AS BINARY) AS value",
                "'set' AS _op",
                "0L AS _flags",
                "0L AS _exp",
                "id AS id",
            )
            .cache()
        )
        return {"rows": self._frame.count()}

    def _keyed(self, letter: str) -> Any:
        """Documents of one contestant: the others' would be changed under it, and cost less."""
        return self._frame.selectExpr(f"concat('{letter}', number) AS key", "*").drop("number")

    def write(
        self, servers: str, rows: int, version: int, report: str, durability: str
    ) -> dict[str, float]:
        """Write all by the sink, each newer than `version` - 1 of it."""
        documents = self._keyed("m" if durability == "persist" else "a").selectExpr(
            "key", "value", "_op", "_flags", "_exp", f"{version}L AS _rev",
            f"{version}L * 1000000000 + id AS _cas",
        )  # fmt: skip
        options = {"servers": servers, "writeMode": "append-meta", "reportPath": report}
        options["durability"] = durability
        job = documents.write.format("uprmc").options(**options).mode("append").save
        figures = self._measured(rows, job)
        return figures | {"applied": json.loads(Path(report).read_text())["applied"]}

    def loop(self, memcached: str, rows: int, wait: bool) -> dict[str, float]:
        """Write all by the loop that everybody writes first."""
        documents = self._keyed("w" if wait else "n").select("key", "value")
        job = Loop(memcached, wait=wait)
        return self._measured(rows, lambda: documents.foreachPartition(job)) | {"applied": rows}


class Loop:
    """`foreachPartition` over pymemcache, one `set` after the other.

    Args:
        memcached: HOST:PORT.
        wait: for the reply of each, so that what was refused is known; pymemcache does not by
            itself.
    """

    def __init__(self, memcached: str, *, wait: bool) -> None:
        host, _, port = memcached.rpartition(":")
        self._address = host, int(port)
        self._wait = wait

    def __call__(self, rows: Iterable[Any]) -> None:
        from pymemcache.client.base import Client

        client = Client(self._address, no_delay=True)
        for row in rows:
            client.set(row.key, bytes(row.value), noreply=not self._wait)
        client.version()  # what nobody waits for is over now
        client.close()


def main() -> None:
    options = argparse.ArgumentParser(description="see the module")
    options.add_argument("--master", default="local[2]")
    options.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE")
    words = options.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Spark prints is no answer
    if os.getpgrp() != os.getpid():
        os.setsid()  # a shell's job leads a group already, and counts its shell
    program = Program(words.master, dict(one.split("=", 1) for one in words.conf))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(program, request.pop("do"))(**request)
        print(json.dumps(answer), file=answers, flush=True)
    print(json.dumps({"start_s": program.start_s}), file=answers, flush=True)
    program.spark.stop()


if __name__ == "__main__":
    # By its installed name: classes of a main module would travel to workers by value.
    from bench import spark_program

    spark_program.main()
