"""The maps of a design as they are run for one index: how often, and what went wrong."""

from __future__ import annotations

from collections import deque

from uprmc.index.model import Mapped, Mapper
from uprmc.index.rows import id_text
from uprmc.index.versions import Documents


class CountedMaps:
    """Runs maps, in the updater's thread.

    Args:
        mapper: runs them; it is closed with this.
        errors_max: of the newest errors so many are kept.

    Attributes:
        calls, errors_total: so far.
        errors: the last documents whose maps failed: (id, seqno, why).
    """

    def __init__(self, mapper: Mapper, errors_max: int) -> None:
        self._mapper = mapper
        self.calls = self.errors_total = 0
        self.errors: deque[tuple[str, int, str]] = deque(maxlen=errors_max)

    def map(self, documents: Documents) -> list[Mapped]:
        """Run the maps of documents; note what fails."""
        if not documents:
            return []
        found = self._mapper.map(documents)
        self.calls += len(found)
        for at, mapped in enumerate(found):
            if mapped.error is not None:
                self.errors_total += 1
                document = documents[at]
                self.errors.append((id_text(document.key), document.seqno, mapped.error))
        return found

    @property
    def log(self) -> list[tuple[str, str]]:
        """What functions have logged last: (id of the document, text)."""
        return list(self._mapper.log)

    def give_up(self) -> None:
        """Have maps that do not end raise `GivenUp`; any thread may call this."""
        self._mapper.give_up()

    def close(self) -> None:
        """Run no maps any more."""
        self._mapper.close()
