"""What answers at a place, as a node tells it: its versions, and which of its listeners."""

from __future__ import annotations

from typing import NamedTuple

from uprmc.client.connection import LoginWanted, NodeConnection, NodeError
from uprmc.places import Place, parsed
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode

#: The first two may be asked for without a role; the others may not.
_GROUPS = ("settings", "index", "", "settings-uprmc")

#: A statistic that only a node of ours has, and that every user may see.
_OURS = "views_tls"

_ANY_PORT = 0


class AboutNode(NamedTuple):
    """What a node tells about itself.

    Attributes:
        version: of memcached, as whose kind it presents itself.
        uprmc_version: its own, empty = it is another server, or the user may not know.
        is_ours: whether it is a node of uprmc.
        listener: ``upr`` or ``memcached``, empty = not known, for example behind a proxy.
        memcached: where its listener for memcached's clients is, empty = nowhere, or not known.
    """

    version: str
    uprmc_version: str
    is_ours: bool
    listener: str
    memcached: str


def about(connection: NodeConnection) -> AboutNode:
    """Ask a node; raises `NodeError`."""
    answer = connection.ask(RequestFrame(Opcode.VERSION))
    if answer.status:
        raise NodeError(f"the node at {connection.place} refuses VERSION: {answer.reason}")
    told: dict[str, str] = {}
    for group in _GROUPS:
        try:
            told.update(connection.statistics(group))
        except LoginWanted:
            raise
        except NodeError:  # another server, or the user may not know
            continue
    here = parsed(connection.place)
    memcached = _memcached(told, here)
    return AboutNode(
        answer.value.decode("latin-1"),
        told.get("uprmc_version", ""),
        _OURS in told,
        "memcached" if connection.place == memcached else "upr" if _is_upr(told, here) else "",
        memcached,
    )


def _memcached(told: dict[str, str], here: Place) -> str:
    port, path = told.get("tcpport", "0"), told.get("domain_socket", "NULL")
    if path != "NULL":
        return f"unix:{path}"
    if port == "0":
        return ""
    host = here.host or "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_upr(told: dict[str, str], here: Place) -> bool:
    try:
        upr = parsed(told.get("server.upr", ""), least_port=_ANY_PORT)
    except ValueError:
        return False
    return upr.path == here.path and upr.port in (_ANY_PORT, here.port)
