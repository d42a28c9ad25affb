"""SCRAM (RFC 5802, 7677) without sockets: what a password becomes, and both sides' messages.

Channel binding is not offered. Nonces are arguments. A client's nonce may be any text without a
comma: the Couchbase C++ client's contains blanks.
"""

from __future__ import annotations

import hashlib
import hmac
import stringprep
import unicodedata
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Generator
from dataclasses import dataclass

from uprmc.login.credentials import NAME_MAX_BYTES, Credentials
from uprmc.login.mechanisms import LoginRefused

#: A client computes no more rounds than this for a server, which it does not trust yet.
ITERATIONS_MAX = 100_000
ITERATIONS_MIN = 4_096
ITERATIONS_DEFAULT = 4_096

#: Rounds that are computed in one turn where others wait: about a millisecond.
TURN_ITERATIONS = 256

#: A message is no longer than this.
MESSAGE_MAX_BYTES = 4_096

_NO_BINDING = b"biws"  # base64 of "n,,"


class BadExchange(LoginRefused):
    """The peer's message is none of SCRAM, or does not belong to this exchange."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a node keeps of a password for one hash; a login costs two HMACs."""

    salt: bytes  # of this user
    iterations: int  # rounds of PBKDF2
    stored_key: bytes  # checks the client's proof
    server_key: bytes  # proves to the client that the node has this


def prepared(text: str) -> bytes:
    """Return a name or password as SASLprep (RFC 4013) wants it, in UTF-8.

    Text with characters that SASLprep forbids stays as it is, as Couchbase's clients send it.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each
        for each in text
        if not stringprep.in_table_b1(each)
    )
    found = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    forbidden = any(
        stringprep.in_table_c12(each)
        or stringprep.in_table_c21_c22(each)
        or stringprep.in_table_c3(each)
        or stringprep.in_table_c9(each)
        for each in found
    )
    return (text if forbidden or not found else found).encode()


def salted(password: str, salt: bytes, iterations: int, hash_name: str) -> bytes:
    """Return the SaltedPassword. Costs some milliseconds for each 4,096 iterations."""
    return hashlib.pbkdf2_hmac(hash_name, prepared(password), salt, iterations)


def salted_in_turns(
    password: str, salt: bytes, iterations: int, hash_name: str
) -> Generator[None, object, bytes]:
    """Return the same; yield after each `TURN_ITERATIONS`, so that others have their turn.

    That is Python's own loop, which takes a few times as long as `hashlib`'s.
    """
    keyed = hmac.new(prepared(password), b"", hash_name)
    block = salt + b"\0\0\0\1"
    found = 0
    for number in range(iterations):
        one = keyed.copy()
        one.update(block)
        block = one.digest()
        found ^= int.from_bytes(block)
        if number % TURN_ITERATIONS == TURN_ITERATIONS - 1:
            yield
    return found.to_bytes(len(block))


def verifier_of(password: str, salt: bytes, iterations: int, hash_name: str) -> Verifier:
    """Return what a node keeps; costs as much as `salted`."""
    key = salted(password, salt, iterations, hash_name)
    stored = hashlib.new(hash_name, _hmac(key, b"Client Key", hash_name)).digest()
    return Verifier(salt, iterations, stored, _hmac(key, b"Server Key", hash_name))


class ServerExchange:
    """A node's side of one login.

    Args:
        hash_name: of the mechanism.
        verifier_for: returns what is kept of a user. For an unknown one it returns a false
            verifier, so that strangers do not learn who exists.
        nonce: unpredictable, without commas.
    """

    def __init__(
        self, hash_name: str, verifier_for: Callable[[str], Verifier], nonce: bytes
    ) -> None:
        self.username = ""  # who wants in; known after `first`
        self._hash_name = hash_name
        self._verifier_for = verifier_for
        self._own_nonce = nonce
        self._nonce = b""
        self._spoken = b""
        self._verifier: Verifier | None = None

    def first(self, message: bytes) -> bytes:
        """Take the client's first message and return the challenge; raises `BadExchange`."""
        binding, _, rest = message.partition(b",")
        authzid, _, bare = rest.partition(b",")
        if binding not in (b"n", b"y"):
            raise BadExchange("asks for channel binding, which is not offered")
        fields = _fields(bare, b"n", b"r")
        self.username = _name_of(fields[0])
        if authzid and authzid != b"a=" + fields[0]:
            raise BadExchange("wants to act for another user")
        self._binding = b64encode(binding + b"," + authzid + b",")
        self._nonce = fields[1] + self._own_nonce
        self._verifier = verifier = self._verifier_for(self.username)
        challenge = b"r=%b,s=%b,i=%d" % (
            self._nonce,
            b64encode(verifier.salt),
            verifier.iterations,
        )
        self._spoken = bare + b"," + challenge
        return challenge

    def final(self, message: bytes) -> bytes:
        """Take the client's proof and return the node's; the user is in.

        Raises:
            LoginRefused: the password is wrong, or nobody has this name.
            BadExchange: the message is none.
        """
        if self._verifier is None:
            raise BadExchange("sent a proof before the first message")
        verifier, self._verifier = self._verifier, None
        without_proof, _, encoded = message.rpartition(b",p=")
        binding, nonce = _fields(without_proof, b"c", b"r")
        if binding != self._binding or nonce != self._nonce:
            raise BadExchange("sent a proof of another exchange")
        proof = _decoded(encoded)
        spoken = self._spoken + b"," + without_proof
        signature = _hmac(verifier.stored_key, spoken, self._hash_name)
        if len(proof) != len(signature):
            raise BadExchange("sent a proof of the wrong length")
        stored = hashlib.new(self._hash_name, _xor(proof, signature)).digest()
        if not hmac.compare_digest(stored, verifier.stored_key):
            raise LoginRefused("wrong name or password")
        return b"v=" + b64encode(_hmac(verifier.server_key, spoken, self._hash_name))


