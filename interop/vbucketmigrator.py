"""`tap_pipe` as a program with the options of vbucketmigrator, for the pages that use it.

``-h HOST:PORT`` source, ``-d HOST:PORT`` destination, ``-b N`` a vBucket (any number of them),
``-N NAME`` of the stream, ``-A`` acknowledge, ``-r`` as a registered client, ``-t`` take over,
``-V`` ask both ends after it, ``-v`` nothing more. It runs until either side hangs up.
"""

from __future__ import annotations

import getopt
import sys
from collections.abc import Sequence

from interop import tap_wire as t
from interop import upr_wire as u
from interop.server_process import Address
from interop.tap_pipe import DONE, Pipe
from interop.upr_wire import UprWire
from interop.wire import frame

_USAGE = 64


def main(arguments: Sequence[str]) -> int:
    """Run it; gives the exit code."""
    options, rest = getopt.getopt(list(arguments), "h:d:b:N:ArtVvT:")
    words = dict(options)
    if rest or not {"-h", "-d", "-b"} <= words.keys():
        print("usage: vbucketmigrator -h HOST:PORT -d HOST:PORT -b N ...", file=sys.stderr)
        return _USAGE
    source, destination = Address.parse(words["-h"]), Address.parse(words["-d"])
    vbuckets = [int(value) for option, value in options if option == "-b"]
    pipe = Pipe(source, destination, words.get("-N", "").encode(), _flags(words), vbuckets)
    pipe.run()
    for line in pipe.complaints:
        print(line, file=sys.stderr)
    if "-V" in words and pipe.exit_code == DONE:
        _check(source, u.DEAD, vbuckets)
        _check(destination, u.ACTIVE, vbuckets)
    return pipe.exit_code if pipe.exit_code is not None else 1


def _flags(words: dict[str, str]) -> int:
    flags = t.LIST
    if "-A" in words:
        flags |= t.SUPPORT_ACK
    if "-t" in words:
        flags |= t.TAKEOVER
    if "-r" in words:
        flags |= t.REGISTERED | t.CHECKPOINT
    return flags


def _check(server: Address, state: int, vbuckets: Sequence[int]) -> None:
    with UprWire(server) as wire:
        for number in vbuckets:
            found = wire.command(frame(u.GET_VBUCKET, vbucket=number)).value
            assert int.from_bytes(found, "big") == state, (server, number, found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
