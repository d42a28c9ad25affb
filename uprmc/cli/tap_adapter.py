"""``uprmc tap-adapter``: serve TAP clients from a UPR or DCP producer somewhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from uprmc import units
from uprmc.cli.arguments import PLACE, Read, from_pairs
from uprmc.config import GIB, KIB, Settings, load

#: Option -> the setting it stands for.
_SHORTHANDS = {
    "on_rollback": "tap.rollback",
    "tls_cert": "server.tls_cert",
    "tls_key": "server.tls_key",
    "upstream_ca": "upr.dial_ca",
    "upstream_user": "upr.dial_user",
    "upstream_password_file": "upr.dial_password_file",
}


@click.command(name="tap-adapter")
@click.option(
    "--upstream",
    required=True,
    type=PLACE,
    help="The server whose data is served: its UPR or DCP port.",
)
@click.option(
    "--listen", required=True, metavar="HOST:PORT", help="Address on which TAP clients connect."
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="Keep the positions of registered clients in this file.  [default: in memory]",
)
@click.option(
    "--on-rollback",
    type=click.Choice(["rewind", "restart"]),
    help="After a rollback, send a client corrections (rewind) or everything from the beginning "
    "(restart).  [default: rewind]",
)
@click.option(
    "--buffer",
    "buffer_bytes",
    type=Read(units.size, "SIZE", 64 * KIB, GIB, " bytes"),
    default="1M", show_default=True,
              help="Bytes received in advance for each client.")  # fmt: skip
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings.")
@click.option("--tls-cert", metavar="FILE", help="Serve TLS with this certificate chain.")
@click.option("--tls-key", metavar="FILE", help="Private key of --tls-cert.")
@click.option(
    "--upstream-ca",
    metavar="FILE",
    help="Use TLS to the upstream, and trust the authority in this PEM file.",
)
@click.option("--upstream-user", metavar="NAME", help="Log in to the upstream as this user.")
@click.option(
    "--upstream-password-file",
    metavar="FILE",
    help="The first line of this file is that user's password.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change any setting, such as tap.names=50.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def tap_adapter(
    upstream: str,
    listen: str,
    state: Path | None,
    buffer_bytes: int,
    config: Path | None,
    changes: tuple[str, ...],
    debug: bool,
    **options: Any,
) -> int:
    """Serve TAP clients from a server that speaks only UPR or DCP.

    A node of uprmc needs no adapter: its listeners speak TAP themselves. When the adapter is ready
    for clients, it prints one line to standard output. The log goes to standard error. SIGTERM,
    SIGINT or SIGUSR1 stops the adapter in order; SIGHUP makes it read the log level and the TLS
    files again.
    """
    shorthands = {_SHORTHANDS[name]: text for name, text in options.items() if text is not None}
    given = {**from_pairs(changes), **shorthands}

    def read_settings() -> Settings:
        return load(config, os.environ, given)

    read_settings()  # what is wrong is said before anything begins

    # The reactor and all that hangs on it are imported here, so that other verbs start fast.
    from uprmc.server.net.transport import install

    reactor = install()

    from uprmc.cli.tap_process import TapProcess

    return TapProcess(reactor, read_settings, upstream, listen, state, buffer_bytes).run()
