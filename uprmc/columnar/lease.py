"""Snapshot leases over all nodes: some vBuckets held as they are at one moment of each node.

A lease is one grant per node; `remote.lease` has its messages and its token.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

from uprmc.columnar.access import Access
from uprmc.columnar.connection import BACKOFF_MAX_S, Attempts, lent, patiently
from uprmc.columnar.errors import BadOption, LeaseEnded, NoVBucket
from uprmc.columnar.nodes import BulkNodes
from uprmc.errors import RemoteProtocolError
from uprmc.model import FailoverLog
from uprmc.protocol.opcodes import Status
from uprmc.remote import lease as messages
from uprmc.remote.blocking import NodeConnection, acquired_lease, renewed_lease
from uprmc.remote.errors import Busy, ClientError, LeaseRefused, Refused
from uprmc.remote.lease import Grant, parsed_token, token_of, whole_seconds
from uprmc.remote.requests import Verdict, verdict
from uprmc.remote.retry import Backoff, RetryPolicy


@dataclass(frozen=True)
class LeaseContents:
    """What a lease holds of one vBucket: everything of the history `uuid` up to `high_seqno`."""

    vbucket: int
    uuid: int
    high_seqno: int
    purge_seqno: int
    place: str


class BulkLease:
    """A snapshot lease over all nodes."""

    def __init__(
        self, access: Access, grants: Iterable[Grant], held: dict[int, LeaseContents], seconds: int
    ) -> None:
        self._access = access
        self.grants = tuple(grants)  # one per node
        self.held = held  # by vBucket; empty in a lease that was made of a token
        # its lifetime, and what a renewal asks for: the least that a node has granted
        self.seconds = seconds
        self.token = token_of(self.grants, seconds)  # the lease as text, without blanks

    @property
    def places(self) -> dict[int, str]:
        """The node that holds each vBucket; it need not have it active any more."""
        return {number: grant.place for grant in self.grants for number in grant.vbuckets}

    def place_of(self, vbucket: int) -> Grant:
        """Return the grant that holds a vBucket; raises `LeaseEnded` if none does."""
        for grant in self.grants:
            if vbucket in grant.vbuckets:
                return grant
        raise LeaseEnded(f"vb={vbucket} is not in the lease {self.token}")

    def renew(self, seconds: float | None = None) -> int:
        """Let it live for this time from now; returns what was granted, in seconds.

        A node that is away does not hinder renewing at the others.

        Raises:
            LeaseEnded: a node does not know it any more.
            NodeUnreachable, Refused.
        """
        wanted = granted_s = self.seconds if seconds is None else _checked(seconds)
        failed: list[ClientError] = []
        for grant in self.grants:
            try:
                granted_s = min(granted_s, _renewed(self._access, grant, wanted))
            except ClientError as error:
                failed.append(error)
        if failed:
            raise min(failed, key=lambda each: not isinstance(each, LeaseEnded))
        return granted_s

    def idling(self, seconds: int) -> BulkLease:
        """Return the same, whose readers renew it for no longer than this."""
        return BulkLease(self._access, self.grants, self.held, min(self.seconds, seconds))

    def only(self, vbuckets: Iterable[int]) -> BulkLease:
        """Return the part of it whose nodes hold some vBuckets."""
        wanted = set(vbuckets)
        grants = [each for each in self.grants if wanted.intersection(each.vbuckets)]
        return BulkLease(self._access, grants, self.held, self.seconds)

    def reached(self, wanted: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]] | None:
        """Return up to which seqno vBuckets have a number of rows, and how many up to there.

        `wanted` has the seqno to begin after and the number of rows. ``None`` = a node does not
        count rows, or cannot now.
        """
        found: dict[int, tuple[int, int]] = {}
        for grant in self.grants:
            mine = [number for number in grant.vbuckets if number in wanted]
            requests = [messages.rows_reached(grant.id, n, *wanted[n]) for n in mine]
            with lent(grant.place, self._access) as connection:
                answers = connection.ask_all(requests)
                if any(each.status for each in answers):
                    return None
                try:
                    found |= {n: messages.reached(a) for n, a in zip(mine, answers, strict=True)}
                except RemoteProtocolError as error:
                    raise connection.protocol_error(str(error)) from None
        return found

    def release(self) -> None:
        """End it. One that has ended, or a node that does not answer, is no error."""
        for grant in self.grants:
            try:
                with lent(grant.place, self._access) as connection:
                    connection.ask_all([messages.release(grant.id)])
            except ClientError:
                continue  # it lapses by itself


def acquire(
    access: Access, vbuckets: Iterable[int] | None, lifetime_s: float, reader: bytes = b""
) -> BulkLease:
    """Hold vBuckets as they are now; while a node holds too many leases, its turn is waited for.

    Args:
        vbuckets: by number; ``None`` = all that are active.
        lifetime_s: nodes may grant less (``upr.lease_max_s``).
        reader: the id under which who reads it is registered, see `registration`.

    Raises:
        LeaseRefused: a node has no leases, or none free in time.
        NoVBucket, NodeUnreachable, Refused, ...
    """
    seconds = _checked(lifetime_s)
    wanted = None if vbuckets is None else list(vbuckets)
    with BulkNodes(access) as nodes:
        moved = Attempts(access)
        while True:
            try:
                return _acquired(access, nodes, wanted, seconds, reader)
            except NoVBucket as error:
                if not nodes.directory.silent:
                    raise
                moved.wait(error)  # its node restarts, or another one is about to take over
            except _Moved as error:
                moved.wait(error)
            nodes.refresh()


def _acquired(
    access: Access, nodes: BulkNodes, vbuckets: list[int] | None, seconds: int, reader: bytes
) -> BulkLease:
    grants: list[Grant] = []
    held: dict[int, LeaseContents] = {}
    granted_s = seconds
    places = nodes.by_place(nodes.owners if vbuckets is None else vbuckets)
    try:
        for place, numbers in places.items():
            asked = partial(_acquired_at, access, numbers, seconds, reader)
            grant, details, its_s = nodes.at(place, asked)
            grants.append(grant)
            held |= details
            granted_s = min(granted_s, its_s)
    except BaseException:
        BulkLease(access, grants, {}, seconds).release()
        raise
    return BulkLease(access, grants, held, granted_s)


class _Moved(Refused):
    """A vBucket is not on the node any more that had it a moment ago: look again who has it."""


def of_token(access: Access, token: str) -> BulkLease:
    """Return the lease that a token names; it may have ended.

    Raises:
        BadOption: it is no token.
    """
    try:
        grants, seconds = parsed_token(token)
    except ValueError:
        raise BadOption(f"lease={token!r} is no token of a lease") from None
    return BulkLease(access, grants, {}, seconds)


def logs_of(nodes: BulkNodes, held: Mapping[int, LeaseContents]) -> dict[int, FailoverLog]:
    """Return the failover logs that belong to what a lease holds.

    Raises:
        LeaseEnded: a vBucket has got another history or another node meanwhile.
    """
    found = {}
    for number, now in nodes.standings(held).items():
        there = held[number]
        if (now.log[0][0], now.place) != (there.uuid, there.place):
            raise LeaseEnded(f"vb={number} got another history while its lease was taken")
        found[number] = now.log
    return found


class KeptLease:
    """A lease that is renewed, by a thread, for as long as its ``with`` statement lasts.

    One that was acquired elsewhere is renewed at once: most of its life may be over.
    """

    def __init__(
        self,
        access: Access,
        vbuckets: Iterable[int] | None = None,
        lifetime_s: float = 600.0,
        *,
        reader: bytes = b"",
        lease: BulkLease | None = None,
        release: bool = True,
    ) -> None:
        self._access = access
        self._release = release
        self._old = lease is not None
        # it was lost: a node has dropped it, or could not be reached for its whole life
        self.ended = False
        self.lease = lease or acquire(access, vbuckets, lifetime_s, reader)  # the lease itself
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    @property
    def token(self) -> str:
        """The lease as text."""
        return self.lease.token

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def join(self, timeout_s: float) -> None:
        """Wait until it is lost, but no longer than this."""
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Stop renewing, and release it unless it was acquired elsewhere."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self._access.connect_timeout_s)  # it may wait for a node that hangs
        if self._release and not self.ended:
            self.lease.release()

    def _keep(self) -> None:
        granted_s: float = self.lease.seconds
        pause_s = 0.0 if self._old else granted_s / messages.RENEWALS
        while not self._stop.wait(pause_s):
            try:
                granted_s = max(1.0, self.lease.renew())
            except LeaseEnded:
                self.ended = True
                return
            except ClientError:
                granted_s = max(1.0, granted_s / 2)
            pause_s = granted_s / messages.RENEWALS


def _acquired_at(
    access: Access,
    numbers: list[int],
    seconds: int,
    reader: bytes,
    connection: NodeConnection,
) -> tuple[Grant, dict[int, LeaseContents], int]:
    """Ask one node until it is our turn: other tasks of the same job hold leases, too."""
    patience_s = access.read_timeout_s
    backoff = Backoff(access.retry_backoff_s, BACKOFF_MAX_S)
    policy = RetryPolicy(backoff, time.monotonic(), patience_s=patience_s)
    while True:
        try:
            asked = numbers, seconds, reader, access.spare_leases
            number, granted_s, rows = acquired_lease(connection, *asked)
            break
        except LeaseRefused as error:
            if error.status == Status.NOT_MY_VBUCKET:
                raise _Moved(error.text) from None
            if error.status in (Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED):
                raise
            if verdict(error.status) is not Verdict.AGAIN:
                raise Refused(error.text) from None
            wait_s = policy.wait_s(time.monotonic(), random.random())
            if wait_s is None:
                raise LeaseRefused(
                    f"{error.text} for {patience_s:g} s; see `stats leases` and upr.leases there"
                ) from None
        time.sleep(wait_s)
    if [row.vbucket for row in rows] != numbers:
        raise connection.protocol_error("a lease of other vBuckets than were asked for")
    held = {row.vbucket: LeaseContents(*row, connection.place) for row in rows}
    return Grant(connection.place, number, tuple(numbers)), held, granted_s


def _renewed(access: Access, grant: Grant, seconds: int) -> int:
    def attempt() -> int:
        with lent(grant.place, access) as connection:
            try:
                return renewed_lease(connection, grant.id, seconds)
            except LeaseRefused as error:
                if error.status == Status.KEY_NOT_FOUND:
                    words = f"{grant.place} has no lease {grant.id:016x} any more"
                    raise LeaseEnded(words) from None
                again = verdict(error.status) is Verdict.AGAIN
                raise (Busy if again else Refused)(error.text) from None

    return patiently(access, attempt)


def _checked(seconds: float) -> int:
    try:
        return whole_seconds(seconds)
    except ValueError as error:
        raise BadOption(f"leaseSeconds={seconds}: {error}") from None
