"""A blocking connection to a node, and what it raises: see `uprmc.remote.blocking`."""

from uprmc.remote.blocking import NodeConnection
from uprmc.remote.errors import LoginWanted, NodeError, NoSuchGroup, StatisticsRefused

__all__ = ["LoginWanted", "NoSuchGroup", "NodeConnection", "NodeError", "StatisticsRefused"]