class ClientExchange:
    """A client's side of one login: `first`, then `answer`, then `finish`.

    Args:
        hash_name: of the mechanism.
        nonce: unpredictable, without commas.
    """

    def __init__(self, credentials: Credentials, hash_name: str, nonce: bytes) -> None:
        self._credentials = credentials
        self._hash_name = hash_name
        self._nonce = nonce
        self._signature = b""
        name = prepared(credentials.username).replace(b"=", b"=3D").replace(b",", b"=2C")
        self._bare = b"n=%b,r=%b" % (name, nonce)

    def first(self) -> bytes:
        """Return the first message."""
        return b"n,," + self._bare

    def answer(self, challenge: bytes) -> bytes:
        """Return the proof; costs some milliseconds. Raises `BadExchange`."""
        salt, iterations = self._asked(challenge)
        key = salted(self._credentials.password, salt, iterations, self._hash_name)
        return self._proof(challenge, key)

    def answer_in_turns(self, challenge: bytes) -> Generator[None, object, bytes]:
        """Return the same; yield now and then, so that others have their turn."""
        salt, iterations = self._asked(challenge)
        password = self._credentials.password
        key = yield from salted_in_turns(password, salt, iterations, self._hash_name)
        return self._proof(challenge, key)

    def _asked(self, challenge: bytes) -> tuple[bytes, int]:
        """Return the salt and the iterations of a challenge; raises `BadExchange`."""
        nonce, salt, rounds = _fields(challenge, b"r", b"s", b"i")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise BadExchange("sent a challenge of another exchange")
        iterations = int(rounds) if rounds.isdigit() and len(rounds) < 10 else 0
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise BadExchange(
                f"asks for {rounds[:20].decode('latin-1')} iterations, and "
                f"{ITERATIONS_MIN:,} to {ITERATIONS_MAX:,} are accepted"
            )
        return _decoded(salt), iterations

    def _proof(self, challenge: bytes, key: bytes) -> bytes:
        nonce, _, _ = _fields(challenge, b"r", b"s", b"i")
        client_key = _hmac(key, b"Client Key", self._hash_name)
        without_proof = b"c=%b,r=%b" % (_NO_BINDING, nonce)
        spoken = self._bare + b"," + challenge + b"," + without_proof
        stored = hashlib.new(self._hash_name, client_key).digest()
        proof = _xor(client_key, _hmac(stored, spoken, self._hash_name))
        self._signature = _hmac(_hmac(key, b"Server Key", self._hash_name), spoken, self._hash_name)
        return without_proof + b",p=" + b64encode(proof)

    def finish(self, message: bytes) -> None:
        """Check that the node knows the password, too; raises `BadExchange`."""
        if not self._signature or not message.startswith(b"v="):
            raise BadExchange("did not prove that it knows the user")
        signature = _decoded(message[2:].partition(b",")[0])
        if not hmac.compare_digest(signature, self._signature):
            raise BadExchange("does not know the user's password: it is another server")


def _fields(message: bytes, *names: bytes) -> list[bytes]:
    """Return the values of a message's fields, which begin with these names in this order."""
    if len(message) > MESSAGE_MAX_BYTES:
        raise BadExchange(f"sent a message longer than {MESSAGE_MAX_BYTES} bytes")
    parts = message.split(b",")
    values = [part[2:] for part, name in zip(parts, names, strict=False) if part[:2] == name + b"="]
    if len(values) != len(names) or not all(values):
        raise BadExchange("sent what is no message of SCRAM")
    return values


def _name_of(text: bytes) -> str:
    if len(text) > 3 * NAME_MAX_BYTES:
        raise BadExchange(f"sent a user name longer than {NAME_MAX_BYTES} bytes")
    if text.count(b"=") != text.count(b"=2C") + text.count(b"=3D"):
        raise BadExchange("sent a user name that is not escaped as SCRAM wants it")
    try:
        return text.replace(b"=2C", b",").replace(b"=3D", b"=").decode()
    except UnicodeDecodeError:
        raise BadExchange("sent a user name that is not UTF-8") from None


def _decoded(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except Base64Error:
        raise BadExchange("sent what is no Base64") from None


def _hmac(key: bytes, text: bytes, hash_name: str) -> bytes:
    return hmac.digest(key, text, hash_name)


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
