"""How much of a file a tree uses: of leaves only their parents are read."""

from __future__ import annotations

from uprmc.index.tree.nodes import Inner, Pointer
from uprmc.index.tree.tree import Tree

__all__ = ["live_bytes"]


def live_bytes(tree: Tree) -> int:
    """Return the size of all nodes of a tree, as they are in the file."""
    if tree.root is None:
        return 0
    height, node = 0, tree.node(tree.root)
    while isinstance(node, Inner):
        height, node = height + 1, tree.node(node.pointers[0])
    return _below(tree, tree.root, height)


def _below(tree: Tree, pointer: Pointer, height: int) -> int:
    """Return the size of a node and of all below it; leaves are `height` levels below."""
    if not height:
        return pointer.size
    node = tree.node(pointer)
    pointers = node.pointers if isinstance(node, Inner) else []
    return pointer.size + sum(_below(tree, each, height - 1) for each in pointers)
