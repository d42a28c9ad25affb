"""Brakes for who guesses passwords: how long the answer to a login waits. Rules only.

Failures are counted by address and by user name, so that neither many names from one address nor
one name from many addresses are tried fast. A right password waits as a wrong one does: who does
not wait for the answer learns nothing. No user is locked out, because a wait has a limit; and one
who has logged in from an address before waits there only for failures of the same name from the
same address.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address

from uprmc.login.scram import prepared

#: The first failure waits for this long, each further one twice as long, up to the limit, which is
#: below the 3 s for which clients in use wait for an answer.
DELAY_S = 0.1
DELAY_MAX_S = 2.0

#: More failures make no difference, so that they are forgiven in some minutes.
_COUNT_MAX = 6

#: One failure is forgiven in each of these times.
FORGIVEN_EVERY_S = 60.0

#: Addresses, names, and pairs of both that are remembered.
REMEMBERED_MAX = 10_000


class Failures:
    """Counts by key; the key that was counted longest ago goes first."""

    def __init__(self) -> None:
        self._found: OrderedDict[object, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def count(self, key: object, now: float) -> int:
        """Return how many there are."""
        count, since = self._found.get(key, (0, now))
        return max(0, count - int(max(0.0, now - since) / FORGIVEN_EVERY_S))

    def put(self, key: object, count: int, now: float) -> None:
        """Remember that there are `count` now."""
        self._found.pop(key, None)
        self._found[key] = min(count, _COUNT_MAX), now
        if len(self._found) > REMEMBERED_MAX:
            self._found.popitem(last=False)

    def add(self, key: object, now: float) -> None:
        """Count one more."""
        self.put(key, self.count(key, now) + 1, now)

    def forget(self, key: object) -> None:
        """Let there be none."""
        self._found.pop(key, None)


class Brakes:
    """See the module docstring. Peers are ``HOST:PORT`` or ``unix``; times are seconds.

    Attributes:
        hosts, names: failures.
        known: failures of names from addresses from which they have logged in.
    """

    def __init__(self) -> None:
        self.hosts, self.names, self.known = Failures(), Failures(), Failures()

    def knows(self, peer: str, name: str) -> bool:
        """Tell whether a user has logged in from there before."""
        return (_host(peer), prepared(name)) in self.known

    def failed(self, peer: str, name: str, now: float) -> float:
        """Note a failure; return how long its answer waits."""
        host, who = _host(peer), prepared(name)
        self.hosts.add(host, now)
        self.names.add(who, now)
        if (host, who) in self.known:
            self.known.add((host, who), now)
        return self._delay_s(host, who, now)

    def succeeded(self, peer: str, name: str, now: float) -> float:
        """Note a right password; return how long its answer waits."""
        host, who = _host(peer), prepared(name)
        delay_s = self._delay_s(host, who, now)
        self.hosts.forget(host)
        self.known.put((host, who), self.known.count((host, who), now), now)
        return delay_s

    def _delay_s(self, host: str, who: bytes, now: float) -> float:
        pair = host, who
        if pair in self.known:
            count = self.known.count(pair, now)
        else:
            count = max(self.hosts.count(host, now), self.names.count(who, now))
        return min(DELAY_S * 2.0 ** (count - 1), DELAY_MAX_S) if count else 0.0


def _host(peer: str) -> str:
    """Return what counts as one address; of IPv6 a network, all of which one machine may have."""
    host = peer.rpartition(":")[0] or peer
    if not host.startswith("["):
        return host
    address = IPv6Address(host[1:-1].partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.exploded[:19]  # 64 bits
