"""``uprmc serve``: run a node until it is told to stop."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from uprmc.cli.arguments import PLACE
from uprmc.cli.memcached_options import ServeCommand, add_options, taken_from
from uprmc.client.connection import NodeConnection
from uprmc.config import Loaded, Settings, load_with_origins
from uprmc.errors import CommandError, ConfigError, UprmcError
from uprmc.login.credentials import credentials_from
from uprmc.storage.directory import DEFAULT_VBUCKETS
from uprmc.storage.lmdb_files import DATA_FILE

#: Option -> the setting it stands for.
_SHORTHANDS = {
    "data": "storage.data",
    "memcached": "server.memcached",
    "upr": "server.upr",
    "http": "server.http",
    "views": "server.views",
    "vbuckets": "engine.vbuckets",
    "memory": "memory.quota",
    "sync": "flush.sync",
    "start_empty": "storage.start_empty",
    "tls_cert": "server.tls_cert",
    "tls_key": "server.tls_key",
}

#: How long a source may take to say how many vBuckets it has.
_ASKING_S = 5.0

#: In the order of the ready line.
_LISTENERS = ("memcached", "upr", "http", "views")


@click.command(cls=ServeCommand)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings.")
@click.option("--data", metavar="DIR", help="Data directory.  [default: ./uprmc-data]")
@click.option("--memcached", metavar="HOST:PORT", help="Listener for memcached clients.")
@click.option("--upr", metavar="HOST:PORT", help="Listener for UPR, TAP and vBucket-aware clients.")
@click.option("--http", metavar="HOST:PORT", help="Listener for health and metrics, or 'off'.")
@click.option("--views", metavar="HOST:PORT", help="Listener for views of the index, or 'off'.")
@click.option(
    "--start-empty",
    is_flag=True,
    default=None,
    help="Start with nothing although the data directory was used before and its data are gone.",
)
@click.option(
    "--vbuckets", type=int, metavar="N", help="Number of vBuckets in a new data directory."
)
@click.option("--memory", metavar="SIZE", help="Memory quota, such as 512M or 2G.")
@click.option(
    "--sync/--no-sync", default=None, help="Make each commit wait for the device (fsync)."
)
@click.option("--tls-cert", metavar="FILE", help="Serve TLS with this certificate chain.")
@click.option("--tls-key", metavar="FILE", help="Private key of --tls-cert.")
@click.option(
    "--source",
    type=PLACE,
    help="Start a new data directory as a replica of this node.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change any setting; see 'uprmc settings'.",
)
@add_options
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def serve(
    config: Path | None,
    changes: tuple[str, ...],
    source: str | None,
    debug: bool,
    **options: Any,
) -> int:
    """Run a node in the foreground.

    When the node is ready for clients, it prints one line to standard output. The log goes to
    standard error. SIGTERM, SIGINT or SIGUSR1 stops the node in order; SIGHUP makes it read the
    log level and the TLS files again.
    """
    given, names = given_by_options(changes, options)
    return _Server(lambda: load_with_origins(config, os.environ, given, names), source).run()


def given_by_options(
    changes: tuple[str, ...], options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return setting -> value, and setting -> the option that says so."""
    of_memcached = taken_from(options)
    own = {name: value for name, value in options.items() if value is not None}
    said = [
        *((setting, value, "--set") for setting, value in from_pairs(changes).items()),
        *((setting, value, option) for setting, (value, option) in of_memcached.items()),
        *((_SHORTHANDS[name], value, f"--{name.replace('_', '-')}") for name, value in own.items()),
    ]
    given: dict[str, Any] = {}
    names: dict[str, str] = {}
    for setting, value, option in said:
        if setting in given:
            raise ConfigError(f"{names[setting]} and {option} both say {setting}: say one of them")
        given[setting], names[setting] = value, option
    return given, names


