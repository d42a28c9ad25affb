"""The links of a node: made, listed and changed by an operator, and started again after restarts.

They are kept in one local document. `command` carries out a verb of ``uprmc xdcr``, given and
answered as JSON values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from uprmc.errors import (
    CommandError,
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    NotMyVBucket,
    TemporaryFailure,
)
from uprmc.xdcr import spec as specs
from uprmc.xdcr.checkpoint import Record
from uprmc.xdcr.link import Link
from uprmc.xdcr.shipment import shown
from uprmc.xdcr.spec import LinkSettings, LinkSpec
from uprmc.xdcr.world import SLICE_S, Slices, World

# --- status ---------------------------------------------------------------------------------------
# What people and tools see of a link: ``uprmc xdcr list``, ``status`` and ``checkpoints``.
#
# Numbers that can exceed 2^53 are texts, as everywhere in the contract.


#: Documents that the target refuses, in one answer.
SHOWN_REFUSED = 20


def line_of(link: Link) -> dict[str, Any]:
    """Return what a list shows of a link."""
    spec = link.spec
    return {
        "name": spec.name,
        "id": spec.id,
        "to": spec.to,
        "state": link.state,
        "connected": len(link.nodes.ready),
        "changes_left": link.progress.changes_left,
        "lag_s": round(link.progress.lag_seconds, 3),
        "rate": link.progress.rate,
        "error": link.error,
    }


def status_of(link: Link, numbers: Iterable[int]) -> dict[str, Any]:
    """Return all that is known of a link, and of some of its vBuckets."""
    active = link.bucket.active
    return {
        **line_of(link),
        **link.counters.shown(),
        "filter_key": link.spec.filter_key,
        "settings": link.spec.settings.shown(),
        "tls_ca": link.spec.tls_ca,
        "user": link.spec.user,
        "target_features": link.features,
        "nodes": link.nodes.shown(),
        "last_errors": link.errors.shown(),
        "refused": [
            {"vbucket": number, "key": shown(key), "reason": debt.why}
            for number, key, debt in islice(link.debts, SHOWN_REFUSED)
        ],
        "needs_reconcile": link.needs_reconcile,
        "branches": list(link.resuming.branches),
        "vbuckets": [_vbucket(link, number) for number in numbers if number in active],
    }


def _vbucket(link: Link, number: int) -> dict[str, Any]:
    shipment = link.shipments.get(number)
    records = link.store.records.get(number, ())
    newest = records[0] if records else Record(0, 0, 0, 0, 0, 0)
    uuid = newest.target_uuid if shipment is None else shipment.target_uuid
    return {
        "vbucket": number,
        "through_seqno": link.through(number),
        "high_seqno": link.bucket.active[number].high_seqno,
        "checkpoint_seqno": newest.seqno,
        "target_vb_uuid": str(uuid),
        "target_seqno": newest.target_seqno if shipment is None else shipment.target_seqno,
        "fast_forwarded_from": link.resuming.forwarded_from.get(number),
        "streaming": shipment is not None,
    }


def checkpoints_of(link: Link, numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Return the checkpoints that a link has written of some vBuckets, newest first."""
    return [
        {
            "link": link.spec.name,
            "vbucket": number,
            "source_vb_uuid": str(record.uuid),
            "source_seqno": record.seqno,
            "snapshot_start": record.snapshot_start,
            "snapshot_end": record.snapshot_end,
            "target_vb_uuid": str(record.target_uuid),
            "target_seqno": record.target_seqno,
            "created": record.created,
        }
        for number in numbers
        for record in link.store.records.get(number, ())
        if record.seqno
    ]


# --- links ----------------------------------------------------------------------------------------


#: VBuckets that one answer tells about.
STATUS_VBUCKETS, CHECKPOINTS_VBUCKETS = 256, 64

#: Checkpoints that one answer tells about; those of its last vBucket may exceed it.
ROWS_AT_ONCE = 250

#: Called with the answer to a verb, or the reason why there is none.
Answered = Callable[[Any], None]
Refused = Callable[[CommandError], None]


