"""Where the nodes are and how they are to be spoken to: plain values that travel to every worker.

A password is looked up only where a connection is made: what Spark pickles, shows in a plan or logs
holds the name of a file or of an environment variable, if the user chose one of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from uprmc import places, units
from uprmc.columnar.errors import BadOption
from uprmc.columnar.option import option
from uprmc.places import Place, parsed

#: See `Access.copies`.
Copies = Literal["none", "missing", "own"]


@dataclass(frozen=True)
class Tls:
    """How to speak TLS: which certificates to trust, and which to show."""

    ca_file: str | None = option(
        "tlsCaFile",
        units.text,
        "",
        "File with the certificates to trust instead of the system's (PEM).",
    )
    cert_file: str | None = option(
        "tlsCertFile", units.text, "", "File with the certificate to present (PEM)."
    )
    key_file: str | None = option(
        "tlsKeyFile", units.text, "", "File with the private key of that certificate (PEM)."
    )
    verify: bool = option(
        "tlsVerify", units.switch, "true", "Check the node's certificate and host name."
    )


@dataclass(frozen=True)
class Access:
    """How to reach and address the nodes."""

    servers: tuple[str, ...] = option(
        "servers",
        places.several,
        "",
        "HOST:PORT of upr listeners, separated by commas. One is enough if its cluster map "
        "names the others.",
        absent=(),
        aliases=("server", "path"),
    )
    username: str | None = option(
        "username", units.text, "", "Name of the user to log in as.", aliases=("user",)
    )
    password: str | None = option(
        "password",
        units.text,
        "",
        "Password of that user. Spark shows options in its plans, so prefer passwordFile or "
        "passwordEnv.",
        secret=True,
    )
    password_file: str | None = option(
        "passwordFile", units.text, "", "File whose first line is the password."
    )
    password_env: str | None = option(
        "passwordEnv", units.text, "", "Name of an environment variable that holds the password."
    )
    tls: Tls | None = None  # ``None`` = no TLS
    connect_timeout_s: float = option(
        "connectTimeout",
        units.seconds,
        "5",
        "Time limit for one attempt to connect, including TLS and login.",
        least=0.01,
        most=3600,
    )
    read_timeout_s: float = option(
        "readTimeout",
        units.seconds,
        "60",
        "A node that sends nothing for this long counts as lost.",
        least=0.1,
    )
    retries: int = option(
        "retries",
        units.whole,
        "5",
        "How many attempts in a row to reach a lost or busy node may fail.",
        least=0,
        most=1_000_000,
    )
    retry_backoff_s: float = option(
        "retryBackoff",
        units.seconds,
        "0.1",
        "Wait before the first of these attempts. It doubles each time, up to 5 s.",
        least=0,
        most=60,
    )
    flow_control_bytes: int = option(
        "flowControlBytes",
        units.size,
        "10m",
        "How many bytes a node may send before they are acknowledged, on each connection.",
        least=65_536,
        most=2**30,
    )
    client_id: str = option(
        "clientId", units.text, "", "Name of this job in the nodes' statistics.", absent=""
    )
    bucket: str = option(
        "bucket",
        units.text,
        "",
        "Name of the bucket to select. A node of uprmc has only one.",
        absent="",
    )
    # by vBucket, the highest term that is known from elsewhere, such as the last backup: a node
    # that has a lower one was deposed.
    terms: Mapping[int, int] = field(default_factory=dict, hash=False)
    # how long a lost or busy node is tried again, in place of `retries`: for tasks of a driver that
    # has reached the nodes before, which restart if they are away.
    patience_s: float | None = None
    # which replicas of `servers` are read: none; those of vBuckets that are active nowhere; or all,
    # before what is active at other nodes.
    copies: Copies = "none"
    spare_leases: int = 0  # at each node so many must stay free for others when a lease is acquired

    def secret(self) -> str:
        """Return the password, from wherever it is kept.

        Raises:
            BadOption: the file cannot be read, or there is no such variable.
        """
        if self.password is not None:
            return self.password
        if self.password_file is not None:
            try:
                text = Path(self.password_file).read_text(encoding="utf-8")
                return text.partition("\n")[0].rstrip("\r")
            except (OSError, UnicodeError) as error:
                why = getattr(error, "strerror", None) or error
                raise BadOption(f"passwordFile={self.password_file}: {why}") from None
        if self.password_env is not None:
            found = os.environ.get(self.password_env)
            if found is None:
                raise BadOption(f"passwordEnv={self.password_env}: there is no such variable here")
            return found
        return ""


def parsed_place(place: str) -> Place:
    """Return a place, taken apart.

    Raises:
        BadOption: it is none.
    """
    try:
        return parsed(place)
    except ValueError as error:
        raise BadOption(f"servers: {place!r} is no node: say {error}") from None
