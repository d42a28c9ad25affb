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


def main() -> None:
    given = options()
    if given["how"] == "broken":
        sys.exit("it is broken")
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
