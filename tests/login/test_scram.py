"""SCRAM by the vectors of its RFCs, and against peers that break it."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.errors import ConfigError
from uprmc.login import scram
from uprmc.login.credentials import Credentials
from uprmc.login.exchange import PlainExchange, exchange_for
from uprmc.login.mechanisms import SCRAMS, LoginRefused, Mechanism, chosen, listed, mechanism_named
from uprmc.login.scram import (
    ITERATIONS_MAX,
    TURN_ITERATIONS,
    BadExchange,
    ClientExchange,
    ServerExchange,
    prepared,
    verifier_of,
)
from uprmc.login.users import HASH_NAMES, SALT_BYTES, Role, Users, new_user

_PENCIL = Credentials("user", "pencil")
#: RFC 5802 section 5, RFC 7677 section 3: hash, both nonces, salt, proof, the server's signature.
_VECTORS = {
    "sha1": (
        b"fyko+d2lbbFgONRv9qkxdawL",
        b"3rfcNHYJY1ZVvWVs7j",
        b"QSXCR+Q6sek8bf92",
        b"v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        b"rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    "sha256": (
        b"rOprNGfwEbeRWgbNEkqO",
        b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        b"W22ZaJ0SNY7soEsUEjb6gQ==",
        b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}


@pytest.mark.parametrize("hash_name", _VECTORS)
def test_both_sides_say_what_the_rfcs_say(hash_name: str) -> None:
    mine, its, salt, proof, signature = _VECTORS[hash_name]
    client = ClientExchange(_PENCIL, hash_name, mine)
    kept = verifier_of("pencil", b64decode(salt), 4096, hash_name)
    server = ServerExchange(hash_name, lambda _: kept, its)
    challenge = server.first(client.first())
    assert challenge == b"r=%b%b,s=%b,i=4096" % (mine, its, salt)
    answer = client.answer(challenge)
    assert answer == b"c=biws,r=%b%b,p=%b" % (mine, its, proof)
    steps = ClientExchange(_PENCIL, hash_name, mine).answer_in_turns(challenge)
    for _ in range(4096 // TURN_ITERATIONS):
        next(steps)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value == answer
    final = server.final(answer)
    assert final == b"v=" + signature
    client.finish(final)
    assert server.username == "user"


@given(
    st.sampled_from(SCRAMS),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
)
def test_any_name_and_password_that_are_the_same_on_both_sides_let_in(
    mechanism: Mechanism, text: str
) -> None:
    who = Credentials(text[:60], text[-60:])
    kept = verifier_of(who.password, b"salt", 4096, mechanism.hash_name)
    server = ServerExchange(mechanism.hash_name, lambda _: kept, b"b")
    # The Couchbase C++ client's nonces have blanks.
    client = exchange_for(who, mechanism, b"0xffffff8c 0x18 =")
    client.finish(server.final(client.answer(server.first(client.first()))))
    assert prepared(server.username) == prepared(who.username)


def _exchange() -> tuple[ClientExchange, ServerExchange]:
    kept = verifier_of("pencil", b"salt", 4096, "sha256")
    return ClientExchange(_PENCIL, "sha256", b"a"), ServerExchange("sha256", lambda _: kept, b"b")


def test_a_wrong_password_is_refused() -> None:
    _, server = _exchange()
    client = ClientExchange(Credentials("user", "pen"), "sha256", b"a")
    with pytest.raises(LoginRefused, match="wrong name or password"):
        server.final(client.answer(server.first(client.first())))


def test_a_proof_works_once_and_in_its_own_exchange_only() -> None:
    client, server = _exchange()
    proof = client.answer(server.first(client.first()))
    with pytest.raises(BadExchange):
        ServerExchange("sha256", lambda _: verifier_of("pencil", b"s", 4096, "sha256"), b"c").final(
            proof
        )
    server.final(proof)
    with pytest.raises(BadExchange):
        server.final(proof)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,r=a,n=user",
        b"p=tls-unique,,n=user,r=a",
        b"n,a=other,n=user,r=a",
        b"n,,n=us=er,r=a",
        b"n,,n=\xff,r=a",
        b"n,,n=" + b"x" * 5_000 + b",r=a",
        b"n,,m=future,n=user,r=a",
    ],
)
def test_a_first_message_that_is_none_is_refused(message: bytes) -> None:
    _, server = _exchange()
    with pytest.raises(BadExchange):
        server.first(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda proof: proof.replace(b"biws", b"eSws"),
        lambda proof: proof.replace(b"r=ab", b"r=ac"),
        lambda proof: proof[:-8],
        lambda proof: proof + b"!",
        lambda proof: b"",
    ],
)
def test_a_changed_proof_is_refused(change: object) -> None:
    client, server = _exchange()
    assert callable(change)
    with pytest.raises(LoginRefused):
        server.final(change(client.answer(server.first(client.first()))))


class _Recorder(ClientExchange):
    """A client that knows the password, and says what it likes in its proof."""

    def proof_of(self, challenge: bytes, binding: bytes, nonce: bytes) -> bytes:
        salt, iterations = self._asked(challenge)
        key = scram.salted("pencil", salt, iterations, self._hash_name)
        said = b"c=%b,r=%b" % (binding, nonce)
        client_key = scram._hmac(key, b"Client Key", self._hash_name)
        stored = hashlib.new(self._hash_name, client_key).digest()
        spoken = self._bare + b"," + challenge + b"," + said
        proof = scram._xor(client_key, scram._hmac(stored, spoken, self._hash_name))
        return said + b",p=" + b64encode(proof)


@pytest.mark.parametrize(
    ("binding", "nonce", "let_in"),
    [
        (b"biws", b"ab", True),
        (b"biws", b"a", False),
        (b"biws", b"b", False),
        (b"biws", b"abc", False),
        (b"biws", b"aB", False),
        (b"eSws", b"ab", False),
        (b"biwsYQ==", b"ab", False),
    ],
)
def test_a_proof_that_fits_what_it_says_must_say_this_exchanges_nonce_and_binding(
    binding: bytes, nonce: bytes, let_in: bool
) -> None:
    """The signature alone would be right: it covers what the client says, whatever that is."""
    client = _Recorder(_PENCIL, "sha256", b"a")
    kept = verifier_of("pencil", b"salt", 4096, "sha256")
    server = ServerExchange("sha256", lambda _: kept, b"b")
    proof = client.proof_of(server.first(client.first()), binding, nonce)
    if let_in:
        assert server.final(proof)
    else:
        with pytest.raises(BadExchange, match="another exchange"):
            server.final(proof)


@pytest.mark.parametrize("nonce", [b"bc", b"B", b"xb"])
def test_a_proof_that_was_overheard_fits_no_exchange_with_another_nonce(nonce: bytes) -> None:
    client, server = _exchange()
    proof = client.answer(server.first(client.first()))
    again = ServerExchange(
        "sha256", lambda _: verifier_of("pencil", b"salt", 4096, "sha256"), nonce
    )
    again.first(ClientExchange(Credentials("user", "pencil"), "sha256", b"a").first())
    with pytest.raises(BadExchange, match="another exchange"):
        again.final(proof)


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=a,s=c2FsdA==,i=4096",
        b"r=xb,s=c2FsdA==,i=4096",
        b"r=ab,s=!,i=4096",
        b"r=ab,s=c2FsdA==,i=1",
        b"r=ab,s=c2FsdA==,i=%d" % (ITERATIONS_MAX + 1),
        b"r=ab,s=c2FsdA==,i=2147483648",
        b"r=ab,s=c2FsdA==,i=-1",
        b"e=other-error",
    ],
)
def test_a_client_refuses_a_challenge_that_is_none(challenge: bytes) -> None:
    client, _ = _exchange()
    with pytest.raises(BadExchange):
        client.answer(challenge)


def test_a_client_notices_a_server_that_does_not_know_the_password() -> None:
    client, server = _exchange()
    client.answer(server.first(client.first()))
    for message in (b"", b"v=", b"v=" + b"A" * 44, b"Authenticated"):
        with pytest.raises(BadExchange):
            client.finish(message)


def test_the_strongest_mechanism_is_chosen_and_plain_only_where_nobody_listens() -> None:
    assert chosen(listed(plain=True), safe=False) == (Mechanism.SCRAM_SHA512, b"SCRAM-SHA512")
    assert chosen(b"PLAIN SCRAM-SHA-1", safe=True) == (Mechanism.SCRAM_SHA1, b"SCRAM-SHA-1")
    assert chosen(b"PLAIN", safe=True) == (Mechanism.PLAIN, b"PLAIN")
    with pytest.raises(LoginRefused, match="use TLS"):
        chosen(b"PLAIN", safe=False)
    with pytest.raises(LoginRefused, match="none of"):
        chosen(b"GSSAPI", safe=True)


def test_mechanisms_have_the_names_that_sdks_write() -> None:
    assert mechanism_named(b"scram-sha-256") is mechanism_named(b"SCRAM-SHA256")
    assert mechanism_named(b"SCRAM-SHA-256-PLUS") is None
    assert listed(plain=False) == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1"


def test_a_password_is_shown_nowhere() -> None:
    assert "pencil" not in repr(_PENCIL)
    for name, password in (("", "x"), ("x", ""), ("a\0", "x"), ("x" * 256, "x"), ("x", "y" * 1025)):
        with pytest.raises(ConfigError):
            Credentials(name, password)


def test_plain_says_name_and_password_and_answers_no_challenge() -> None:
    plain = PlainExchange(_PENCIL)
    assert plain.first() == b"\0user\0pencil"
    with pytest.raises(BadExchange):
        plain.answer(b"more")


# --- strangers ------------------------------------------------------------------------------------

_SECRET = bytes(range(32))


def _users(count: int, secret: bytes = _SECRET) -> Users:
    salts = [bytes([number]) * 16 for number in range(3)]
    many = [
        new_user(Credentials(f"user{number}", "pencil"), {Role.READ}, salts, 4096)
        for number in range(count)
    ]
    costly = [
        replace(
            user,
            verifiers={
                name: replace(kept, iterations=10_000) for name, kept in user.verifiers.items()
            },
        )
        for user in many[: count // 4]
    ]
    return Users([*costly, *many[count // 4 :]], secret)


def test_a_stranger_is_asked_what_a_user_may_be_asked_and_always_the_same() -> None:
    users, later = _users(8), _users(8)
    asked = []
    for number in range(400):
        found = [users.verifier(f"stranger{number}", name) for name in HASH_NAMES]
        assert found == [later.verifier(f"stranger{number}", name) for name in HASH_NAMES]
        assert len({kept.salt for kept in found}) == len(HASH_NAMES)
        assert {len(kept.salt) for kept in found} == {SALT_BYTES}
        (iterations,) = {kept.iterations for kept in found}
        asked.append(iterations)
        for name, kept in zip(HASH_NAMES, found, strict=True):
            mine = users.verifier("user1", name)
            sizes = [(len(each.stored_key), len(each.server_key)) for each in (kept, mine)]
            assert sizes[0] == sizes[1]
    assert set(asked) == {4096, 10_000}
    assert 60 < asked.count(10_000) < 140  # a quarter, as of the users
    other = _users(8, bytes(32))
    assert other.verifier("stranger1", "sha1").salt != users.verifier("stranger1", "sha1").salt
    assert Users([], _SECRET).verifier("x", "sha1").iterations == 4096


def test_names_that_are_one_for_users_are_one_for_strangers() -> None:
    users = _users(1)
    assert users.verifier("\uff41nn", "sha256") == users.verifier("ann", "sha256")
