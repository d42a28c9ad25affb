"""The judge of what clients see of one document: is there one order that explains all of it?

For each key and each life of the node it searches an order of the operations in which every one
takes effect at one moment between its invocation and its end, and every reply is what a plain
register with CAS, lock and expiry would have answered then. Operations of one connection take
effect in the order sent. An operation without a reply took effect before its connection ended, or
not at all. A life begins with what the disk shows.

It walks along the events and keeps all situations that are still possible: a state of the document,
and which of the open operations have already taken effect. With few clients and values that are
written only once these are a handful.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.sim import codec
from tests.sim.judges import Op, Record, complain

#: More situations than this mean that the workload is too parallel for this judge.
_SITUATIONS_MAX = 50_000

_NEVER = (0.0, 0.0)


class Document(NamedTuple):
    """A state of one document."""

    value: bytes | None = None  # ``None`` when there is none
    cas: int = 0  # 0 when it is not known (nobody was told)
    flags: int = 0  # the client's bits
    # earliest and latest Unix time at which it expires; zeros for never
    expiry: tuple[float, float] = _NEVER
    lock: int = 0  # the CAS that opens its lock, 0 for none, -1 for an unknown one
    until: tuple[float, float] = _NEVER  # earliest and latest Unix time at which the lock lapses
    # of an absent one that expired: its CAS, -1 if unknown. Until somebody notices, it is still in
    # the table, where OBSERVE sees it.
    ghost: int = 0


ABSENT = Document()


def stored(record: Record | None) -> Document:
    """Return the state that a life begins with."""
    if record is None or record.life:
        return ABSENT
    expiry = (float(record.expiry), float(record.expiry))
    return Document(record.value, record.cas, record.flags, expiry)


class Open(NamedTuple):
    """A situation: the document, and the open operations that have taken effect."""

    document: Document
    done: frozenset[int]


def judge_key(key: bytes, begin: Document, ops: list[Op]) -> None:
    """Judge one life of one document; `ops` are its operations, flushes included."""
    events = sorted(
        [(op.began, True, op) for op in ops]
        + [(op.ended, False, op) for op in ops if op.ended is not None],
        key=lambda event: event[0],
    )
    under_way: dict[int, Op] = {}
    situations = {Open(begin, frozenset())}
    for _, begins, op in events:
        if begins:
            under_way[op.began] = op
            continue
        before = situations
        situations = _after_end(situations, under_way, op)
        del under_way[op.began]
        if not situations:
            seen = "\n  ".join(str(each) for each in ops if each.began <= (op.ended or 0))
            complain(f"{key!r}: nothing explains {op}\n from {before}\n after\n  {seen}")


def _after_end(situations: set[Open], under_way: dict[int, Op], ended: Op) -> set[Open]:
    """Return the situations that are possible after `ended` has ended."""
    kept: set[Open] = set()
    seen = set(situations)
    todo = list(situations)
    while todo:
        situation = todo.pop()
        document, done = situation
        if ended.began in done:
            kept.add(Open(document, done - {ended.began}))
            continue
        if not ended.answered:
            kept.add(situation)  # it never happened
        for op in under_way.values():
            if op.began in done or _waits_for_another(op, under_way, done):
                continue
            for after in _after(document, op, ended.ended_at):
                new = Open(after, done | {op.began})
                if new not in seen:
                    seen.add(new)
                    todo.append(new)
        assert len(seen) < _SITUATIONS_MAX, "too many situations: use fewer clients"
    return kept


def _waits_for_another(op: Op, under_way: dict[int, Op], done: frozenset[int]) -> bool:
    return any(
        other.connection == op.connection
        and other.client == op.client
        and other.began < op.began
        and other.began not in done
        for other in under_way.values()
    )


# --- one operation on one document ----------------------------------------------------------------


def _after(document: Document, op: Op, now: float) -> Iterator[Document]:
    """Yield what `op` can make of the document, given its reply, if it happens by `now`."""
    if op.status in (codec.TRY_AGAIN, codec.NO_MEMORY) and op.kind != "flush":
        yield document
        return
    if not op.answered:
        yield document  # refused
    for seen in _by_time(document, op, now):
        for status, cas, value, after in _outcomes(seen, op, now):
            if not op.answered or _explains(op, status, cas, value, seen):
                yield after


def _by_time(document: Document, op: Op, now: float) -> Iterator[Document]:
    """Yield the document as time may have left it: expired or not, its lock lapsed or not."""
    earliest, latest = document.expiry
    if document.value is not None and latest:
        if now >= earliest:
            yield Document(ghost=document.cas or -1)
        if op.began_at >= latest and op.kind != "observe":  # it does not look at the time
            return
    if document.lock:
        if now >= document.until[0]:
            yield document._replace(lock=0, until=_NEVER)
        if op.began_at >= document.until[1]:
            return
    yield document


def _explains(op: Op, status: int, cas: int, value: bytes | None, seen: Document) -> bool:
    """Tell whether the reply is this outcome. A CAS of 0 and a value of ``None`` fit any."""
    if op.status != status:
        return False
    reply = op.reply
    if reply is None or status != codec.OK:
        return True
    if op.kind in ("get", "getl", "touch") and reply.flags != seen.flags:
        return False
    if cas and reply.cas != cas:
        return False
    return value is None or reply.value == value


Outcome = tuple[int, int, bytes | None, Document]


def _outcomes(seen: Document, op: Op, now: float) -> Iterator[Outcome]:
    """Yield (status, CAS, value, document after) of what a register could answer."""
    if op.kind in ("set", "add", "replace"):
        yield from _store(seen, op, now)
    elif op.kind == "flush":
        yield codec.OK, 0, None, ABSENT
        yield codec.TRY_AGAIN, 0, None, ABSENT  # it goes on trying
        yield codec.TRY_AGAIN, 0, None, seen  # or it was never let in
    elif op.kind == "observe":
        yield from _observe(seen, op)
    elif op.kind == "incr":
        yield from _increment(seen, op)
    elif seen.value is None:
        yield (codec.NOT_STORED if op.kind == "append" else codec.NOT_FOUND), 0, None, seen
    elif op.kind == "get":
        cas = codec.CAS_HIDDEN if seen.lock else seen.cas
        yield codec.OK, cas, seen.value, _with_cas(seen, op)
    elif op.kind == "touch":
        yield from _touch(seen, op, now)
    elif op.kind == "getl":
        yield from _lock(seen, op, now)
    elif op.kind == "unlock":
        yield from _unlock(seen, op)
    elif op.kind == "append":
        yield from _change(seen, op, seen._replace(value=seen.value + op.value))
    else:
        assert op.kind == "delete"
        yield from _change(seen, op, ABSENT)


def _expiry(op: Op, now: float) -> tuple[float, float]:
    if not op.exptime:
        return _NEVER
    return float(int(op.began_at) + op.exptime), float(int(now) + op.exptime)


def _with_cas(document: Document, op: Op) -> Document:
    """Learn a CAS that was not known."""
    reply = op.reply
    if document.cas or document.lock or reply is None or reply.status != codec.OK:
        return document
    return document._replace(cas=reply.cas)


def _new_cas(op: Op) -> int:
    return op.reply.cas if op.reply is not None and op.reply.status == codec.OK else 0


def _store(seen: Document, op: Op, now: float) -> Iterator[Outcome]:
    new = Document(op.value, _new_cas(op), op.flags, _expiry(op, now))
    if seen.value is None:
        if op.cas or op.kind == "replace":
            yield codec.NOT_FOUND, 0, None, seen
        else:
            yield codec.OK, 0, None, new
    elif op.kind == "add" and not op.cas:
        yield codec.EXISTS, 0, None, seen
    else:
        yield from _change(seen, op, new)


def _change(seen: Document, op: Op, new: Document) -> Iterator[Outcome]:
    """Yield what a change of an existing document gives: CAS and lock decide."""
    after = ABSENT if new.value is None else new._replace(cas=_new_cas(op), lock=0, until=_NEVER)
    if seen.lock:
        if seen.lock in (op.cas, -1) and op.cas:
            yield codec.OK, 0, None, after
        if seen.lock != op.cas:
            yield codec.LOCKED if op.lock_status else codec.EXISTS, 0, None, seen
        return
    if not op.cas or seen.cas in (op.cas, 0):
        yield codec.OK, 0, None, after
    if op.cas and seen.cas != op.cas:
        yield codec.EXISTS, 0, None, seen


def _increment(seen: Document, op: Op) -> Iterator[Outcome]:
    if seen.value is None:
        if op.exptime == codec.NEVER_CREATE:
            yield codec.NOT_FOUND, 0, None, seen
        else:
            new = Document(b"%d" % op.initial, _new_cas(op))
            yield codec.OK, 0, codec.number64(op.initial), new
        return
    number = int(seen.value) + op.delta
    text = (b"%d" % number).ljust(len(seen.value))
    for status, cas, _, after in _change(seen, op, seen._replace(value=text)):
        yield status, cas, codec.number64(number), after


def _touch(seen: Document, op: Op, now: float) -> Iterator[Outcome]:
    if seen.lock:
        yield codec.LOCKED if op.lock_status else codec.EXISTS, 0, None, seen
        return
    after = _with_cas(seen, op)._replace(expiry=_expiry(op, now))
    yield codec.OK, seen.cas, None, after


def _lock(seen: Document, op: Op, now: float) -> Iterator[Outcome]:
    if seen.lock:
        yield codec.LOCKED if op.lock_status else codec.TRY_AGAIN, 0, None, seen
        return
    cas = _new_cas(op) or -1
    until = (op.began_at + op.exptime, now + op.exptime)
    yield codec.OK, 0, seen.value, seen._replace(lock=cas, until=until)


def _unlock(seen: Document, op: Op) -> Iterator[Outcome]:
    if seen.lock in (op.cas, -1):
        yield codec.OK, 0, None, seen._replace(lock=0, until=_NEVER)
    if seen.lock != op.cas:
        refusal = codec.LOCKED if seen.lock else codec.NOT_LOCKED
        yield refusal if op.lock_status else codec.TRY_AGAIN, 0, None, seen


def _observe(seen: Document, op: Op) -> Iterator[Outcome]:
    if op.reply is None or op.reply.status != codec.OK:
        yield codec.OK, 0, None, seen
        return
    ((_, _, state, cas),) = codec.observed(op.reply.value)
    if state in (codec.ABSENT, codec.DELETED):
        if seen.value is None:
            yield codec.OK, 0, None, seen
    elif seen.value is None:
        if seen.ghost in (-1, cas):
            yield codec.OK, 0, None, seen
    elif seen.value is not None and seen.cas in (0, cas):
        yield codec.OK, 0, None, seen._replace(cas=cas)
