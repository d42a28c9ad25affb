"""``uprmc index serve``: run an index as a process of its own, beside a node or elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from uprmc.cli.arguments import from_pairs
from uprmc.cli.node_access import login_options, tls_options, with_options
from uprmc.config import VIEWS_DEFAULT, Settings, load
from uprmc.errors import ConfigError
from uprmc.login.credentials import credentials_from

# --- the other end of a pipe ----------------------------------------------------------------------


#: How long the process may take to end in order.
GRACE_S = 10.0

_EXIT_CODE = 1


class Lifeline:
    """Watches standard input, whose other end closes when the process ends that has started us.

    That happens however it ends, also by SIGKILL. The pipe is read in a thread of its own, from
    before anything else is imported; so neither a long start nor a busy reactor delays it.
    """

    def __init__(self, descriptor: int = 0, grace_s: float = GRACE_S) -> None:
        # Ends the process in order; it is called in the thread. ``None`` = there is nothing to be
        # put in order so far.
        self.stop: Callable[[], None] | None = None
        self._descriptor, self._grace_s = descriptor, grace_s
        threading.Thread(target=self._watch, name="uprmc-lifeline", daemon=True).start()

    def _watch(self) -> None:
        while os.read(self._descriptor, 4_096):
            pass
        if self.stop is not None:
            self.stop()
            time.sleep(self._grace_s)
        os._exit(_EXIT_CODE)


# --- the verb -------------------------------------------------------------------------------------


def _reaching(function: Any) -> Any:
    return with_options(function, [*tls_options(), *login_options()])


@click.command(name="serve")
@click.option(
    "--source",
    "sources",
    required=True,
    multiple=True,
    metavar="HOST:PORT",
    help="The upr listener of a node whose documents are indexed; repeat it for several nodes.",
)
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of designs and index files.",
)
@click.option("--views", metavar="HOST:PORT", help=f"Where to listen.  [default: {VIEWS_DEFAULT}]")
@click.option(
    "--listen-fd",
    type=int,
    hidden=True,
    help="A listening socket, from a node that ends standard input when it ends.",
)
@click.option(
    "--events-fd", type=int, hidden=True, help="A pipe to that node, which takes events from it."
)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings.")
@_reaching
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change any setting. Those of `index` and `log` count here, and `server.views`, "
    "`server.users`, `server.tls_cert`, `server.tls_key`, `server.unix_mode`.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def serve(
    sources: tuple[str, ...],
    data: Path,
    views: str | None,
    listen_fd: int | None,
    events_fd: int | None,
    config: Path | None,
    tls: bool,
    tls_ca: str | None,
    no_tls_verify: bool,
    user: str | None,
    password_file: str | None,
    changes: tuple[str, ...],
    debug: bool,
) -> int:
    """Index the documents of nodes, and answer queries over HTTP.

    When it is ready, it prints one line to standard output. The log goes to standard error.
    SIGTERM or SIGINT stops it in order.
    """
    given = from_pairs(changes)
    if views is not None:
        given["server.views"] = views

    def read_settings() -> Settings:
        return load(config, os.environ, given)

    if listen_fd is not None and views is not None:
        raise ConfigError("--listen-fd and --views: say one of them")
    lifeline = Lifeline() if listen_fd is not None else None
    from uprmc.cli.index_process import IndexProcess, source_nodes
    from uprmc.server.net.transport import install

    reactor = install()
    credentials = credentials_from(user, password_file)
    nodes = source_nodes(sources, tls, tls_ca, credentials, verify=not no_tls_verify)
    process = IndexProcess(reactor, read_settings, nodes, data, listen_fd, events_fd)
    if lifeline is not None:
        lifeline.stop = process.stop_from_thread
    return process.run()
