"""What a link has done since it was started on this node; names as in ``uprmc xdcr status``."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field

#: Errors that are kept for ``last_errors``.
KEPT_ERRORS = 20


@dataclass(slots=True)
class Counters:
    """The counters of one link.

    Attributes:
        docs_written: documents and deletions that the target has stored.
        docs_checked: look-ups of the target's version.
        docs_opt_repd: documents that were sent without a look-up.
        docs_filtered: items that the filter left out.
        docs_failed_cr_source: documents not sent because the target's version is newer.
        docs_failed_cr_target: items that the target refused because its version is newer.
        docs_refused: items that the target has refused for another reason; see the errors.
        deletions_written: of `docs_written`, deletions.
        echoes_stopped: versions not sent because they come from the target.
        data_bytes: bytes of requests that were sent.
        docs_reconciled: documents that ``uprmc xdcr reconcile`` has deleted at the target.
        checkpoints, failed_checkpoints: written, and not.
    """

    docs_written: int = 0
    docs_checked: int = 0
    docs_opt_repd: int = 0
    docs_filtered: int = 0
    docs_failed_cr_source: int = 0
    docs_failed_cr_target: int = 0
    docs_refused: int = 0
    deletions_written: int = 0
    echoes_stopped: int = 0
    data_bytes: int = 0
    docs_reconciled: int = 0
    checkpoints: int = 0
    failed_checkpoints: int = 0

    def shown(self) -> dict[str, int]:
        """Return all of them by name."""
        return asdict(self)


@dataclass(slots=True)
class Errors:
    """The newest errors, each once, the newest last."""

    _kept: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_ERRORS))

    def add(self, text: str) -> None:
        """Keep an error."""
        if text in self._kept:
            self._kept.remove(text)
        self._kept.append(text)

    def shown(self) -> list[str]:
        """Return what is kept."""
        return list(self._kept)
