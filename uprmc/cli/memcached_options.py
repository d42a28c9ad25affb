"""Options of memcached's command line that ``uprmc serve`` understands, and advice for the others.

Every option has one row in `MEANT`, `IGNORED` or `ADVICE`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from uprmc.errors import ConfigError

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
