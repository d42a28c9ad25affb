"""Brakes for who guesses passwords: how many are tried in a time, and how long each answer waits.

Failures are counted by address and by user name, so that neither many names from one address nor
one name from many addresses are tried fast. Logins of a name from an address follow one another:
each waits for the one before it and then for its own time, which grows with the failures. Those of
other names from there follow in a quarter of that time, and those of a name that fails from all
addresses in a tenth of a second. What would have to wait for too long is answered at once, that too
many try, and counts for nothing: so the number of connections makes no difference.

A right password waits as a wrong one does, and is put off as one: who does not wait for the answer
learns nothing. No user is locked out, because failures are forgiven and a wait has a limit; and one
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

#: Logins of a name that fails follow one another in no less than this, from all addresses.
NAME_EVERY_S = 0.1

#: Other names from the same address follow in this part of the time of one name.
HOST_PART = 0.25

#: What would wait for longer is put off: clients in use wait for 3 s.
WAIT_MAX_S = 2.5

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
        self._free: OrderedDict[object, float] = OrderedDict()  # when the next one is tried

    def knows(self, peer: str, name: str) -> bool:
        """Tell whether a user has logged in from there before."""
        return (_host(peer), prepared(name)) in self.known

    def wait_s(self, peer: str, name: str, now: float) -> float | None:
        """Return how long the answer to a login would wait now, ``None`` = it would be put off."""
        return self._turn(_host(peer), prepared(name), now, 0)[0]

    def failed(self, peer: str, name: str, now: float) -> float | None:
        """Note a failure; return how long its answer waits, ``None`` = it is put off."""
        host, who = _host(peer), prepared(name)
        waits_s, free = self._turn(host, who, now, 1)
        if waits_s is not None:
            self.hosts.add(host, now)
            self.names.add(who, now)
            if (host, who) in self.known:
                self.known.add((host, who), now)
            self._take(free, now)
        return waits_s

    def succeeded(self, peer: str, name: str, now: float) -> float | None:
        """Note a right password; return how long its answer waits, ``None`` = it is put off."""
        host, who = _host(peer), prepared(name)
        waits_s, free = self._turn(host, who, now, 0)
        if waits_s is not None:
            self._take(free, now)
            self.hosts.forget(host)
            for key in (host, (host, who)):
                self._free.pop(key, None)
            self.known.put((host, who), self.known.count((host, who), now), now)
        return waits_s

    def _turn(
        self, host: str, who: bytes, now: float, more: int
    ) -> tuple[float | None, dict[object, float]]:
        """Return how long a login with so many more failures waits, and who is taken until when."""
        pair, of_name = (host, who), self.names.count(who, now)
        known = pair in self.known
        if known:
            failures = self.known.count(pair, now)
        else:
            failures = max(self.hosts.count(host, now), of_name)
        delay_s = _delay_s(failures + more)
        gaps: dict[object, float] = {pair: delay_s}
        if not known:
            gaps |= {host: delay_s * HOST_PART, who: NAME_EVERY_S if of_name + more else 0.0}
        begins = max(now, *(self._free.get(key, now) for key in gaps))
        # Whether it is put off is the same for a right password and a wrong one.
        if begins > now and begins - now + _delay_s(failures + 1) > WAIT_MAX_S:
            return None, {}
        return begins - now + delay_s, {key: begins + gap for key, gap in gaps.items() if gap}

    def _take(self, free: dict[object, float], now: float) -> None:
        for key, until in free.items():
            self._free.pop(key, None)
            self._free[key] = until
            if len(self._free) > REMEMBERED_MAX:
                self._free.popitem(last=False)


def _delay_s(failures: int) -> float:
    return min(DELAY_S * 2.0 ** (failures - 1), DELAY_MAX_S) if failures > 0 else 0.0


def _host(peer: str) -> str:
    """Return what counts as one address; of IPv6 a network, all of which one machine may have."""
    host = peer.rpartition(":")[0] or peer
    if not host.startswith("["):
        return host
    address = IPv6Address(host[1:-1].partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.exploded[:19]  # 64 bits
