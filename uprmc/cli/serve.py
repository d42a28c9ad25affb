"""``uprmc serve``: run a node until it is told to stop. It takes options of memcached's, too."""

from __future__ import annotations

import os
import re
import ssl
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from uprmc.cli.arguments import PLACE, from_pairs
from uprmc.client.connection import NodeConnection
from uprmc.config import Loaded, Settings, load_with_origins
from uprmc.errors import CommandError, ConfigError, UprmcError
from uprmc.login.credentials import credentials_from
from uprmc.storage.directory import DEFAULT_VBUCKETS
from uprmc.storage.lmdb_files import DATA_FILE

# --- options of memcached's -----------------------------------------------------------------------
# Every option has one row in `MEANT`, `IGNORED` or `ADVICE`.


if TYPE_CHECKING:
    from rich.progress import Progress

    from uprmc.engine.warmup import Warmup

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PORT = 11211
_HOST = "127.0.0.1"


class _Meaning(NamedTuple):
    """An option that stands for a setting: its value goes through `text_of`."""

    setting: str
    metavar: str
    help: str
    text_of: Callable[[str], str] = str


def _megabytes(text: str) -> str:
    return f"{text}M" if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else text


MEANT = {
    "-m": _Meaning(
        "memory.quota", "MB", "Memory quota in megabytes, or a size such as 2G.", _megabytes
    ),
    "-c": _Meaning("server.max_connections", "N", "Most connections at the same time."),
    "-a": _Meaning(
        "server.unix_mode", "MODE", "Permissions of unix sockets, in octal, such as 770."
    ),
    "-b": _Meaning("server.listen_backlog", "N", "Length of the accept queue."),
    "-I": _Meaning("kv.max_item_bytes", "SIZE", "Size of the largest document, such as 2m."),
}

#: Understood, with no effect; why.
IGNORED = {
    "-t": "one thread serves all connections",
    "-R": "a turn of the server has its own limit",
    "-f": "there are no slab classes",
    "-n": "there are no slab classes",
}

ADVICE = {
    "-d": "it stays in the foreground; let systemd start it, or say: nohup uprmc serve ... &",
    "-P": "the ready line names the pid; systemd needs no pid file",
    "-u": "start it as that user, with User= of systemd or with: runuser -u USER -- uprmc serve",
    "-S": "say --set server.users=FILE; 'uprmc user add' makes the file",
    "-Y": "say --set server.users=FILE; 'uprmc user add' makes the file",
    "-Z": "say --tls-cert FILE --tls-key FILE",
    "-o": "'uprmc settings' lists what --set can change",
    "-M": "nothing is evicted for good: documents stay on disk",
    "-k": "memory is not locked; let systemd limit swap with MemorySwapMax=0",
    "-L": "large pages are the system's affair (transparent_hugepage)",
    "-r": "let systemd set LimitCORE=infinity, or say 'ulimit -c unlimited' before",
    "-B": "text, meta and binary commands share one port",
    "-A": "send SIGTERM to stop it",
    "-C": "CAS cannot be switched off",
    "-D": "there are no statistics by prefix",
    "-F": "flush_all cannot be switched off; roles of users can forbid it",
    "-W": "there is no 'watch' command; say 'uprmc tail'",
    "-X": "dumps cannot be switched off; roles of users can forbid them",
    "-e": "data stay in --data over restarts",
    "-N": "NUMA nodes are chosen by: numactl uprmc serve ...",
}


def add_options(function: _Function) -> _Function:
    """Give a command those of memcached's options that have an effect, and those without."""
    made = [
        click.option("-p", "mc_port", type=int, metavar="PORT", help="Port for memcached clients."),
        click.option(
            "-l",
            "mc_host",
            metavar="ADDR",
            multiple=True,
            help="Address for memcached clients; several add up, also with commas between.",
        ),
        click.option("-s", "mc_socket", metavar="PATH", help="Unix socket for memcached clients."),
        *(
            click.option(name, f"mc_{name[1]}", metavar=meaning.metavar, help=meaning.help)
            for name, meaning in MEANT.items()
        ),
        click.option("-U", "mc_udp", type=int, hidden=True),
        click.option("-v", "mc_verbose", count=True, help="Log more (log.level=debug)."),
        *(click.option(name, f"mc_{name[1]}", hidden=True) for name in IGNORED),
    ]
    decorated: Any = function
    for option in reversed(made):
        decorated = option(decorated)
    typed: _Function = decorated
    return typed


