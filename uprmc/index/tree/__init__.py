"""Trees of an index in an append-only file: old states stay readable until it is compacted."""

from uprmc.index.tree.bulk import BulkLoader
from uprmc.index.tree.cache import NodeCache
from uprmc.index.tree.compaction import compact
from uprmc.index.tree.disk import Room, limit_disk
from uprmc.index.tree.file import IndexFile, limit_cache
from uprmc.index.tree.header import Header, Position
from uprmc.index.tree.nodes import Pointer
from uprmc.index.tree.tree import Tree

__all__ = [
    "BulkLoader",
    "Header",
    "IndexFile",
    "NodeCache",
    "Pointer",
    "Position",
    "Room",
    "Tree",
    "compact",
    "limit_cache",
    "limit_disk",
]