def from_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return what ``--set`` options say; raises `ConfigError` for one that says nothing."""
    changes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair!r}: say --set section.name=value")
        if name.strip() in changes:
            raise ConfigError(f"--set {name.strip()} is given twice: say it once")
        changes[name.strip()] = value.strip()
    return changes


def count_at(source: str, settings: Settings) -> int:
    """Return how many vBuckets a source has, 0 = it cannot be asked, and says so itself later."""
    upr = settings.upr
    try:
        tls = ssl.create_default_context(cafile=upr.dial_ca) if upr.dial_ca else None
        who = credentials_from(upr.dial_user, upr.dial_password_file)
        with NodeConnection(source, _ASKING_S, tls, who) as connection:
            return connection.vbuckets()
    except (click.ClickException, UprmcError, OSError, ValueError):
        return 0


class _Server:
    """One node and the process's reactor."""

    def __init__(self, read: Callable[[], Loaded], source: str | None) -> None:
        settings, origins = read()
        from uprmc.server import allocator

        allocator.keep_little()
        # The reactor and all that hangs on it are imported here, so that other verbs start fast.
        from uprmc.server.reactor import install

        self._reactor: Any = install()

        from uprmc.cli.progress import WarmupProgress
        from uprmc.cli.signals import heed_signals
        from uprmc.core.form import NOTICE
        from uprmc.server.log import Log, start_logging
        from uprmc.server.node import Node
        from uprmc.server.service_manager import ServiceManager

        heed_signals(self._reactor, lambda: read().settings, self._reload, Log("node"))
        start_logging(settings.log)
        if NOTICE:
            Log("node").warn("core_interpreted", reason=NOTICE)
        self._count = count_at(source, settings) if source else 0
        new = not (Path(settings.storage.data) / DATA_FILE).exists()
        if new:  # nothing is made before it is known that it can follow
            self._check_count(source, settings.engine.vbuckets or DEFAULT_VBUCKETS)
        self._node = Node(self._reactor, settings)
        self._node.origins = origins
        self._node.on_taken = self._end_with
        self._progress = WarmupProgress(self._reactor, self._node.warmup)
        self._manager = ServiceManager(self._reactor, os.environ)
        self._source = source
        self._error: BaseException | None = None

    def run(self) -> int:
        """Serve until stopped; returns the exit code or raises what went wrong."""
        self._reactor.callWhenRunning(self._start)
        self._reactor.addSystemEventTrigger("before", "shutdown", self._stop)
        self._reactor.run()
        if self._error is not None:
            raise self._error
        return 0

    def _start(self) -> None:
        self._progress.start()
        self._manager.starting(self._progress.text)
        self._node.start().addCallback(self._follow).addCallbacks(self._ready, self._failed)

    def _follow(self, _: object) -> None:
        if self._source is None:
            return
        try:
            if self._node.is_new:
                self._check_count(self._source, self._node.settings.engine.vbuckets)
            self._node.follow_if_new(self._source)
        except CommandError as error:
            raise ConfigError(f"--source: {error}") from None

    def _check_count(self, source: str | None, own: int) -> None:
        """Refuse to follow a node with another number of vBuckets; raises `ConfigError`."""
        if self._count not in (0, own):
            raise ConfigError(
                f"--source: {source} has {self._count} vBuckets and this node {own}: "
                f"say --vbuckets {self._count} with a new data directory"
            )

    def _ready(self, _: object) -> None:
        self._progress.stop()
        places = sorted_addresses(self._node.addresses())
        words = " ".join(f"{name}={place}" for name, place in places)
        sys.stdout.write(f"uprmc ready {words} pid={os.getpid()}\n")
        sys.stdout.flush()
        self._manager.ready(f"Serving {words}")

    def _failed(self, failure: Any) -> None:
        self._end_with(failure.value)

    def _end_with(self, error: BaseException) -> None:
        self._error = self._error or error
        if self._reactor.running:
            self._reactor.stop()

    def _reload(self, settings: Settings) -> None:
        self._manager.reloading()
        try:
            self._node.reload(settings)
        finally:
            self._manager.reloaded()

    def _stop(self) -> Any:
        self._progress.stop()
        self._manager.stopping(lambda: "Writing accepted changes to disk")
        return self._node.stop().addErrback(self._note_failure).addBoth(self._end)

    def _end(self, _: object) -> None:
        self._manager.close()

    def _note_failure(self, failure: Any) -> None:
        self._error = self._error or failure.value


def sorted_addresses(addresses: dict[str, str]) -> list[tuple[str, str]]:
    """Return (listener, place) in the order of the ready line; a listener that is off says so."""
    return [(name, addresses.get(name, "off")) for name in _LISTENERS]