def taken_from(options: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Take memcached's options out of `options`; return setting -> (its value, the option).

    Raises:
        ConfigError: one of them cannot be meant.
    """
    given = {name[3:]: options.pop(name) for name in list(options) if name.startswith("mc_")}
    if given["udp"]:
        raise ConfigError("-U: UDP is not served; leave it out, or say -U 0")
    found = {
        meaning.setting: (meaning.text_of(given[name[1]]), name)
        for name, meaning in MEANT.items()
        if given[name[1]] is not None
    }
    if given["verbose"]:
        found["log.level"] = ("debug", "-v")
    for name, why in IGNORED.items():
        if given[name[1]] is not None:
            click.echo(f"uprmc: {name} has no effect: {why}", err=True)
    return {**found, **_listener(given, options.get("memcached"))}


def _listener(given: dict[str, Any], memcached: str | None) -> dict[str, tuple[str, str]]:
    port, hosts, path = given["port"], given["host"], given["socket"]
    ways = {"-p or -l": port is not None or bool(hosts), "-s": path is not None}
    chosen = [name for name, wanted in ways.items() if wanted]
    if len(chosen) + (memcached is not None) > 1:
        others = " and ".join([*chosen, *(["--memcached"] if memcached is not None else [])])
        raise ConfigError(f"{others} name the same listener: say one of them")
    if not chosen:
        return {}
    if path is not None:
        escaped = path.replace(":", "\\:")
        return {"server.memcached": (f"unix:{escaped}", "-s")}
    if not hosts:
        return {"server.memcached": (f"{_HOST}:{port}", "-p")}
    places = dict.fromkeys(_place(host, port) for each in hosts for host in each.split(","))
    return {"server.memcached": (",".join(places), "-l")}


def _place(host: str, port: int | None) -> str:
    named = re.fullmatch(r"(\[[^\]]*\]|[^:]*):(\d+)", host)
    if named and port is not None and int(named[2]) != port:
        raise ConfigError(f"-l {host} and -p {port} name two ports: say one of them")
    if named:
        return host
    bare = host.strip("[]")
    return f"{f'[{bare}]' if ':' in bare else bare}:{_PORT if port is None else port}"


def _says_one_thing(option: click.Parameter) -> bool:
    """Tell whether an option contradicts itself if it is given twice."""
    if not isinstance(option, click.Option) or option.multiple or option.count:
        return False
    return not option.is_flag or bool(option.secondary_opts)


class ServeCommand(click.Command):
    """A command that answers memcached's other options with advice, and wants each option once."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            _, _, given = self.make_parser(ctx).parse_args(list(args))
            for each, times in Counter(given).items():
                if times > 1 and _says_one_thing(each):
                    raise click.UsageError(
                        f"{each.opts[0]} is given {times} times: say it once", ctx
                    )
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            advice = ADVICE.get(error.option_name)
            if advice is None:
                if error.option_name.startswith("--"):
                    raise
                advice = "'uprmc serve --help' lists the options"
            raise click.UsageError(f"there is no {error.option_name}: {advice}", ctx) from None


# --- the verb -------------------------------------------------------------------------------------


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
        from uprmc.server import system

        system.keep_little_memory()
        # The reactor and all that hangs on it are imported here, so that other verbs start fast.
        from uprmc.server.net.transport import install

        self._reactor: Any = install()

        from uprmc.cli.process import Process
        from uprmc.core.form import NOTICE
        from uprmc.server.log import Log, start_logging
        from uprmc.server.node import Node
        from uprmc.server.system import ServiceManager

        self._process = Process(self._reactor)
        self._process.heed_signals(lambda: read().settings, self._reload, Log("node"))
        start_logging(settings.log)
        if NOTICE:
            Log("node").warn("core_interpreted", reason=NOTICE)
        self._count = count_at(source, settings) if source else 0
        new = not (Path(settings.storage.data) / DATA_FILE).exists()
        if new:  # nothing is made before it is known that it can follow
            self._check_count(source, settings.engine.vbuckets or DEFAULT_VBUCKETS)
        self._node = Node(self._reactor, settings)
        self._node.origins = origins
        self._node.on_taken = self._process.fail
        self._progress = _WarmupProgress(self._reactor, self._node.warmup)
        self._manager = ServiceManager(self._reactor, os.environ)
        self._source = source

    def run(self) -> int:
        """Serve until stopped; returns the exit code or raises what went wrong."""
        return self._process.run(self._start, self._stop)

    def _start(self) -> None:
        self._progress.start()
        self._manager.starting(self._progress.text)
        self._node.start().addCallback(self._follow).addCallbacks(self._ready, self._process.failed)

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

    def _reload(self, settings: Settings) -> None:
        self._manager.reloading()
        try:
            self._node.reload(settings)
        finally:
            self._manager.reloaded()

    def _stop(self) -> Any:
        self._progress.stop()
        self._manager.stopping(lambda: "Writing accepted changes to disk")
        return self._node.stop().addErrback(self._note).addBoth(lambda _: self._manager.close())

    def _note(self, failure: Any) -> None:
        self._process.note(failure.value)


def sorted_addresses(addresses: dict[str, str]) -> list[tuple[str, str]]:
    """Return (listener, place) in the order of the ready line; a listener that is off says so."""
    return [(name, addresses.get(name, "off")) for name in _LISTENERS]


# --- how warm-up gets on --------------------------------------------------------------------------

_TERMINAL_REFRESH_S = 0.2
_LOG_EVERY_S = 5.0


class _WarmupProgress:
    """Watches one warm-up: with a bar on a terminal, elsewhere with lines of the log."""

    def __init__(self, reactor: Any, warmup: Warmup) -> None:
        from twisted.internet.task import LoopingCall

        self._warmup = warmup
        self._bar: Progress | None = None
        self._task: Any = None
        self._call = LoopingCall(self._show)
        self._call.clock = reactor
        self._terminal = sys.stderr.isatty()

    def start(self) -> None:
        """Begin to show; a warm-up shorter than the first interval shows nothing."""
        self._call.start(_TERMINAL_REFRESH_S if self._terminal else _LOG_EVERY_S, now=False)

    def stop(self) -> None:
        """Cease; harmless twice."""
        if self._call.running:
            self._call.stop()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def text(self) -> str:
        """Return how far it is, in words."""
        warmup = self._warmup
        done = warmup.values or warmup.keys
        return f"Warming up: {warmup.state.value}, {done} of {warmup.records} documents"

    def _show(self) -> None:
        warmup = self._warmup
        if self._terminal:
            self._draw()
            return
        from uprmc.server.log import Log

        Log("warmup").info(
            "progress", state=warmup.state.value, keys=warmup.keys, of=warmup.records
        )

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        warmup = self._warmup
        if self._bar is None:
            self._bar = Progress(
                TextColumn("warming up: {task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        done = warmup.values or warmup.keys
        self._bar.update(
            self._task, description=warmup.state.value, completed=done, total=warmup.records
        )
