"""What the index refuses, as it is answered over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from uprmc.units import in_ranges


class QueryRefused(Exception):
    """A request is refused."""

    def __init__(self, status: int, error: str, reason: str, **fields: Any) -> None:
        super().__init__(reason)
        self.status = status  # of HTTP
        self.error = error  # one word for programs: ``bad_request``, ``not_found``, ``timeout``
        self.reason = reason  # one sentence for people
        self.fields = fields  # what else the answer names

    def body(self) -> dict[str, Any]:
        """Return the answer's JSON object."""
        return {"error": self.error, "reason": self.reason, **self.fields}


def bad_request(reason: str, **fields: Any) -> QueryRefused:
    """Return the refusal of a request that makes no sense."""
    return QueryRefused(400, "bad_request", reason, **fields)


def not_found(reason: str) -> QueryRefused:
    """Return the refusal of a request for what is not there."""
    return QueryRefused(404, "not_found", reason)


def timed_out(reason: str) -> QueryRefused:
    """Return the refusal of a request that waited for as long as it may."""
    return QueryRefused(504, "timeout", reason)


def version_lost(vbucket: int, vb_uuid: int, seqno: int) -> QueryRefused:
    """Return the refusal of an `at` token that no index will ever reach (row I27)."""
    reason = f"vBucket {vbucket} has left the history {vb_uuid} below seqno {seqno}"
    numbers = {"vbucket": vbucket, "vb_uuid": str(vb_uuid), "seqno": seqno}
    return QueryRefused(409, "version_lost", reason, **numbers)


def outdated(vbuckets: Iterable[int], why: str, epoch: int) -> QueryRefused:
    """Return the refusal of a request made by an outdated map: fetch it again (row I14)."""
    found = list(vbuckets)
    reason = f"vBuckets {in_ranges(found)}: {why}"
    return QueryRefused(503, "set_view_outdated", reason, vbuckets=found, epoch=epoch)


class Replaced(QueryRefused):
    """The index that a request waits for has ended: another definition answers, or none does."""

    def __init__(self) -> None:
        super().__init__(503, "unavailable", "the index ended while this waited; ask again")


class IndexDamaged(Exception):
    """An index file cannot be read; the text is one line for the operator."""


class IndexRolledBack(IndexDamaged):
    """What is to be read was cut off from its file by a rollback; ask for a new snapshot."""


class GivenUp(Exception):
    """Documents are not mapped any more: the index is about to end."""


class WentBack(Exception):
    """The index has fallen back to an older header; its streams begin again from there."""
