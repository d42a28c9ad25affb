"""Judges of what versions are called, over all nodes of a cluster and all their lives.

A CAS names one content of one document for ever: whoever compares with it must not meet another.
That is so wherever the document's history began with the same one: a node that lost its whole disk
and begins anew is a stranger, and both follow the same clock.
A revision only rises, over deletions too, dropped or not: else a document that begins anew would
lose against the deletion wherever that is still known.

Source: contracts of the systems to come, section 3; rows D04, X08.
"""

from __future__ import annotations

from tests.sim.judges import complain
from tests.sim.upr_codec import Version

Content = tuple[bytes, bool]


class CasJudge:
    """What every CAS that was ever seen names."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, bytes, int], tuple[Content, str]] = {}

    def saw(self, version: Version, origin: int, where: str) -> None:
        """A node holds this version in a history that began with this one."""
        if version.value is None:
            return  # its value has gone to the disk
        content = version.value, version.deleted
        known, there = self._names.setdefault((origin, version.key, version.cas), (content, where))
        if known != content:
            complain(
                f"CAS {version.cas} of {version.key!r} names {known} ({there}) "
                f"and {content} ({where})"
            )


def judge_revision(version: Version, before: Version | None, where: str) -> None:
    """A change follows the newest version of its key in the same history."""
    if before is not None and version.rev <= before.rev:
        complain(f"{where}: the revision falls from {before} to {version}")
