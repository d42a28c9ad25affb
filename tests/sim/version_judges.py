"""Judges of what versions are called, over all nodes of a cluster and all their lives.

A revision only rises, over deletions too, dropped or not: else a document that begins anew would
lose against the deletion wherever that is still known.

Source: contracts of the systems to come, section 3; row X08.
"""

from __future__ import annotations

from tests.sim.judges import complain
from tests.sim.upr_codec import Version


def judge_revision(version: Version, before: Version | None, where: str) -> None:
    """A change follows the newest version of its key in the same history."""
    if before is not None and version.rev <= before.rev:
        complain(f"{where}: the revision falls from {before} to {version}")
