"""``uprmc get``, ``set``, ``del``, ``incr``, ``touch``, ``ttl``, ``keys``, ``dump``: documents."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import click

from uprmc import units
from uprmc.cli.arguments import KeyPattern, Read, whole
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import readable, time_text
from uprmc.client.connection import LoginWanted, NodeConnection, NodeError
from uprmc.client.handler import Change
from uprmc.client.kv import KvClient
from uprmc.client.kv_values import Document, Stored
from uprmc.errors import ConfigError, DeltaBadValue, KeyExists, KeyNotFound
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import KEY_MAX_BYTES, ObservedState, Opcode
from uprmc.remote.json_fields import exact, text_or_base64
from uprmc.remote.retry import Backoff

#: Seconds that a node takes as "from now"; more is a date.
_RELATIVE_MAX_S = 30 * 24 * 3_600
_TTL_MAX_S = 100 * 365 * 24 * 3_600
_U32_MAX = 2**32 - 1
_U64_MAX = 2**64 - 1

_WAIT_MIN_S, _WAIT_MAX_S = 0.005, 0.25

_AMOUNT = whole(least=-_U64_MAX, most=_U64_MAX)
_TTL = Read(units.seconds, "TIME", 0, _TTL_MAX_S, " s")


def key_named(text: str) -> bytes:
    """Return the key that a word of the command line means; raises `ConfigError`."""
    key = os.fsencode(text)
    check_key(key)
    return key


def check_key(key: bytes) -> None:
    """Raise `ConfigError` if no document can have this key."""
    if not 1 <= len(key) <= KEY_MAX_BYTES:
        raise ConfigError(f"a key has 1 to {KEY_MAX_BYTES} bytes, this one {len(key)}")


def client_of(node: NodeAccess) -> KvClient:
    """Return a client of the nodes; raises `NodeError`."""
    return KvClient(
        node.places,
        timeout_s=node.timeout_s,
        retry_s=node.timeout_s,
        tls=node.tls,
        credentials=node.credentials,
    )


def expiry_of(ttl_s: float) -> int:
    """Return a time to live as nodes take it; 0 = for ever, less than a second counts as one."""
    seconds = max(1, int(ttl_s)) if ttl_s else 0
    return seconds if seconds <= _RELATIVE_MAX_S else int(time.time()) + seconds


@click.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@talks_to_a_node("Print one JSON object for each document.", several=True)
def get(keys: tuple[str, ...], node: NodeAccess, as_json: bool) -> int:
    """Print the values of documents.

    A value is printed as it is stored, and a line break follows on a terminal or if there are
    several keys. If a document does not exist, the exit code is 1.
    """
    names = [key_named(text) for text in keys]
    with client_of(node) as client:
        found = client.get_many(names)
        for name in names:
            if name not in found:
                continue
            if as_json:
                _print_json(client, name, found[name])
            else:
                _print_value(found[name].value, line_break=len(names) > 1 or sys.stdout.isatty())
    missing = [readable(name) for name in names if name not in found]
    if missing:
        raise NodeError(f"there is no document {', '.join(missing)}")
    return 0


def _print_json(client: KvClient, key: bytes, document: Document) -> None:
    meta = client.get_meta(key)
    same = meta is not None and meta.cas == document.cas
    click.echo(
        json.dumps(
            {
                **text_or_base64("key", key),
                **text_or_base64("value", document.value),
                "flags": document.flags,
                "cas": str(document.cas),
                "datatype": document.datatype,
                "vbucket": client.vbucket_of(key),
                **_lifetime(meta.expiry if meta is not None and same else 0),
            }
        )
    )


def _lifetime(expiry: int) -> dict[str, object]:
    """Return when a document expires, ``None`` = never, and in how many seconds."""
    if not expiry:
        return {"expires": None, "ttl": None}
    return {"expires": time_text(expiry), "ttl": max(0, expiry - int(time.time()))}


def _print_value(value: bytes, *, line_break: bool) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(value + b"\n" if line_break else value)
    sys.stdout.buffer.flush()


@click.command(name="set")
@click.argument("key")
@click.argument("value", required=False)
@click.option("--file", "file", type=click.File("rb"), help="Store the contents of this file.")
@click.option("--ttl", "ttl_s", type=_TTL, default="0", help="Delete it after this time.")
@click.option("--flags", type=whole(most=_U32_MAX), default="0", help="Number stored with it.")
@click.option("--cas", type=whole(most=_U64_MAX), default="0", help="Only over this version.")
@click.option("--add", is_flag=True, help="Only if there is no such document.")
@click.option("--replace", is_flag=True, help="Only if there is such a document.")
@click.option("--wait", is_flag=True, help="Return when it is on disk.")
@talks_to_a_node("Print one JSON object.", several=True)
def set_verb(
    key: str,
    value: str | None,
    file: BinaryIO | None,
    ttl_s: float,
    flags: int,
    cas: int,
    add: bool,
    replace: bool,
    wait: bool,
    node: NodeAccess,
    as_json: bool,
) -> int:
    """Store a document.

    The value is read from standard input if it is - or missing.
    """
    if (add and replace) or (cas and (add or replace)):
        raise ConfigError("--add, --replace and --cas exclude each other")
    if file is not None and value is not None:
        raise ConfigError("a value and --file exclude each other")
    name, body = key_named(key), _body(value, file)
    with client_of(node) as client:
        store = client.add if add else client.replace if replace else client.set
        more: dict[str, Any] = {"cas": cas} if cas else {}
        try:
            stored = store(name, body, flags=flags, expiry=expiry_of(ttl_s), **more)
        except KeyExists:
            other = " with another CAS" if cas else ""
            raise NodeError(f"{readable(name)} exists{other}") from None
        except KeyNotFound:
            raise NodeError(f"there is no document {readable(name)}") from None
        _tell(client, name, stored, node, wait=wait, as_json=as_json)
    return 0


def _body(value: str | None, file: BinaryIO | None) -> bytes:
    if file is not None:
        return file.read()
    if value in (None, "-"):
        return sys.stdin.buffer.read()
    return os.fsencode(str(value))


@click.command(name="del")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@talks_to_a_node("Print one JSON object.", several=True)
def del_verb(keys: tuple[str, ...], node: NodeAccess, as_json: bool) -> int:
    """Delete documents.

    If one of them does not exist, the others are deleted and the exit code is 1.
    """
    names = [key_named(text) for text in keys]
    with client_of(node) as client:
        deleted = client.delete_many(names)
    if as_json:
        click.echo(json.dumps({"deleted": len(deleted)}))
    missing = [readable(name) for name in names if name not in deleted]
    if missing:
        raise NodeError(f"there is no document {', '.join(missing)}")
    return 0


class _Counting(click.Command):
    """Takes ``incr KEY -5`` for what it says: to click, a word that begins so is an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        found = [
            f"--by={word}" if re.fullmatch("-[0-9]+", word) and not before.startswith("-") else word
            for before, word in zip(["", *args], args, strict=False)
        ]
        return super().parse_args(ctx, found)


