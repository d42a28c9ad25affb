"""SASL mechanisms: their names on the wire, which one a client uses, and where PLAIN is allowed.

Couchbase and its clients write ``SCRAM-SHA512``, RFC 7677 and others ``SCRAM-SHA-512``: a node
lists the first and understands both.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from uprmc.errors import UprmcError

#: A mechanism's name is no longer than this, as in memcached.
MECHANISM_MAX_BYTES = 32


class LoginRefused(UprmcError):
    """A node does not let a user in, or offers no mechanism that may be used.

    The text is one line whose subject is the other side.
    """


class Mechanism(Enum):
    """What both sides can do, the strongest first."""

    SCRAM_SHA512 = "SCRAM-SHA512"
    SCRAM_SHA256 = "SCRAM-SHA256"
    SCRAM_SHA1 = "SCRAM-SHA1"
    PLAIN = "PLAIN"

    @property
    def hash_name(self) -> str:
        """The hash of a SCRAM mechanism, as `hashlib` calls it."""
        return self.value.rpartition("-")[2].lower()


SCRAMS = (Mechanism.SCRAM_SHA512, Mechanism.SCRAM_SHA256, Mechanism.SCRAM_SHA1)


def mechanism_named(name: bytes) -> Mechanism | None:
    """Return the mechanism with this name on the wire, ``None`` if there is none."""
    found = name.decode("latin-1").upper().replace("-SHA-", "-SHA")
    return next((each for each in Mechanism if each.value == found), None)


def listed(*, plain: bool) -> bytes:
    """Return the answer to SASL_LIST_MECHS; `plain` tells whether PLAIN is allowed here."""
    offered = [each.value for each in Mechanism if plain or each is not Mechanism.PLAIN]
    return " ".join(offered).encode()


def chosen(names: bytes, *, safe: bool) -> tuple[Mechanism, bytes]:
    """Choose from a node's list: the strongest that we know, and its name as the node writes it.

    Args:
        names: the value of the answer to SASL_LIST_MECHS; empty = it is tried with PLAIN.
        safe: nobody can listen: the connection has TLS, or does not leave the machine.

    Raises:
        LoginRefused: the node offers nothing that may be used.
    """
    offered = dict(_known(names.split() or [b"PLAIN"]))
    for mechanism in Mechanism:
        if mechanism in offered and (safe or mechanism is not Mechanism.PLAIN):
            return mechanism, offered[mechanism]
    if Mechanism.PLAIN in offered:
        raise LoginRefused("offers only PLAIN, which anyone on the way can read: use TLS")
    raise LoginRefused("offers none of SCRAM-SHA512, SCRAM-SHA256, SCRAM-SHA1 and PLAIN")


def _known(names: Iterable[bytes]) -> Iterable[tuple[Mechanism, bytes]]:
    for name in names:
        mechanism = mechanism_named(name)
        if mechanism is not None:
            yield mechanism, name
