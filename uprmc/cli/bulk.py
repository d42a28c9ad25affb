"""What the bulk verbs share: options, access and an engine, progress, report, and interruption.

Values are read by the same readers as those of ``spark.read.format("uprmc")``, so a size or a
range of vBuckets is written alike in both places.
"""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from uprmc import units
from uprmc.cli import arguments
from uprmc.cli.arguments import Read, whole
from uprmc.cli.node_access import ANSWER_S, DEFAULT_NODE, from_file, login_options, tls_options
from uprmc.cli.usage import in_one_line
from uprmc.columnar.access import Access, Tls
from uprmc.columnar.errors import BadOption, BulkError, MissingPackage
from uprmc.columnar.option import table
from uprmc.errors import Interrupted
from uprmc.jobs.files import write_whole
from uprmc.jobs.progress import Step
from uprmc.remote.errors import ClientError, NodeUnreachable

if TYPE_CHECKING:
    from uprmc.columnar.write_options import OnError
    from uprmc.jobs.engines import Engine

# --- options --------------------------------------------------------------------------------------


_Function = TypeVar("_Function", bound=Callable[..., Any])


class BulkVerb(click.Command):
    """A verb whose wrong options are `BadOption`, with its code word, like all other errors."""

    def make_context(self, *args: Any, **keywords: Any) -> click.Context:
        try:
            return super().make_context(*args, **keywords)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise BadOption(in_one_line(error)) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClientError as error:
            error.shows_code = True
            raise


_FILE = click.Path(exists=True, dir_okay=False)

#: How help shows what a reader understands.
_SHOWN = {
    units.size: "SIZE",
    units.seconds: "TIME",
    units.whole: "N",
    units.names: "NAME,...",
    units.text: "TEXT",
}


def declared(kind: type, field: str, *names: str, **more: Any) -> Callable[[_Function], _Function]:
    """Return the option of the command line for an option that a dataclass declares.

    Args:
        names: of it; without any the declared one, such as ``--window-bytes``.
        more: what is different on the command line, for `click.option`.
    """
    (each,) = (each for each in table(kind) if each.field == field)
    flag = "--" + re.sub("([A-Z])", r"-\1", each.name).lower()
    if each.read is units.switch:
        return click.option(*(names or (flag,)), is_flag=True, help=each.help)
    limits = () if math.isinf(each.least) else (each.least, each.most)
    read = Read(each.read, _SHOWN.get(each.read, ""), *limits)
    shown = more.pop("shown", each.default)
    if shown.isdecimal() and each.read is units.seconds:
        shown += "s"
    usual = {
        "type": click.Choice(each.words) if each.words else read,
        "default": each.default or None,
        "help": f"{each.help}  [default: {shown}]" if shown else each.help,
    }
    return click.option(*(names or (flag,)), **{**usual, **more})


_CONNECTING = (
    click.option(
        "--servers",
        "--node",
        "servers",
        default=from_file("node", DEFAULT_NODE),
        envvar="UPRMC_NODE",
        metavar="HOST:PORT,...",
        help=f"upr listeners of the nodes. One of a cluster is enough.  [default: {DEFAULT_NODE}]",
    ),
    declared(Access, "bucket"),
    *login_options(),
    declared(Access, "password_env"),
    *tls_options(),
    declared(Tls, "cert_file", type=_FILE),
    declared(Tls, "key_file", type=_FILE),
    declared(
        Access,
        "connect_timeout_s",
        "--timeout",
        "connect_timeout",
        envvar="UPRMC_TIMEOUT",
        default=from_file("timeout", f"{ANSWER_S:g}s"),
        shown=f"{ANSWER_S:g}s",
    ),
    declared(Access, "read_timeout_s"),
)

_RUNNING = (
    click.option(
        "--engine",
        type=click.Choice(["local", "spark"]),
        help="Where tasks run. local: in processes of this machine. spark: on Apache Spark, which "
        "needs Java.  [default: local, or spark with --master, --remote or --conf]",
    ),
    click.option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[*] (the default), spark://..., yarn or k8s://...",
    ),
    click.option(
        "--remote", metavar="URL", help="Address of a Spark Connect server: sc://HOST:PORT."
    ),
    click.option(
        "--conf", multiple=True, metavar="NAME=VALUE", help="Setting of Spark. It may be repeated."
    ),
    click.option(
        "--parallelism",
        type=whole(least=1),
        help="Number of tasks that run at the same time. By default one for each processor.",
    ),
)