@click.command(cls=_Counting)
@click.argument("key")
@click.argument("number", metavar="[N]", required=False, type=_AMOUNT)
@click.option("--by", type=_AMOUNT, metavar="N", help="What to add; may be negative.  [default: 1]")
@click.option("--initial", type=whole(most=_U64_MAX), help="Value of a document that is missing.")
@click.option("--ttl", "ttl_s", type=_TTL, default="0", help="With --initial: time to live.")
@talks_to_a_node("Print one JSON object.", several=True)
def incr(
    key: str,
    number: int | None,
    by: int | None,
    initial: int | None,
    ttl_s: float,
    node: NodeAccess,
    as_json: bool,
) -> int:
    """Add to the number in a document, and print the sum.

    Without N it adds 1. A number that would become negative becomes 0.
    """
    return _count(key, _amount(number, by), initial, ttl_s, node, as_json=as_json)


@click.command()
@click.argument("key")
@click.argument("number", metavar="[N]", default="1", type=whole(most=_U64_MAX))
@talks_to_a_node("Print one JSON object.", several=True)
def decr(key: str, number: int, node: NodeAccess, as_json: bool) -> int:
    """Subtract from the number in a document, and print it.

    Without N it subtracts 1. A number that would become negative becomes 0.
    """
    return _count(key, -number, None, 0, node, as_json=as_json)


def _amount(number: int | None, by: int | None) -> int:
    if number is not None and by is not None:
        raise ConfigError("N and --by exclude each other")
    return next((each for each in (number, by) if each is not None), 1)


