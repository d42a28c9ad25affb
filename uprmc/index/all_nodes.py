"""What concerns every index node alike: designs on all of them, and one question to all.

Source: contracts section 4.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from uprmc.index.errors import Refused
from uprmc.index.json_text import strict_json
from uprmc.index.node_client import NodeClient, NodeFailed
from uprmc.index.paths import DESIGNS, design_path

#: A node says within this time what it has.
ASK_S = 5.0

_Result = TypeVar("_Result")


class AllNodes:
    """See the module docstring.

    Args:
        nodes: views listeners, HOST:PORT.
        client: speaks to nodes.
        timeout_s: a change of a design takes no longer at any node.
    """

    def __init__(self, nodes: Iterable[str], client: NodeClient, timeout_s: float) -> None:
        self.nodes = tuple(nodes)
        self.client = client
        self._timeout_s = timeout_s

    async def put(self, name: str, body: bytes) -> None:
        """Put a design on all nodes; raise `Refused`, naming those that lack it."""
        await self._everywhere("PUT", design_path(name), body, f"lack design {name!r}")

    async def delete(self, name: str) -> None:
        """Delete a design on all nodes; raise `Refused`, naming those that still have it."""
        await self._everywhere("DELETE", design_path(name), None, f"still have design {name!r}")

    async def undo(self, name: str) -> None:
        """Undo the last change on all nodes; raise `Refused`, naming those that still have it."""
        what = f"still have the last change of design {name!r}"
        await self._everywhere("POST", design_path(name, "_undo"), b"", what)

    async def listed(self) -> dict[str, Any]:
        """Return by name how nodes list their designs; raise `Refused` if no node answers."""
        answers = await self.asked(f"{DESIGNS}?local=true")
        found: dict[str, Any] = {}
        for answer in answers.values():
            rows = answer.get("rows") if isinstance(answer, dict) else None
            if isinstance(rows, list):
                named = [row for row in rows if isinstance(row, dict) and "name" in row]
                found = {str(row["name"]): row for row in named} | found
        return found

    async def info(self, name: str) -> dict[str, Any]:
        """Return what each node says of a design; raise `Refused` if none has it."""
        answers = await self.asked(f"{design_path(name, '_info')}?local=true")
        nodes = {
            node: answer if isinstance(answer, dict) else {"error": str(answer)}
            for node, answer in answers.items()
        }
        states = {str(each.get("state")) for each in nodes.values()}
        return {"name": name, "state": " ".join(sorted(states)), "nodes": nodes}

    async def asked(self, path: str) -> dict[str, Any]:
        """Return the answer of each node, or why it has none; raise `Refused` if all have none."""

        async def one(node: str) -> Any:
            try:
                return strict_json(await self.client.fetch(node, "GET", path, None, ASK_S))
            except (Refused, NodeFailed, ValueError) as error:
                return error

        found = dict(zip(self.nodes, await all_of(one(node) for node in self.nodes), strict=True))
        silent = {node: str(each) for node, each in found.items() if isinstance(each, Exception)}
        if len(silent) == len(found):
            raise first_refusal(found.values(), silent)
        return found

    async def _everywhere(self, method: str, path: str, body: bytes | None, what: str) -> None:
        path = f"{path}?local=true"

        async def one(node: str) -> Exception | None:
            try:
                await self.client.fetch(node, method, path, body, self._timeout_s)
            except (Refused, NodeFailed) as error:
                return error
            return None

        outcomes = await all_of(one(node) for node in self.nodes)
        failed = {
            node: error
            for node, error in zip(self.nodes, outcomes, strict=True)
            if error is not None
        }
        gone = [error for error in failed.values() if _status(error) == 404]
        if method == "DELETE" and len(gone) < len(self.nodes):
            failed = {node: error for node, error in failed.items() if _status(error) != 404}
        if failed:
            raise _not_everywhere(failed, len(self.nodes), what)


async def all_of(coroutines: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Await several at once; if that is cancelled, so are they."""
    begun = [Deferred.fromCoroutine(each) for each in coroutines]
    try:
        return [await each for each in begun]
    except BaseException:
        for each in begun:
            each.addErrback(lambda _: None)
            each.cancel()
        raise


def _status(error: Exception) -> int:
    return error.status if isinstance(error, Refused) else 0


def _not_everywhere(failed: dict[str, Exception], nodes: int, what: str) -> Refused:
    """Return the nodes' own refusal if all agree that the request is wrong."""
    first = next(iter(failed.values()))
    same = len(failed) == nodes and len({_status(error) for error in failed.values()}) == 1
    if isinstance(first, Refused) and same and first.status < 500:
        return first
    reasons = "; ".join(f"{node}: {error}" for node, error in failed.items())
    return Refused(503, "not_everywhere", f"these nodes {what}: {reasons}", nodes=[*failed])


def first_refusal(outcomes: Iterable[Any], silent: dict[str, str]) -> Refused:
    """Return why no node answers: their own refusal if all refuse."""
    refusals = [each for each in outcomes if isinstance(each, Refused)]
    if len(refusals) == len(silent):
        return refusals[0]
    reasons = "; ".join(f"{node}: {reason}" for node, reason in silent.items())
    return Refused(503, "unavailable", f"no index node answers: {reasons}", nodes=[*silent])