_SHOWING = (
    click.option(
        "--progress",
        type=click.Choice(["auto", "bar", "plain", "none"]),
        default="auto",
        show_default=True,
        help="How to show progress. auto: a bar on a terminal, a line every 10 s elsewhere.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON document."),
    click.option(
        "--report",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the report to FILE as JSON.",
    ),
    click.option(
        "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
    ),
)

#: Options of several verbs.
DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Read, check and count everything, but write nothing."
)
RATE = click.option(
    "--rate", type=whole("ROWS", 1), help="Maximum number of rows per second, over all tasks."
)
PREFIX = click.option(
    "--prefix", type=arguments.PREFIX, default="", help="Use only keys that begin with this text."
)
RESUME = click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Note finished parts of the work in FILE, and skip those that it names.",
)
_BAD_ROWS = (
    click.option(
        "--errors",
        type=click.Path(file_okay=False),
        help="Go on after rows that cannot be written, and write them to files in this directory.",
    ),
    click.option(
        "--max-errors",
        type=whole(),
        help="Go on after rows that cannot be written, up to this many.",
    ),
)


def bad_rows(function: _Function) -> _Function:
    """Add the options for rows that cannot be written; `on_error_of` reads them."""
    for option in reversed(_BAD_ROWS):
        function = option(function)
    return function


#: What `split` gives to `access_of`, `engine_of` and `bulk_run.running`.
_ACCESS_NAMES = (
    *("servers", "bucket", "user", "password_file", "password_env"),
    *("tls", "tls_ca", "tls_cert_file", "tls_key_file", "no_tls_verify"),
    *("connect_timeout", "read_timeout"),
)
_ENGINE_NAMES = ("engine", "master", "remote", "conf", "parallelism")
_SHOWING_NAMES = ("progress", "as_json", "report")


class BulkCommon:
    """The shared options of one command line."""

    def __init__(self, given: dict[str, Any]) -> None:
        # By the names of `access_of`.
        self.connecting = {name: given.pop(name) for name in _ACCESS_NAMES if name in given}
        # By the names of `engine_of`.
        self.running = {name: given.pop(name) for name in _ENGINE_NAMES}
        self.running["engine"] = self.running["engine"] or self._usual_engine()
        # Arguments of `bulk_run.running`.
        self.showing = {name: given.pop(name) for name in _SHOWING_NAMES}

    def _usual_engine(self) -> str:
        of_spark = any(self.running[name] for name in ("master", "remote", "conf"))
        return "spark" if of_spark else "local"

    @property
    def engine(self) -> str:
        """``spark`` or ``local``."""
        kind: str = self.running["engine"]
        return kind

    def access_options(self) -> dict[str, Any]:
        """Return the options of access as `uprmc.spark.options` reads them."""
        found = {name: value for name, value in self.connecting.items() if value not in (None, "")}
        if found.pop("no_tls_verify"):
            found["tls_verify"], found["tls"] = "false", True
        for ours, theirs in (("user", "username"), ("tls_ca", "tls_ca_file")):
            if ours in found:
                found[theirs] = found.pop(ours)
        if not found.pop("tls"):
            return {name: str(value) for name, value in found.items()}
        return {name: str(value) for name, value in found.items()} | {"tls": "true"}

    def access(self, **others: Any) -> Access:
        """Return where the nodes are; `others` take the place of given ones."""
        from uprmc.spark.options import access_of

        return access_of({**self.access_options(), **others})

    @contextmanager
    def running_engine(self, *modules: str) -> Iterator[Engine]:
        """Start an engine, and end what it started; `modules` as for `engine_of`."""
        with engine_of(*modules, **self.running) as engine:
            yield engine


