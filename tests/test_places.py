"""Where a node listens, as people write it, and what answers there in its place."""

from __future__ import annotations

import pytest

from uprmc.places import complete, parsed, several, stranger


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:11210", ("127.0.0.1", 11210, "")),
        ("node-1.example:1", ("node-1.example", 1, "")),
        ("[::1]:65535", ("::1", 65535, "")),
        ("unix:/run/uprmc/upr.sock", ("", 0, "/run/uprmc/upr.sock")),
    ],
)
def test_a_place_is_taken_apart(text: str, found: tuple[str, int, str]) -> None:
    assert parsed(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:x",
        "host:0",
        "host:65536",
        "host:-1",
        "host:\u0661",
        "ho st:1",
        "[host]:1]",
        "unix:",
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT, such as"):
        parsed(text)


def test_a_listener_may_have_any_free_port() -> None:
    assert parsed("host:0", least_port=0).port == 0


def test_several_places_stand_between_commas_each_once() -> None:
    assert several("a:1, [::1]:2,a:1") == ("a:1", "[::1]:2")
    with pytest.raises(ValueError, match=r"'x:' is none"):
        several("a:1,x:")


def test_a_host_alone_has_the_usual_port() -> None:
    hosts = ("localhost", "10.0.0.1", "[::1]", "::1", "db.example")
    completed = [f"{each}:11210" for each in ("localhost", "10.0.0.1", "[::1]", "[::1]")]
    assert [complete(host) for host in hosts] == [*completed, "db.example:11210"]
    assert several("a,b:1", 8092) == ("a:8092", "b:1")
    for text in ("", "11210", ":11210", "::1:1121", "a b", "a:"):
        with pytest.raises(ValueError, match=r"HOST:PORT|brackets"):
            complete(text)


def test_an_ipv6_address_needs_brackets() -> None:
    with pytest.raises(ValueError, match=r"in brackets: \[::1\]:11210"):
        parsed("::1:11210")


def test_tls_and_http_are_recognised_by_their_first_bytes() -> None:
    assert (
        stranger("h:1", b"\x15\x03\x03\0\2") == "the listener at h:1 speaks TLS: connect with TLS"
    )
    foreign = stranger("h:1", b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert foreign == (
        "an HTTP server answers at h:1, not an upr listener: name the node's upr listener"
    )
    assert stranger("h:1", b"\x80") == ""


@pytest.mark.parametrize(
    ("said", "meant"), [("10.0.0.1:7", "10.0.0.1:7"), ("0.0.0.0:7", "h:7"), ("[::]:7", "h:7")]
)
def test_our_http_listener_names_the_upr_listener(said: str, meant: str) -> None:
    answer = b"HTTP/1.1 400 Bad Request\r\n\r\nhttp=h:1 upr=%b x=y\n" % said.encode()
    assert stranger("h:1", answer).endswith(f"; this node's upr listener is {meant}")
