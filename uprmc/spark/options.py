"""Options as Spark hands them over, checked: one value for each side, every refusal by name.

A wrong name is refused together with the nearest right one, a wrong value together with what was
expected. What one side does not know is refused rather than ignored: a misspelt option would
otherwise be a silent default.

Options are fields of `Access`, `Tls`, `ReadOptions`, `Columns`, `WriteOptions` and `SinkOptions`.
The command line and the functions of `uprmc.spark` come through here too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uprmc import units
from uprmc.columnar.access import Access, Tls
from uprmc.columnar.errors import BadOption
from uprmc.columnar.option import (
    BATCH,
    STREAM,
    Option,
    choice,
    fields_of,
    option,
    plain,
    table,
)
from uprmc.columnar.schema import DEFAULT, OPTIONAL, Columns
from uprmc.columnar.write_options import WriteOptions
from uprmc.remote import ranges
from uprmc.remote.ranges import VBUCKETS_MAX
from uprmc.units import nearest

__all__ = ["ReadOptions", "SinkOptions", "access_of", "as_texts", "read_options", "write_options"]

_PASSWORDS = ("password", "passwordFile", "passwordEnv")


@dataclass(frozen=True)
class ReadOptions:
    """What a reader, of a batch or of a stream, is to do; offsets are not looked into yet."""

    access: Access
    columns: Columns
    no_value: bool = option(
        "noValue", units.switch, "false", "Do not send values. There is no column value then."
    )
    partitions: int | None = option(
        "numPartitions",
        units.whole,
        "",
        "Maximum number of tasks. By default two for each processor, or fewer if there are "
        "few documents.",
        least=1,
        most=VBUCKETS_MAX,
        only=BATCH,
        aliases=("parallelism",),
    )
    vbuckets: tuple[int, ...] | None = option(
        "vbuckets", ranges.parsed, "", "Read only these vBuckets, such as 0-511,600."
    )
    pushdown: bool = option(
        "pushdown",
        units.switch,
        "true",
        "Apply filters on key, _vb, _seq and _op in the source, if Spark hands them over: see "
        "Filters.",
        only=BATCH,
    )
    snapshot: str = choice(
        "snapshot",
        ("complete", "held", "bounded"),
        "complete: each task reads its vBuckets at one moment. held: all tasks and retries "
        "read the same moment. bounded: changes after the planning are left out.",
        only=BATCH,
    )
    lease: str | None = option(
        "lease", units.text, "", "Token of a lease. What the lease holds is read.", only=BATCH
    )
    lease_s: int = option(
        "leaseSeconds",
        units.whole,
        "600",
        "Lifetime of leases. The node limits it with upr.lease_max_s. The lease of a DataFrame "
        "ends 60 s after its last read, unless this is given.",
        least=5,
        most=86_400,
    )
    frame: str = option(
        "frame",
        units.text,
        "",
        "Name of a DataFrame. Reads that are planned on one machine and have the same name share "
        "one lease, as all actions of a DataFrame do by default.",
        only=BATCH,
        absent="",
    )
    starting_offsets: str = option(
        "startingOffsets",
        units.text,
        "earliest",
        "Where to begin: earliest, latest, JSON, or the path of a backup's manifest.",
    )
    starting_timestamp: int | None = option(
        "startingTimestamp",
        units.moment,
        "",
        "Begin with the changes made at or after this time, such as 2026-11-26T15:00:00Z or "
        "milliseconds since 1970: see Where it begins.",
    )
    ending_offsets: str = option(
        "endingOffsets",
        units.text,
        "latest",
        "Where to end, with snapshot=bounded: latest, JSON, or the path of a backup's manifest.",
        only=BATCH,
    )
    max_rows: int | None = option(
        "maxRowsPerTrigger",
        units.whole,
        "",
        "Maximum number of rows in a micro-batch, control rows not counted.",
        least=1,
        only=STREAM,
    )
    max_bytes: int | None = option(
        "maxBytesPerTrigger",
        units.size,
        "",
        "Approximate number of bytes in a micro-batch.",
        least=1,
        only=STREAM,
    )
    on_rollback: str = choice(
        "onRollback",
        ("fail", "rewind", "restart"),
        "What to do when history branched below the position. fail: stop. rewind: go back "
        "to the branch. restart: read the vBucket from its beginning. A control row "
        "announces the last two.",
        only=STREAM,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        units.switch,
        "true",
        "Stop when deletions were dropped before they were read, or when a vBucket is on no node.",
    )
    on_purged: str | None = option(
        "onPurged",
        units.one_of("fail", "restart"),
        "",
        "What to do when deletions were dropped before they were read. fail: stop. restart: read "
        "the vBucket from its beginning, after a control row. By default what failOnDataLoss says.",
        only=STREAM,
        words=("fail", "restart"),
    )
    register: bool = option(
        "register",
        units.switch,
        "true",
        "Register with the nodes: they keep deletions until this stream has committed them.",
        only=STREAM,
    )
    register_s: int = option(
        "registerSeconds",
        units.whole,
        "0",
        "How long the nodes remember this stream after its last report. 0: the node's "
        "purge.expires_spark_s, which is also the most.",
        least=0,
        most=2**32 - 1,
        only=STREAM,
    )
    batch_rows: int = option(
        "batchRows",
        units.whole,
        "10000",
        "Maximum number of rows in an Arrow batch.",
        least=1,
        most=1_000_000,
    )
    batch_bytes: int = option(
        "batchBytes",
        units.size,
        "8m",
        "Approximate size of an Arrow batch.",
        least=1_024,
        most=2**30,
    )
    idle_s: int | None = None


@dataclass(frozen=True)
class SinkOptions:
    """What a sink is to do: how to write, and where the report goes (on the driver)."""

    write: WriteOptions
    report_path: str | None = option(
        "reportPath", units.text, "", "JSON file for the report, on the driver."
    )


_TLS = Option(
    "tls", units.switch, "", "Connect with TLS. Naming a TLS file, or tlsVerify=false, implies it."
)

#: Of one side alone: what is tried again, and how long.
_RETRIES = tuple(each for each in table(Access) if each.field.startswith("retr"))

#: What reaches nodes; the options of the source; those of the sink.
ACCESS = (*(each for each in table(Access) if each not in _RETRIES), _TLS, *table(Tls))
READ = (*ACCESS, *_RETRIES, *table(ReadOptions), *table(Columns))
WRITE = (*ACCESS, *table(WriteOptions), *table(SinkOptions))

#: What Spark itself puts among the options of a source or sink.
OF_SPARK = frozenset({"checkpointlocation", "queryname", "outputmode", "pathoptionbeforesetcheck"})

#: What Spark puts among them only where a table is created in its catalog.
_OF_TABLES = frozenset({"provider", "owner"})

#: Leases that reads leave free at each node: a backup must not wait for jobs that can.
SPARE_LEASES = 2

#: How long the lease of a DataFrame is kept after its last read, unless `leaseSeconds` says so.
IDLE_S = 60

_NO_SERVERS = "servers is missing: say HOST:PORT of a node's upr listener"

_NO_TABLES = (
    "Spark does not pass the OPTIONS of CREATE TABLE on to a source in Python. Say CREATE "
    "TEMPORARY VIEW name USING uprmc OPTIONS (servers 'HOST:PORT'), or name them in each query: "
    "FROM name WITH (servers 'HOST:PORT')"
)

#: What shapes the rows of a view into which rows are inserted, too; writing goes by their columns.
_OF_VIEWS = frozenset(plain(each.name) for each in table(Columns))


def read_options(options: Mapping[str, Any], *, kind: str = "") -> ReadOptions:
    """Return what a reader was asked for.

    `kind` is ``batch`` or ``stream``: options of the other are refused; empty = both are taken.

    Raises:
        BadOption: a name or a value is wrong, or two contradict each other.
    """
    _refuse_table(options)
    found = _chosen(options, READ, "reading", other=WRITE)
    _refuse_other(options, kind)
    if found["startingTimestamp"] is not None and "startingoffsets" in map(plain, options):
        raise BadOption("startingTimestamp and startingOffsets contradict each other")
    if found["lease"] is not None and found["snapshot"] == "bounded":
        raise BadOption("lease and snapshot=bounded contradict each other")
    if found["endingOffsets"] != "latest" and found["snapshot"] != "bounded":
        raise BadOption("endingOffsets needs snapshot=bounded")
    chosen = fields_of(ReadOptions, found)
    if "leaseseconds" not in map(plain, options):
        chosen["idle_s"] = IDLE_S
    if found["lease"] is not None:
        chosen["snapshot"] = "held"
    return ReadOptions(_access(found, reading=True), _columns(found), **chosen)


def write_options(options: Mapping[str, Any]) -> SinkOptions:
    """Return what a sink was asked for.

    Raises:
        BadOption: a name or a value is wrong, or two contradict each other.
    """
    _refuse_table(options)
    mine = {name: text for name, text in options.items() if plain(name) not in _OF_VIEWS}
    found = _chosen(mine, WRITE, "writing", other=READ)
    if found["ttlColumn"] is not None and found["expColumn"] is not None:
        raise BadOption("ttlColumn and expColumn contradict each other")
    if (found["onError"] == "file") != (found["errorsPath"] is not None):
        raise BadOption("onError=file and errorsPath go together")
    if found["force"] and found["writeMode"] != "append-meta":
        raise BadOption("force is for writeMode=append-meta")
    write = WriteOptions(_access(found), **fields_of(WriteOptions, found))
    return SinkOptions(write, **fields_of(SinkOptions, found))


def access_of(options: Mapping[str, Any]) -> Access:
    """Return where the nodes are; options that have nothing to do with that are not looked at.

    Raises:
        BadOption: a value is wrong, or ``servers`` is missing.
    """
    known = {name for option in ACCESS for name in option.known_as()}
    mine = {name: value for name, value in options.items() if plain(name) in known}
    return _access(_chosen(mine, ACCESS, "connecting", other=()))


def as_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options of a Python program as Spark wants them: texts, without those that are `None`.

    Lists and tuples become texts with commas, dicts JSON, ``True`` becomes ``true``; what has a
    `token` (a lease that is held) becomes that.
    """
    return {name: _text_of(value) for name, value in options.items() if value is not None}


