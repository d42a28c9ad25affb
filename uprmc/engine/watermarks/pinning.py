"""What each client alone keeps from being purged, and that this is not too much.

What counts is what would go without the client's rows, in all vBuckets that are active here. A
client that keeps more than ``purge.max_pinned_bytes`` is forgotten early, with an event; if its
connection is open it may register again, from where nothing has been purged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from uprmc.engine.tombstones import Amount
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks.registry import Pinned, Watermarks
from uprmc.engine.watermarks.rows import Kind

#: A client: its id, and its kind.
Client = tuple[bytes, Kind]


class Pinning:
    """Looks at all clients whenever `steps` is run.

    Attributes:
        kept: what the last look found, of clients that alone keep something.
    """

    def __init__(
        self,
        vbuckets: Mapping[int, VBucket],
        watermarks: Watermarks,
        pinned: Callable[[VBucket], Pinned | None],
        max_bytes: int,
    ) -> None:
        self._vbuckets = vbuckets
        self._watermarks = watermarks
        self._pinned = pinned
        self._max_bytes = max_bytes
        self.kept: dict[Client, Amount] = {}

    def steps(self) -> Iterator[None]:
        """Look at all vBuckets, again as long as a client was forgotten; yields after each."""
        while True:
            kept: dict[Client, Amount] = {}
            for vbucket in list(self._vbuckets.values()):
                pinned = self._pinned(vbucket)
                if pinned is not None:
                    client = pinned.row.id, pinned.row.kind
                    kept[client] = kept.get(client, Amount()).plus(pinned.amount)
                yield
            self.kept = kept
            over = {name for (name, _), amount in kept.items() if self._is_over(amount)}
            if not over:
                return
            yield from self._forget(over)

    def _is_over(self, amount: Amount) -> bool:
        return 0 < self._max_bytes < amount.bytes

    def _forget(self, names: set[bytes]) -> Iterator[None]:
        for vbucket in list(self._vbuckets.values()):
            for name in names:
                self._watermarks.expire_early(vbucket, name, self._pinned(vbucket))
                yield