class Links:
    """The links of a node."""

    def __init__(self, world: World) -> None:
        self.by_name: dict[str, Link] = {}  # the links
        # Whether a place is a listener of this node.
        self.is_own: Callable[[str], bool] = lambda _place: False
        self._due: deque[Link] = deque()
        self._world = world
        self._bucket = world.hub.bucket
        self._slices = Slices(world.later, self._bucket.clock.monotonic)
        self._lists = 0
        self.received = world.received
        self._verbs: dict[str, Callable[[Mapping[str, Any], Answered, Refused], None]] = {
            "create": self._create,
            "list": self._list,
            "status": self._status,
            "pause": self._pause,
            "resume": self._resume,
            "set": self._set,
            "delete": self._delete,
            "checkpoint": self._checkpoint,
            "checkpoints": self._checkpoints,
            "record": self._record,
            "records": self._records,
            "reconcile": self._reconcile,
            "reconciled": self._reconciled,
            "purged": self._purged,
        }

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Go on with the links that the node had; call it once, after warm-up."""
        self.received.load()
        try:
            found = specs.decode(self._bucket.store.local(specs.NAME))
        except ValueError as error:
            self._world.on_trouble("", f"the links are not known: {error}; none runs")
            return
        for spec in found:
            self.by_name[spec.name] = Link(self._world, spec)

    def tick(self, now: float) -> None:
        """Learn the monotonic time in seconds; call it about ten times a second."""
        if not self._due:
            self._due.extend(self.by_name.values())
        self._tick_some(now)

    def _tick_some(self, now: float) -> None:
        monotonic = self._bucket.clock.monotonic
        until = monotonic() + SLICE_S
        while self._due:
            self._due.popleft().tick(now)
            if self._due and monotonic() >= until:
                self._world.later(0.0, partial(self._tick_some, now))
                return

    def close(self) -> None:
        """Hang up everywhere. The links stay written down."""
        self._slices.close()
        for link in self.by_name.values():
            link.close()

    # --- verbs ----------------------------------------------------------------------------------

    def command(
        self, verb: str, given: Mapping[str, Any], answered: Answered, refused: Refused
    ) -> None:
        """Carry out a verb.

        `answered` gets its JSON value, or `refused` the reason why there is none, now or later. One
        of both is called, whatever the target does.

        Raises:
            CommandError: it is refused at once; the text says why.
        """
        if not self._bucket.traffic:
            raise TemporaryFailure("warming up: try again in a few seconds")
        run = self._verbs.get(verb)
        if run is None:
            raise InvalidArguments(f"there is no verb {verb[:40]!r}")
        run(given, answered, refused)

    def _find(self, given: Mapping[str, Any]) -> Link:
        name = str(given.get("name", ""))
        link = self.by_name.get(name)
        if link is None:
            raise KeyNotFound(f"there is no link {name[:80]!r}")
        return link

    def _create(self, given: Mapping[str, Any], answered: Answered, refused: Refused) -> None:
        texts: dict[str, Any] = {name: str(given.get(name) or "") for name in _GIVEN}
        settings = LinkSettings().changed(_settings_of(given))
        number = self._bucket.entropy.uuid48()
        made = LinkSpec(texts["name"], f"{number:012x}", texts["to"], settings=settings)
        spec = specs.checked(replace(made, **texts))
        self._check_room(spec)

        def checked(why: str) -> None:
            if why:
                refused(InvalidArguments(why))
                return
            try:
                self._check_room(spec)  # another one may have come
            except CommandError as error:
                refused(error)
                return
            link = self.by_name[spec.name] = Link(self._world, spec)
            answer = {"name": spec.name, "id": spec.id}
            link.register(lambda: self._save(lambda: answered(answer)))

        self._world.check(spec, checked)

    def _check_room(self, spec: LinkSpec) -> None:
        """Refuse a link that this node cannot have."""
        if spec.name in self.by_name:
            raise KeyExists(f"there is a link {spec.name!r} already")
        most = self._bucket.settings.xdcr.links
        if len(self.by_name) >= most:
            raise TemporaryFailure(f"this node has {most} links already: delete one")
        own = next((place for place in spec.places if self.is_own(place)), None)
        if own is not None:
            raise InvalidArguments(f"{own} is this node itself: name another one")

    def _list(self, given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        rows: list[dict[str, Any]] = []
        links = [self.by_name[name] for name in sorted(self.by_name)]
        self._lists += 1
        self._slices.run(f"list {self._lists}", _lines_of(links, rows), lambda: answered(rows))

    def _status(self, given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        numbers, following = self._portion(given, STATUS_VBUCKETS)
        answered({**status_of(self._find(given), numbers), "next": following})

    def _pause(self, given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        link = self._find(given)
        paused = replace(link.spec, paused=True)
        link.pause(paused, lambda: self._save(lambda: answered(line_of(link))))

    def _resume(self, given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        link = self._find(given)
        link.resume(replace(link.spec, paused=False))
        self._save(lambda: answered(line_of(link)))

    def _set(self, given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        link = self._find(given)
        now = f"{self._bucket.entropy.uuid48():012x}"
        link.change(specs.with_settings(link.spec, _settings_of(given), now))
        self._save(lambda: answered(link.spec.settings.shown()))

    def _delete(self, given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        link = self._find(given)
        del self.by_name[link.spec.name]
        link.forget()
        link.close()
        self._save(lambda: answered({"name": link.spec.name}))

    def _reconcile(self, given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        """Begin; `reconciled` tells how far it is."""
        link = self._find(given)
        answered(link.reconcile(dry_run=bool(given.get("dry_run"))).shown(0))

    def _reconciled(self, given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        link, first = self._find(given), given.get("first", 0)
        if link.reconciliation is None:
            raise KeyNotFound("the link was not reconciled since the node was started")
        if not isinstance(first, int) or first < 0:
            raise InvalidArguments("the first vBucket is no place in a list")
        answered(link.reconciliation.shown(first))

    def _checkpoint(self, given: Mapping[str, Any], answered: Answered, refused: Refused) -> None:
        link = self._find(given)
        if not link.shipments:
            raise TemporaryFailure(f"the link is {link.state} and has no connection")
        flusher = self._bucket.flusher

        def written(why: str) -> None:
            if why:
                refused(TemporaryFailure(why))
            else:
                flusher.when_durable(lambda _: answered(line_of(link)), patient=False)

        link.checkpointing.write(written)

    def _checkpoints(self, given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        links = [self._find(given)] if given.get("name") else list(self.by_name.values())
        own: list[dict[str, Any]] = []
        received: list[dict[str, Any]] = []
        numbers, following = self._portion(given, CHECKPOINTS_VBUCKETS)
        for number in numbers:
            if len(own) + len(received) >= ROWS_AT_ONCE:
                following = number
                break
            own += [row for link in links for row in checkpoints_of(link, (number,))]
            received += self.received.shown((number,))
        answered(
            {
                "own": own,
                "received": [row for row in received if not row["via"]],
                "transitive": [row for row in received if row["via"]],
                "next": following,
            }
        )

    def _record(self, given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        """Keep what a link of another node tells about itself, or passes on."""
        rows = given.get("records")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise InvalidArguments("the records are no list of JSON objects")
        for row in rows:
            with suppress(NotMyVBucket):  # it moves; its new node gets it with the next checkpoint
                self.received.tell(row)
        answered(len(rows))

    def _records(self, given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        rows: list[dict[str, Any]] = []
        numbers, following = self._portion(given, CHECKPOINTS_VBUCKETS)
        source, histories = str(given.get("source") or "none"), _histories_of(given)
        for number in numbers:
            if len(rows) >= ROWS_AT_ONCE:
                following = number
                break
            rows += self.received.shown((number,), source, histories)
        answered({"records": rows, "next": following})

    def _portion(self, given: Mapping[str, Any], size: int) -> tuple[range, int | None]:
        """Return which vBuckets an answer is about, and the first of the next answer."""
        first, count = given.get("first", 0), self._bucket.settings.engine.vbuckets
        if not isinstance(first, int) or not 0 <= first < count:
            raise InvalidArguments("the first vBucket is none")
        following = first + size
        return range(first, min(following, count)), following if following < count else None

    def _purged(self, _given: Mapping[str, Any], answered: Answered, _: Refused) -> None:
        """Tell a link of another node up to where deletions are purged here."""
        active = self._bucket.active.items()
        answered({number: vb.purge_seqno for number, vb in active if vb.purge_seqno})

    def _save(self, done: Callable[[], None]) -> None:
        """Write down the links; `done` is called when that is on disk, or cannot be for now."""
        document = specs.encode(link.spec for link in self.by_name.values())
        self._bucket.flusher.write_local(
            specs.NAME, document, lambda _durable: done(), patient=False
        )


def _histories_of(given: Mapping[str, Any]) -> dict[int, list[str]]:
    found = given.get("histories") or {}
    try:
        return {int(number): [*map(str, uuids)] for number, uuids in found.items()}
    except (AttributeError, TypeError, ValueError):
        raise InvalidArguments("the histories are no object of lists by vBucket") from None


def _lines_of(links: Iterable[Link], rows: list[dict[str, Any]]) -> Iterator[None]:
    for link in links:
        rows.append(line_of(link))
        yield


_GIVEN = ("name", "to", "filter_key", "tls_ca", "user", "password_file")


def _settings_of(given: Mapping[str, Any]) -> Mapping[str, Any]:
    found = given.get("set") or {}
    if not isinstance(found, dict):
        raise InvalidArguments("the settings are no JSON object")
    return found