def _text_of(value: Any) -> str:
    token = getattr(value, "token", None)
    if isinstance(token, str):
        return token
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | os.PathLike):
        return ",".join(str(each) for each in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


# --- reading the tables ---------------------------------------------------------------------------


def _chosen(
    options: Mapping[str, Any], known: Sequence[Option], doing: str, other: Sequence[Option]
) -> dict[str, Any]:
    """Return a value for each option of the table, by its name; ``None`` without text or default.

    Raises:
        BadOption: as `read_options`.
    """
    by_name = {name: each for each in known for name in each.known_as()}
    given: dict[str, str] = {}
    for name, text in options.items():
        found = by_name.get(plain(name))
        if found is None:
            if plain(name) in OF_SPARK:
                continue
            raise BadOption(_unknown(name, known, doing, other))
        if found.name in given and given[found.name] != text:
            raise BadOption(f"{found.name} is given twice, once as {name}")
        given[found.name] = text
    return {each.name: each.value(given.get(each.name)) for each in known}


def _unknown(name: str, known: Sequence[Option], doing: str, other: Sequence[Option]) -> str:
    for each in other:
        if plain(name) in each.known_as():
            return f"{each.name} is no option of {doing}"
    spelt = {plain(each.name): each.name for each in known}
    meant = spelt.get(nearest(plain(name), list(spelt)))
    hint = (
        f"; did you mean {meant}?" if meant else f": there are {', '.join(sorted(spelt.values()))}"
    )
    return f"there is no option {name} of {doing}{hint}"


def _refuse_table(options: Mapping[str, Any]) -> None:
    """Raise `BadOption` where Spark asks for a table of its catalog: its reader gets no options."""
    if _OF_TABLES.intersection(map(plain, options)):
        raise BadOption(_NO_TABLES)
    if not options:
        raise BadOption(f"{_NO_SERVERS}. Is it a table? {_NO_TABLES}")


def _refuse_other(options: Mapping[str, Any], kind: str) -> None:
    named = {plain(name) for name in options}
    for each in READ:
        if kind and each.only and each.only != kind and named.intersection(each.known_as()):
            there = {BATCH: "spark.read", STREAM: "spark.readStream"}[each.only]
            raise BadOption(f"{each.name} is an option of {there}")


def _access(found: Mapping[str, Any], *, reading: bool = False) -> Access:
    if found["servers"] is None:
        raise BadOption(_NO_SERVERS)
    secrets = [name for name in _PASSWORDS if found[name] is not None]
    if len(secrets) > 1:
        raise BadOption(f"{' and '.join(secrets)} contradict each other")
    if secrets and found["username"] is None:
        raise BadOption(f"{secrets[0]} needs username")
    spare = SPARE_LEASES if reading else 0
    if not reading:
        found = {**found, **{each.name: None for each in _RETRIES}}
    return Access(**fields_of(Access, found), tls=_tls(found), spare_leases=spare)


def _tls(found: Mapping[str, Any]) -> Tls | None:
    ca, certificate, key = (found[name] for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"))
    if key is not None and certificate is None:
        raise BadOption("tlsKeyFile needs tlsCertFile")
    files = ca is not None or certificate is not None
    if found["tls"] is False and files:
        raise BadOption("tls=false and a TLS file contradict each other")
    wanted = files or not found["tlsVerify"] if found["tls"] is None else found["tls"]
    if not wanted:
        return None
    return Tls(**fields_of(Tls, found))


def _columns(found: Mapping[str, Any]) -> Columns:
    names = found["columns"]
    if names is None:
        names = tuple(name for name in DEFAULT if not (found["noValue"] and name == "value"))
    elif found["noValue"] and "value" in names:
        raise BadOption("noValue and column value contradict each other")
    for name in names:
        if name not in (*DEFAULT, *OPTIONAL):
            meant = nearest(name, [*DEFAULT, *OPTIONAL])
            hint = f"did you mean {meant}?" if meant else f"see {', '.join((*DEFAULT, *OPTIONAL))}"
            raise BadOption(f"columns: there is no column {name!r}; {hint}")
    return Columns(**{**fields_of(Columns, found), "names": names})
