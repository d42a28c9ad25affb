"""Which node answers for which vBucket of a design: one for each, however many have it.

Rows I11, I14, I29.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

#: Most vBuckets of a map that a node sends.
_VBUCKETS_MAX = 65_536


class Holdings(NamedTuple):
    """What one node says it has of a design."""

    num_vbuckets: int  # of the bucket; 0 = it does not know yet
    epoch: int  # of the newest map that it has seen
    # vBuckets that it answers for, with the term in which each became active.
    active: Mapping[int, int]
    pending: frozenset[int]  # vBuckets that are on their way to it
    signature: str = ""  # of the definition that it answers with

    @classmethod
    def parse(cls, answer: Any) -> Holdings:
        """Read what a node sent; raise `ValueError` for what makes no sense."""
        try:
            found = cls(
                int(answer["num_vbuckets"]),
                int(answer["epoch"] or 0),
                {int(vbucket): int(term or 0) for vbucket, term in answer["active"].items()},
                frozenset(map(int, answer["pending"])),
                str(answer.get("signature", "")),
            )
        except (TypeError, KeyError, AttributeError, OverflowError):
            raise ValueError("it does not say which vBuckets it has") from None
        if not 0 <= found.num_vbuckets <= _VBUCKETS_MAX:
            raise ValueError(f"it has {found.num_vbuckets} vBuckets")
        return found


class Placement(NamedTuple):
    """Who answers for what."""

    total: int  # of the bucket's vBuckets, as far as any node knows
    nodes: Mapping[str, frozenset[int]]  # vBuckets of each node that has any
    epoch: int  # the highest of all nodes
    missing: frozenset[int]  # vBuckets that no node has
    coming: frozenset[int]  # those of them that are on their way to one
    signatures: Mapping[str, str]  # of the definition that each node answers with

    @property
    def is_whole(self) -> bool:
        """Whether it is known how many vBuckets there are, and each has a node."""
        return bool(self.total) and not self.missing


def placed(holdings: Mapping[str, Holdings], known: Mapping[int, int] | None = None) -> Placement:
    """Give each vBucket to the node that has it in the highest term; equals take turns.

    Args:
        holdings: of each node that answers.
        known: the highest terms that were ever heard of: who has a vBucket in a lower one was
            deposed, and is not asked, whether its successor answers or not.
    """
    terms = known or {}
    total = max((each.num_vbuckets for each in holdings.values()), default=0)
    newest: dict[int, tuple[int, list[str]]] = {}
    for node, each in sorted(holdings.items()):
        for vbucket, term in each.active.items():
            best = newest.get(vbucket)
            if term < terms.get(vbucket, 0):
                continue
            if best is None or term > best[0]:
                newest[vbucket] = term, [node]
            elif term == best[0]:
                best[1].append(node)
    nodes: dict[str, set[int]] = {}
    for vbucket in sorted(newest.keys() & range(total)):
        chosen = newest[vbucket][1]
        nodes.setdefault(chosen[vbucket % len(chosen)], set()).add(vbucket)
    missing = frozenset(range(total)) - newest.keys()
    pending = frozenset[int]().union(*(each.pending for each in holdings.values()))
    return Placement(
        total,
        {node: frozenset(vbuckets) for node, vbuckets in nodes.items()},
        max((each.epoch for each in holdings.values()), default=0),
        missing,
        pending & missing,
        {node: each.signature for node, each in holdings.items()},
    )