def common(*, servers: bool = True) -> Callable[[_Function], _Function]:
    """Add the shared options; the verb gets them as one `BulkCommon`, its first argument.

    Args:
        servers: there is an option for them; no, where arguments name the nodes.
    """
    options = (*_CONNECTING[0 if servers else 1 :], *_RUNNING, *_SHOWING)

    def decorate(function: _Function) -> _Function:
        def verb(**given: Any) -> Any:
            return function(BulkCommon(given), **given)

        verb.__name__, verb.__doc__ = function.__name__, function.__doc__
        verb.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        decorated: Any = verb
        for option in reversed(options):
            decorated = option(decorated)
        found: _Function = decorated
        return found

    return decorate


def on_error_of(given: dict[str, Any]) -> OnError:
    """Return what a bad row does, by ``--errors`` and ``--max-errors``."""
    if given["errors"] is not None:
        return "file"
    return "fail" if given["max_errors"] is None else "skip"


@contextmanager
def engine_of(
    *modules: str,
    engine: str,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    parallelism: int | None,
) -> Iterator[Engine]:
    """Yield the engine that was asked for; a session of Spark's that it started ends with it.

    Args:
        modules: what local processes import, from now on; without any they start when there is
            work.
        engine, master, remote, conf, parallelism: the options.

    Raises:
        BadOption: options contradict each other.
        JavaMissing: Spark cannot run here.
    """
    from uprmc.jobs.engines import LocalEngine

    settings = _settings(engine, master, remote, conf)
    if engine == "local":
        processes = LocalEngine(parallelism or 0)
        processes.start(*modules)
        yield processes
        return
    from uprmc.spark.session import session
    from uprmc.spark.spark_engine import SparkEngine

    if master is None and remote is None and parallelism is not None:
        master = f"local[{parallelism}]"
    already = _session_there_is()
    with _without_noise():
        spark = session(master=master, remote=remote, conf=settings)
    try:
        yield SparkEngine(spark, parallelism or 0)
    finally:
        if spark is not already:
            spark.stop()


def _session_there_is() -> Any:
    """Return the session that somebody else has started in this process, or ``None``."""
    module = sys.modules.get("pyspark.sql")
    return None if module is None else module.SparkSession.getActiveSession()


@contextmanager
def _without_noise() -> Iterator[None]:
    """Give what is started in here a log file for its standard error, which is lost at the end.

    The JVM and its workers inherit it: what they have to say of their own start and end concerns
    nobody. Errors of tasks come back as exceptions. With ``--debug`` all of it is shown.
    """
    if "--debug" in sys.argv:
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        except (BulkError, ImportError, KeyboardInterrupt):
            raise
        except Exception as error:
            log.seek(0)
            last = [*str(error).splitlines(), *log.read().decode(errors="replace").splitlines()]
            said = next((line.strip() for line in reversed(last) if line.strip()), repr(error))
            raise BulkError(f"Spark did not start: {said} (--debug shows all)") from error
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _settings(
    engine: str, master: str | None, remote: str | None, conf: tuple[str, ...]
) -> dict[str, str]:
    if engine == "local" and (master or remote or conf):
        raise BadOption("--master, --remote and --conf are for --engine spark")
    if master and remote:
        raise BadOption("--master and --remote contradict each other")
    settings = {}
    for each in conf:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise BadOption(f"--conf {each}: say NAME=VALUE")
        settings[name] = value
    return settings


# --- the work -------------------------------------------------------------------------------------
# A package that is missing becomes a sentence that says what to install. Ctrl-C, SIGTERM and a node
# that is lost become one line that says whether the same command goes on where it stopped.


_PACKAGES = ("pyspark", "pyarrow", "numpy", "pandas", "py4j", "grpc", "google")


class BulkReport(Protocol):
    """What every verb comes to."""

    def to_json(self) -> str:
        """Return it as one line of JSON."""

    def summary(self) -> str:
        """Return it for people."""


#: Says, from the newest step, what happens when the same command runs again.
Afterwards = Callable[[Step | None], str]


@contextmanager
def running(
    *, progress: str, as_json: bool, report: Path | None, afterwards: Afterwards
) -> Iterator[BulkRun]:
    """Yield a `BulkRun` whose progress is shown and whose report is printed.

    Raises:
        Interrupted: by Ctrl-C or SIGTERM.
        MissingPackage: an import failed that an extra would have brought.
        BadOption: the report cannot be written where it is to go.
    """
    if report is not None and not os.access(report.resolve().parent, os.W_OK):
        raise BadOption(f"--report {report}: no such directory, or it cannot be written")
    shown = BulkShown("none" if as_json and progress == "auto" else progress)
    with _terminated_like_interrupted():
        try:
            with shown:
                run = BulkRun(shown)
                yield run
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted: {afterwards(shown.last)}") from None
        except NodeUnreachable as error:
            if shown.last is not None:
                error.text += f"; {afterwards(shown.last)}"
            raise
        except ImportError as error:
            raise _missing(error) from error
    if run.report is not None:
        _tell(run.report, as_json, report)