def _count(
    key: str, by: int, initial: int | None, ttl_s: float, node: NodeAccess, *, as_json: bool
) -> int:
    name = key_named(key)
    with client_of(node) as client:
        try:
            number = client.count(name, by, initial=initial, expiry=expiry_of(ttl_s))
        except KeyNotFound:
            raise NodeError(
                f"there is no document {readable(name)}: create it with --initial"
            ) from None
        except DeltaBadValue:
            raise NodeError(f"the value of {readable(name)} is no whole number") from None
    click.echo(json.dumps({**text_or_base64("key", name), "value": number}) if as_json else number)
    return 0


@click.command()
@click.argument("key")
@click.argument("ttl_s", type=_TTL, metavar="TIME")
@talks_to_a_node("Print one JSON object.", several=True)
def touch(key: str, ttl_s: float, node: NodeAccess, as_json: bool) -> int:
    """Change when a document expires.

    TIME is a time from now, such as 5m or 40d, or 0 for never.
    """
    name = key_named(key)
    with client_of(node) as client:
        try:
            stored = client.touch(name, expiry_of(ttl_s))
        except KeyNotFound:
            raise NodeError(f"there is no document {readable(name)}") from None
        _tell(client, name, stored, node, wait=False, as_json=as_json)
    return 0


@click.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@talks_to_a_node("Print one JSON object for each document.", several=True)
def ttl(keys: tuple[str, ...], node: NodeAccess, as_json: bool) -> int:
    """Print in how many seconds documents expire, or never.

    With several keys, each line begins with the key. If a document does not exist, the exit code
    is 1.
    """
    names, missing = [key_named(text) for text in keys], []
    with client_of(node) as client:
        for name in names:
            meta = client.get_meta(name)
            if meta is None or meta.deleted:
                missing.append(readable(name))
                continue
            found = _lifetime(meta.expiry)
            if as_json:
                click.echo(json.dumps({**text_or_base64("key", name), **found}))
                continue
            seconds = "never" if found["ttl"] is None else found["ttl"]
            click.echo(seconds if len(names) == 1 else f"{readable(name)}  {seconds}")
    if missing:
        raise NodeError(f"there is no document {', '.join(missing)}")
    return 0


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks_to_a_node("Print one JSON object.")
def flush(yes: bool, node: NodeAccess, as_json: bool) -> int:
    """Delete all documents of a node.

    Its replicas become empty, too. On a terminal it asks first; elsewhere it needs --yes.
    """
    with node.connected() as connection:
        found = _items(connection)
        those = f"every document of {node.place}" + ("" if found is None else f" ({found:,})")
        if not yes and not sys.stdin.isatty():
            raise ConfigError(f"this deletes {those}: say --yes if you mean it")
        if not yes and not click.confirm(f"Delete {those}?", err=True):
            raise NodeError("nothing was deleted")
        answer = connection.ask(RequestFrame(Opcode.FLUSH))
    if answer.status:
        raise NodeError(f"the node at {node.place} refuses: {answer.reason}")
    if as_json:
        click.echo(json.dumps({"node": node.place, "documents": found}))
    else:
        click.echo(f"deleted {those}")
    return 0


def _items(connection: NodeConnection) -> int | None:
    """Return how many documents there are, ``None`` = this user may not know.

    Raises:
        NodeError: the node has nothing but replicas, which would be filled again.
    """
    try:
        states = {*connection.statistics("vbucket").values()}
        items = connection.statistics("").get("curr_items", "")
    except LoginWanted:
        raise
    except NodeError:
        return None
    if "active" not in states:
        raise NodeError(
            f"{connection.place} has no active vBuckets: flush the node that has them, and its "
            "replicas become empty"
        )
    return int(items) if items.isdecimal() else None


def _tell(
    client: KvClient, key: bytes, stored: Stored, node: NodeAccess, *, wait: bool, as_json: bool
) -> None:
    if wait:
        _wait_until_on_disk(client, key, node.timeout_s)
    if as_json:
        place = {**text_or_base64("key", key), "vbucket": client.vbucket_of(key)}
        click.echo(json.dumps({**place, "cas": str(stored.cas), "persisted": wait}))


