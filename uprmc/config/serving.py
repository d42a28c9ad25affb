"""Settings of listeners, of requests for keys and values, and of the log."""

from __future__ import annotations

import re
from dataclasses import dataclass

from uprmc.config.declaring import setting
from uprmc.config.sizes import FRAME_MAX_BYTES, GIB, ITEM_LIMIT_MAX_BYTES, KIB, MIB
from uprmc.errors import ConfigError

#: What connections may hold, all together, when nobody sets it.
BUFFER_BYTES = 256 * MIB

#: Where a node listens for views when nobody says where.
VIEWS_DEFAULT = "127.0.0.1:8092"

#: Permissions of a unix socket when nobody sets them.
UNIX_MODE = 0o700


def unix_mode(text: str, setting: str) -> int:
    """Read permissions in octal; raises `ConfigError`."""
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ConfigError(f"{setting}: {text!r} are no permissions in octal: say 700, or 770")
    return int(text, 8)


#: Value of ``server.views`` that means this address, or none if another process has it.
VIEWS_AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Listeners and connections."""

    memcached: str = setting(
        "127.0.0.1:11211",
        "address",
        "Listener for memcached clients: HOST:PORT, several of them separated by commas, "
        "unix:/path, or a Twisted endpoint.",
    )
    upr: str = setting(
        "127.0.0.1:11210",
        "address",
        "Listener for UPR, TAP and vBucket-aware clients; it uses the vBucket in the request.",
    )
    http: str = setting(
        "127.0.0.1:8091",
        "address",
        "Listener for health checks, status and metrics; 'off' switches it off.",
    )
    views: str = setting(
        VIEWS_AUTO,
        "address",
        "Listener for design documents and queries of the index: HOST:PORT; 'off' switches it "
        f"off; 'auto' is {VIEWS_DEFAULT}, or off if that address is in use.",
    )
    tls_cert: str = setting(
        "", "path", "PEM certificate chain; with tls_key it turns on TLS for all listeners."
    )
    tls_key: str = setting("", "path", "PEM private key that belongs to tls_cert.")
    http_tls: bool = setting(
        True,
        "yes/no",
        "With tls_cert, the listeners http and views speak HTTPS; 'no' leaves them at HTTP, for a "
        "proxy on the same machine that adds TLS.",
    )
    http_hosts: str = setting(
        "",
        "names",
        "Names, separated by commas, by which clients may call the listeners http and views, "
        "besides addresses, localhost and the name of this machine; '*' = any. A request whose "
        "header Host has another one gets 403: it may come from a web page of elsewhere.",
    )
    users: str = setting(
        "",
        "path",
        "File of users, made by 'uprmc user add'; with it everybody has to log in, on all "
        "listeners.",
    )
    login_timeout_s: float = setting(
        60.0,
        "seconds",
        "Close a connection that has not finished its TLS handshake, or that has not logged in to "
        "a node with users, for this long.",
        1,
        3_600,
    )
    max_connections: int = setting(
        10_000,
        "connections",
        "Connections above this limit get an error and are closed.",
        1,
        1_000_000,
    )
    buffer_bytes: int = setting(
        BUFFER_BYTES,
        "bytes",
        "Limit for incomplete requests and unread replies of all connections; above it "
        "the oldest are closed.",
        4 * MIB,
        1_024 * GIB,
    )
    idle_timeout_s: float = setting(
        0.0,
        "seconds",
        "Close a connection that transfers no bytes for this long; 0 = never.",
        0,
        86_400,
    )
    listen_backlog: int = setting(1_024, "connections", "Length of the accept queue.", 1, 65_535)
    unix_mode: str = setting(
        f"{UNIX_MODE:o}",
        "permissions",
        "Who may connect to listeners that are unix sockets, in octal: 700 is the node's own user, "
        "770 its group, too. An address such as unix:/path:mode=770 says so for itself.",
    )


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits of answers over HTTP that have no end."""

    change_readers: int = setting(
        16, "readers", "Readers of /changes above this limit get 503; 0 = none may read.", 0, 1_000
    )
    event_readers: int = setting(
        64,
        "readers",
        "Readers of /events as server-sent events above this limit get 503; 0 = none may read.",
        0,
        1_000,
    )
    viewers: int = setting(
        32, "pages", "Open pages (readers of /live) above this limit get 503; 0 = none.", 0, 1_000
    )
    reader_buffer_bytes: int = setting(
        128 * KIB,
        "bytes",
        "What the node's streams may be ahead of a reader of /changes.",
        16 * KIB,
        64 * MIB,
    )
    reader_timeout_s: float = setting(
        60.0,
        "seconds",
        "Disconnect a reader that leaves unread what was sent, for this long.",
        1,
        3_600,
    )

    @property
    def readers(self) -> int:
        """How many readers there may be of all kinds together."""
        return self.change_readers + self.event_readers + self.viewers

    @property
    def stream_files(self) -> int:
        """How many descriptors streams of the node to its own readers of changes take."""
        return 2 * self.change_readers


@dataclass(frozen=True, slots=True)
class KvSettings:
    """Limits of one client conversation."""

    max_item_bytes: int = setting(
        1 * MIB,
        "bytes",
        "Largest document: key, value and about 50 bytes of metadata.",
        1 * KIB,
        ITEM_LIMIT_MAX_BYTES,
    )
    max_frame_bytes: int = setting(
        FRAME_MAX_BYTES,
        "bytes",
        "Close a connection that announces a larger frame; smaller ones are read and refused.",
        2 * MIB,
        2 * GIB,
    )
    max_line_bytes: int = setting(
        2_048,
        "bytes",
        "Close a connection that sends a longer text line, except get and gat.",
        512,
        64 * KIB,
    )
    max_unsent_bytes: int = setting(
        1 * MIB,
        "bytes",
        "Stop reading requests from a client that has this much unread output.",
        64 * KIB,
        1 * GIB,
    )
    max_listed_keys: int = setting(
        10_000,
        "keys",
        "Most keys that GET_KEYS returns, or that one OBSERVE may name.",
        1,
        100_000,
    )
    persistence_timeout_s: float = setting(
        30.0, "seconds", "Longest time that SEQNO_PERSISTENCE waits before it fails.", 0.1, 3_600
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What standard error says."""

    level: str = setting("info", "debug|info|warn|error", "Least important level that is shown.")
    format: str = setting(
        "text", "text|json", "One line per event: text for people, json for programs."
    )
    audit: str = setting(
        "", "path", "File for one line of JSON per login, command for managers and refusal."
    )
