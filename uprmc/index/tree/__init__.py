"""Trees of an index in an append-only file: old states stay readable until it is compacted."""

from uprmc.index.tree.bulk import BulkLoader, compact
from uprmc.index.tree.disk import Room, limit_disk
from uprmc.index.tree.file import IndexFile, NodeCache, limit_cache
from uprmc.index.tree.nodes import Header, IndexPosition, Pointer
from uprmc.index.tree.tree import Tree

__all__ = [
    "BulkLoader",
    "Header",
    "IndexFile",
    "IndexPosition",
    "NodeCache",
    "Pointer",
    "Room",
    "Tree",
    "compact",
    "limit_cache",
    "limit_disk",
]
