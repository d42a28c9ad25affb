"""Where the nodes are and how they are to be spoken to: plain values that travel to every worker.

A password is looked up only where a connection is made: what Spark pickles, shows in a plan or logs
holds the name of a file or of an environment variable, if the user chose one of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from uprmc.columnar.errors import BadOption
from uprmc.places import Place, parsed


@dataclass(frozen=True)
class Tls:
    """How to speak TLS: whom to trust, and what to show for oneself."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True


@dataclass(frozen=True)
class Access:
    """See the module docstring.

    Attributes:
        servers: ``upr`` listeners as HOST:PORT; one of them is enough to find the others.
        username, password, password_file, password_env: whom to log in as; without a name nobody
            logs in.
        tls: ``None`` = no TLS.
        connect_timeout_s: for a connection, TLS and login included.
        read_timeout_s: a node that says nothing for so long is taken for dead.
        retries: how often in a row a lost connection, or a node that is busy, is tried again.
        retry_backoff_s: the wait before the first such attempt; it doubles up to 5 s.
        flow_control_bytes: how much a node may send ahead of what was taken.
        client_id: what the nodes' statistics call this job.
        bucket: selected after login; empty = the only one.
        terms: by vBucket, the highest term that is known from elsewhere, such as the last backup: a
            node that has a lower one was deposed.
    """

    servers: tuple[str, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    password_env: str | None = None
    tls: Tls | None = None
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 60.0
    retries: int = 5
    retry_backoff_s: float = 0.1
    flow_control_bytes: int = 10 * 1024 * 1024
    client_id: str = ""
    bucket: str = ""
    terms: Mapping[int, int] = field(default_factory=dict, hash=False)

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