class BulkRun:
    """One piece of work."""

    def __init__(self, progress: BulkShown) -> None:
        self.progress = progress  # takes its steps
        self.report: BulkReport | None = None  # what it came to, once that is set


def _missing(error: ImportError) -> Exception:
    package = (error.name or "").partition(".")[0]
    if package not in _PACKAGES:
        # pyspark's own checks raise their errors without a name.
        package = next((name for name in _PACKAGES if name in str(error)), "")
        if not package:
            return error
    extra, hint = "spark", ", or say --engine local"
    if package in ("pyarrow", "numpy"):
        extra, hint = "arrow", " (in a source tree: pip install -e '.[arrow]')"
    return MissingPackage(f"{package} is missing: pip install 'uprmc[{extra}]'{hint}")


def _tell(report: BulkReport, as_json: bool, path: Path | None) -> None:
    text = report.to_json()
    if path is not None:
        _written(path, text + "\n")
    click.echo(text if as_json else report.summary())


def _written(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise BadOption(f"--report {path}: {error.strerror}") from None


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Have SIGTERM end the work in the same order as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- how it gets on -------------------------------------------------------------------------------
# A bar, a line now and then, or nothing, on standard error: standard output is for the report.


LINE_EVERY_S = 10.0


class BulkShown:
    """Takes the steps of some work; use it in a ``with`` statement.

    Args:
        how: ``auto``, ``bar``, ``plain`` or ``none``.
        stream: where to; standard error if it is ``None``.
        every_s: between two lines.
    """

    def __init__(
        self, how: str, stream: IO[str] | None = None, every_s: float = LINE_EVERY_S
    ) -> None:
        self.last: Step | None = None  # the newest step, ``None`` before the first
        self._stream = stream or _own_stderr()
        self._own = stream is None and self._stream is not sys.stderr
        if how == "auto":
            how = "bar" if self._stream.isatty() else "plain"
        self._how, self._every_s = how, every_s
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._bar: Progress | None = None
        self._task: Any = None
        self._writer: threading.Thread | None = None

    def __call__(self, step: Step) -> None:
        """Take a step."""
        if self.last is None or step.what != self.last.what:
            self._began = time.monotonic()
        self.last = step
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=step.what,
                completed=step.done,
                total=step.of,
                figures=self._figures(step),
            )

    def __enter__(self) -> BulkShown:
        if self._how == "bar":
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                console=Console(file=self._stream, force_terminal=True),
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=None, figures="")
            self._bar.start()
        elif self._how == "plain":
            self._writer = threading.Thread(target=self._write_lines, daemon=True)
            self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.stop()
        if self._writer is not None:
            self._writer.join()
        if self._own:
            self._stream.close()

    def _write_lines(self) -> None:
        while not self._ended.wait(self._every_s):
            if self.last is not None:
                self._stream.write(line_of(self.last, self._figures(self.last)) + "\n")
                self._stream.flush()

    def _figures(self, step: Step) -> str:
        seconds = max(time.monotonic() - self._began, 0.001)
        words = []
        if step.rows:
            words += [f"{step.rows:,} rows", f"{step.rows / seconds:,.0f} rows/s"]
        if step.size_bytes:
            words.append(f"{step.size_bytes / seconds / 1e6:,.1f} MB/s")
        return ", ".join(words)


def _own_stderr() -> IO[str]:
    """Return standard error as it is now: while Spark starts, its own is another one."""
    try:
        return os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1)
    except (OSError, ValueError):
        return sys.stderr


def line_of(step: Step, figures: str) -> str:
    """Return a step as a plain line."""
    of = f" of {step.of:,}" if step.of is not None else ""
    return f"uprmc: {step.what}: {step.done:,}{of} tasks" + (f", {figures}" if figures else "")