def _wait_until_on_disk(client: KvClient, key: bytes, limit_s: float) -> None:
    """Ask until the newest version is on disk; it may be another one by then."""
    deadline, backoff = time.monotonic() + limit_s, Backoff(_WAIT_MIN_S, _WAIT_MAX_S)
    while client.observe([key])[key].state == ObservedState.NOT_PERSISTED:
        if time.monotonic() >= deadline:
            raise NodeError(f"{readable(key)} is stored, and not on disk after {limit_s:g} s")
        time.sleep(backoff.next())


# --- keys and dump --------------------------------------------------------------------------------


_DUMP_EPILOG = """\b
Examples:
  uprmc dump > documents.jsonl
  uprmc dump 'user:*' --node 10.0.0.2
  uprmc load documents.jsonl --flags flags --ttl ttl
"""

#: A lease is for so long, and renewed while keys are printed.
_LEASE_S = 60.0


@click.command()
@click.argument("pattern", default="")
@click.option("--limit", type=whole(least=1), help="Print no more keys than this.")
@click.option("--count", is_flag=True, help="Print only how many there are.")
@talks_to_a_node("Print one JSON object for each key.", several=True)
def keys(pattern: str, limit: int | None, count: bool, node: NodeAccess, as_json: bool) -> None:
    """Print the keys of documents.

    With PATTERN, only some are printed: 'user:*' those that begin so, '*:1' those that end so. A
    PATTERN without * is how keys begin, too; \\* is a star. Quote it for the shell.

    Each node is read as it is at one moment, from a lease, however many documents it has. The
    order is that of the last changes within each vBucket. Where a vBucket is active on no node that
    answers, nothing is printed, and the exit code is 1.
    """
    with closing(_changes(node, KeyPattern(pattern, whole=False), values=False)) as found:
        some = islice(found, limit)
        if count:
            number = sum(1 for _ in some)
            click.echo(json.dumps({"count": number}) if as_json else number)
            return
        for change in some:
            click.echo(_key_line(change, as_json))


@click.command(epilog=_DUMP_EPILOG)
@click.argument("pattern", default="")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to FILE, which is there when all is in it, or not at all.",
)
@talks_to_a_node("Has no effect: the lines are JSON anyway.", several=True)
def dump(pattern: str, out: Path | None, node: NodeAccess, as_json: bool) -> None:
    """Print documents as lines of JSON.

    They are as at one moment. With PATTERN, only some are printed, as "uprmc keys" takes it. Keys
    and values are texts; what is no UTF-8 is Base64, and key_encoding or value_encoding says so.
    "uprmc load" reads such lines.

    Each node is read from a lease. Where a vBucket is active on no node that answers, nothing is
    printed, and the exit code is 1.
    """
    from uprmc.jobs.files import whole_file

    with ExitStack() as stack:
        found = stack.enter_context(
            closing(_changes(node, KeyPattern(pattern, whole=False), values=True))
        )
        file = None
        if out is not None:
            try:
                path = stack.enter_context(whole_file(out))
                file = stack.enter_context(path.open("w", encoding="utf-8"))
            except OSError as error:
                raise ConfigError(f"--out {out}: {error.strerror}") from None
        for change in found:
            click.echo(_document(change, time.time()), file=file)


def _document(change: Change, now: float) -> str:
    fields = {
        **text_or_base64("key", change.key),
        **text_or_base64("value", change.value),
        "flags": change.flags,
        "ttl": max(1, math.ceil(change.expiry - now)) if change.expiry else 0,
        **exact({"cas": change.cas}),
        "rev": change.rev,
    }
    return json.dumps(fields, ensure_ascii=False)


def _changes(
    node: NodeAccess, pattern: KeyPattern, *, values: bool
) -> Generator[Change, None, None]:
    from uprmc.client.lease import Lease

    with client_of(node) as client:
        groups = client.by_place()
    for place, numbers in groups.items():
        lease = Lease(
            place,
            numbers,
            _LEASE_S,
            tls=node.tls,
            credentials=node.credentials,
            timeout_s=node.timeout_s,
        )
        with lease, closing(lease.read(values=values, renews=True)) as changes:
            for change in changes:
                if change.op == "set" and pattern.matches(change.key):
                    yield change


def _key_line(change: Change, as_json: bool) -> str:
    if not as_json:
        return readable(change.key)
    expires = time_text(change.expiry) if change.expiry else None
    place = {"vbucket": change.vbucket, "seqno": change.seqno}
    return json.dumps({**text_or_base64("key", change.key), **place, "expires": expires})
