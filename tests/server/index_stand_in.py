"""Stands in for ``uprmc index serve``: answers every connection with what it was started with."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading


def options() -> dict[str, str]:
    words = sys.argv[1:]
    first = next(place for place, word in enumerate(words) if word.startswith("--"))
    return dict(zip(words[first::2], words[first + 1 :: 2], strict=True)) | {
        "how": words[0] if first else ""
    }


def end_with_the_node() -> None:
    os.read(0, 1)
    os._exit(3)


def flood(pipe: int) -> None:
    """Tell the node more than it can want to know, most of it nonsense."""
    first = {"event": "index_failed", "design": "d", "reason": "r" * 2_000}
    os.write(pipe, json.dumps(first).encode() + b"\n")
    for line in (b"{", b"[" * 4_000, b"x" * 100_000, b"\xff", b"1"):
        os.write(pipe, line + b"\n")
    for wrong in NO_EVENTS:
        os.write(pipe, json.dumps(wrong).encode() + b"\n")
    while True:
        os.write(pipe, b'{"event": "index_built", "design": "d"}\n' * 100)


#: What is no event of an index: of the node, unknown, or with values that readers do not know.
NO_EVENTS: list[object] = [
    {"event": "purge", "vb": 1},
    {"event": "index_unheard_of"},
    {"event": 7},
    {"event": "index_built", "time": "yesterday"},
    {"event": "index_built", "documents": [1]},
    {"event": "index_built", "documents": 2**70},
    {"event": "index_built", "documents": float("nan")},
    {"event": "index_built", "a b": 1},
    {"event": "index_built", **dict.fromkeys("abcdefghi", 1)},
    [],
]


def main() -> None:
    given = options()
    if given["how"] == "broken":
        sys.exit("it is broken")
    if given["how"] == "flooding":
        threading.Thread(target=flood, args=(int(given["--events-fd"]),), daemon=True).start()
    if given["how"] == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]
    threading.Thread(target=end_with_the_node, daemon=True).start()
    listening = socket.socket(fileno=int(given["--listen-fd"]))
    listening.setblocking(True)
    sys.stdout.write(f"uprmc index ready views=somewhere pid={os.getpid()}\n")
    sys.stdout.flush()
    while True:
        connection, _ = listening.accept()
        with connection:
            facts = {
                "pid": os.getpid(),
                "options": given,
                "descriptors": descriptors,
                "nice": os.getpriority(os.PRIO_PROCESS, 0),
                "environment": {k: v for k, v in os.environ.items() if k.startswith("UPRMC_")},
            }
            connection.sendall(json.dumps(facts).encode())


main()
