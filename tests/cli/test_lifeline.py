"""A process that ends with the one that holds the other end of its standard input."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading, time
from uprmc.cli.index_serve import Lifeline
lifeline = Lifeline(grace_s=float(sys.argv[2]))
if sys.argv[1] == "orderly":
    stopped = threading.Event()
    lifeline.stop = stopped.set
    print("runs", flush=True)
    stopped.wait(60)
    print("put in order")
    sys.exit(0)
if sys.argv[1] == "stuck":
    lifeline.stop = lambda: print("asked to stop", flush=True)
print("runs", flush=True)
time.sleep(60)
"""


def ended(how: str, grace_s: float) -> tuple[int, str]:
    command = [sys.executable, "-c", PROGRAM, how, str(grace_s)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        out, _ = process.communicate("what is written there is ignored", timeout=60)
        return process.returncode, out


def test_it_ends_at_once_while_there_is_nothing_to_put_in_order() -> None:
    assert ended("early", 60) == (1, "")


def test_it_ends_in_order_if_it_can() -> None:
    assert ended("orderly", 60) == (0, "put in order\n")


def test_it_ends_after_a_while_if_it_cannot() -> None:
    assert ended("stuck", 0.1) == (1, "asked to stop\n")
