"""Which node has which vBucket, for a `KvClient`: connections, and what their nodes have told."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.client.errors import NotActive
from uprmc.errors import NotMyVBucket, UprmcError
from uprmc.model import vbucket_of
from uprmc.remote.blocking import KeptConnections
from uprmc.remote.directory import Directory, Why


class KvMap:
    """See the module docstring."""

    def __init__(
        self, places: Iterable[str], vbuckets: int, dial: Callable[[str], NodeConnection]
    ) -> None:
        self.directory = Directory(places, vbuckets)
        self.connections = KeptConnections(dial, NodeError)

    @property
    def vbuckets(self) -> int:
        """How many vBuckets the documents are spread over; 0 = not known yet."""
        return self.directory.vbuckets

    def vbucket_of(self, key: bytes) -> int:
        """Return where a key belongs."""
        return vbucket_of(key, self.directory.vbuckets)

    def connection(self, vbucket: int) -> NodeConnection | None:
        """Return the connection to the node that has the vBucket, ``None`` if none has."""
        place = self.directory.choice(vbucket).place
        return self.connections.get(place) if place else None

    def why_absent(self, vbucket: int) -> UprmcError:
        """Return what to say of a vBucket that no connection leads to."""
        missing = self.directory.missing([vbucket])
        if missing is None:
            return NodeError(f"the connection to {self.directory.choice(vbucket).place} was lost")
        kind = NotMyVBucket if missing.refused or not missing.silent else NodeError
        return kind(str(missing))

    def by_place(self) -> dict[str, list[int]]:
        """Return all vBuckets by the node that has them; raises `NotActive`."""
        missing = self.directory.missing(range(self.vbuckets))
        if missing is not None:
            raise NotActive(str(missing), missing.numbers)
        found: dict[str, list[int]] = {}
        for vbucket, place in self.directory.owners().items():
            found.setdefault(place, []).append(vbucket)
        return found

    def refresh(self) -> None:
        """Ask every node what it has; one that does not answer has nothing.

        Raises:
            NodeError: no node answers, or they do not make one bucket.
        """
        self.connections.survey(self.directory)
        for silence in self.directory.silent.values():
            if silence.why is Why.FOREIGN:
                raise NodeError(silence.words)
        if not self.directory.facts:
            silent = list(self.directory.silent.values())
            if len(silent) == 1 and silent[0].error is not None:
                raise silent[0].error
            raise NodeError("; ".join(each.words for each in silent))
        if not self.vbuckets:
            raise NodeError("no node tells how many vBuckets it has: say so with `vbuckets`")
