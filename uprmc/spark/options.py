"""Options as Spark hands them over, checked: one value for each side, every refusal by name.

A wrong name is told together with the nearest right one; a wrong value together with what was
expected. What one side does not know is refused rather than ignored: a misspelt option would
otherwise be a silent default.

Neighbours: `option_tables` (which there are), `uprmc.units` (what texts mean). The command line
and the functions of `uprmc.spark` come through here too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uprmc.columnar.access import Access, Tls
from uprmc.columnar.errors import BadOption
from uprmc.columnar.schema import DEFAULT, OPTIONAL, Columns
from uprmc.columnar.write_options import WriteOptions
from uprmc.spark.option_tables import ACCESS, BATCH, OF_SPARK, READ, STREAM, WRITE, Option, plain
from uprmc.units import nearest

__all__ = ["ReadOptions", "SinkOptions", "access_of", "as_texts", "read_options", "write_options"]

_PASSWORDS = ("password", "passwordFile", "passwordEnv")


@dataclass(frozen=True)
class ReadOptions:
    """What a reader, of a batch or of a stream, is to do.

    Attributes:
        access: where the nodes are.
        columns: what rows have.
        no_value: values are not asked for.
        partitions: tasks at most; ``None`` = as fits.
        vbuckets: which, sorted; ``None`` = all.
        pushdown: filters may be applied by the source.
        snapshot: ``complete``, ``held`` or ``bounded``.
        lease: token of a lease to read from, or ``None``.
        lease_s: lifetime of leases.
        starting_offsets, ending_offsets: a word, JSON or a path, not looked into yet.
        max_rows, max_bytes: of a micro-batch.
        on_rollback: ``fail``, ``rewind`` or ``restart``, when history branched below.
        fail_on_data_loss: fail rather than leave out what cannot be had.
        batch_rows, batch_bytes: size of Arrow batches.
    """

    access: Access
    columns: Columns
    no_value: bool = False
    partitions: int | None = None
    vbuckets: tuple[int, ...] | None = None
    pushdown: bool = False
    snapshot: str = "complete"
    lease: str | None = None
    lease_s: int = 600
    starting_offsets: str = "earliest"
    ending_offsets: str = "latest"
    max_rows: int | None = None
    max_bytes: int | None = None
    on_rollback: str = "fail"
    fail_on_data_loss: bool = True
    batch_rows: int = 10_000
    batch_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True)
class SinkOptions:
    """What a sink is to do: how to write, and where the report goes (on the driver)."""

    write: WriteOptions
    report_path: str | None = None


def read_options(options: Mapping[str, Any], *, kind: str = "") -> ReadOptions:
    """Return what a reader was asked for.

    Args:
        options: as Spark hands them over.
        kind: ``batch`` or ``stream``: options of the other are refused; empty = both are taken.

    Raises:
        BadOption: a name or a value is wrong, or two contradict each other.
    """
    found = _chosen(options, READ, "reading", other=WRITE)
    _refuse_other(options, kind)
    if found["lease"] is not None and found["snapshot"] == "bounded":
        raise BadOption("lease and snapshot=bounded contradict each other")
    if found["endingOffsets"] != "latest" and found["snapshot"] != "bounded":
        raise BadOption("endingOffsets needs snapshot=bounded")
    return ReadOptions(
        access=_access(found),
        columns=_columns(found),
        no_value=found["noValue"],
        partitions=found["numPartitions"],
        vbuckets=found["vbuckets"],
        pushdown=found["pushdown"],
        snapshot="held" if found["lease"] is not None else found["snapshot"],
        lease=found["lease"],
        lease_s=found["leaseSeconds"],
        starting_offsets=found["startingOffsets"],
        ending_offsets=found["endingOffsets"],
        max_rows=found["maxRowsPerTrigger"],
        max_bytes=found["maxBytesPerTrigger"],
        on_rollback=found["onRollback"],
        fail_on_data_loss=found["failOnDataLoss"],
        batch_rows=found["batchRows"],
        batch_bytes=found["batchBytes"],
    )


def write_options(options: Mapping[str, Any]) -> SinkOptions:
    """Return what a sink was asked for.

    Raises:
        BadOption: a name or a value is wrong, or two contradict each other.
    """
    found = _chosen(options, WRITE, "writing", other=READ)
    if found["ttlColumn"] is not None and found["expColumn"] is not None:
        raise BadOption("ttlColumn and expColumn contradict each other")
    if (found["onError"] == "file") != (found["errorsPath"] is not None):
        raise BadOption("onError=file and errorsPath go together")
    if found["force"] and found["writeMode"] != "append-meta":
        raise BadOption("force is for writeMode=append-meta")
    write = WriteOptions(
        access=_access(found),
        mode=found["writeMode"],
        key_column=found["keyColumn"],
        value_column=found["valueColumn"],
        flags_column=found["flagsColumn"],
        ttl_column=found["ttlColumn"],
        exp_column=found["expColumn"],
        window=found["window"],
        window_bytes=found["windowBytes"],
        retries=found["retries"],
        retry_backoff_s=found["retryBackoff"],
        retry_deadline_s=found["retryDeadline"],
        on_error=found["onError"],
        errors_path=found["errorsPath"],
        max_errors=found["maxErrors"],
        ignore_null=found["ignoreNullValue"],
        durability=found["durability"],
        value_limit_bytes=found["valueLimit"],
        rate=found["rateLimit"],
        dry_run=found["dryRun"],
        force=found["force"],
    )
    return SinkOptions(write, found["reportPath"])


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
    options: Mapping[str, Any], table: Sequence[Option], doing: str, other: Sequence[Option]
) -> dict[str, Any]:
    """Return a value for each option of the table, by its name; ``None`` without text or default.

    Raises:
        BadOption: as `read_options`.
    """
    by_name = {name: option for option in table for name in option.known_as()}
    given: dict[str, str] = {}
    for name, text in options.items():
        option = by_name.get(plain(name))
        if option is None:
            if plain(name) in OF_SPARK:
                continue
            raise BadOption(_unknown(name, table, doing, other))
        if option.name in given and given[option.name] != text:
            raise BadOption(f"{option.name} is given twice, once as {name}")
        given[option.name] = text
    return {option.name: _value(option, given.get(option.name)) for option in table}


def _unknown(name: str, table: Sequence[Option], doing: str, other: Sequence[Option]) -> str:
    for option in other:
        if plain(name) in option.known_as():
            return f"{option.name} is no option of {doing}"
    spelt = {plain(option.name): option.name for option in table}
    meant = spelt.get(nearest(plain(name), list(spelt)))
    hint = (
        f"; did you mean {meant}?" if meant else f": there are {', '.join(sorted(spelt.values()))}"
    )
    return f"there is no option {name} of {doing}{hint}"


def _value(option: Option, text: str | None) -> Any:
    text = option.default if text is None else str(text).strip()
    if not text and not option.default:
        return None
    try:
        value = option.read(text)
    except ValueError as error:
        shown = "" if option.secret else f" {text!r}"
        raise BadOption(f"{option.name}:{shown} is not right: say {error}") from None
    if isinstance(value, int | float) and not option.least <= value <= option.most:
        raise BadOption(f"{option.name}: {text} is not {_range(option)}")
    return value


def _range(option: Option) -> str:
    if option.most == float("inf"):
        return f"{option.least:,.10g} or more"
    return f"from {option.least:,.10g} to {option.most:,.10g}"


def _refuse_other(options: Mapping[str, Any], kind: str) -> None:
    named = {plain(name) for name in options}
    for option in READ:
        if kind and option.only and option.only != kind and named.intersection(option.known_as()):
            there = {BATCH: "spark.read", STREAM: "spark.readStream"}[option.only]
            raise BadOption(f"{option.name} is an option of {there}")


def _access(found: Mapping[str, Any]) -> Access:
    if found["servers"] is None:
        raise BadOption("servers is missing: say HOST:PORT of a node's upr listener")
    secrets = [name for name in _PASSWORDS if found[name] is not None]
    if len(secrets) > 1:
        raise BadOption(f"{' and '.join(secrets)} contradict each other")
    if secrets and found["username"] is None:
        raise BadOption(f"{secrets[0]} needs username")
    reading = {
        name: found[option]
        for name, option in (("retries", "retries"), ("retry_backoff_s", "retryBackoff"))
        if option in found and "writeMode" not in found
    }
    return Access(
        servers=found["servers"],
        username=found["username"],
        password=found["password"],
        password_file=found["passwordFile"],
        password_env=found["passwordEnv"],
        tls=_tls(found),
        connect_timeout_s=found["connectTimeout"],
        read_timeout_s=found["readTimeout"],
        flow_control_bytes=found["flowControlBytes"],
        client_id=found["clientId"] or "",
        bucket=found["bucket"] or "",
        **reading,
    )


def _tls(found: Mapping[str, Any]) -> Tls | None:
    ca, certificate, key = (found[name] for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"))
    if key is not None and certificate is None:
        raise BadOption("tlsKeyFile needs tlsCertFile")
    files = ca is not None or certificate is not None
    if found["tls"] is False and files:
        raise BadOption("tls=false and a TLS file contradict each other")
    if not found["tls"] and not files:
        return None
    return Tls(ca, certificate, key, found["tlsVerify"])


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
    return Columns(names, found["keyType"], found["u64"], found["mode"])
