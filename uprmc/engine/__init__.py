"""The rules of one node: order, versions, memory, and what reaches the disk when.

The engine speaks domain words (item, seqno, `KeyExists`), never opcodes; it is handed a store, a
clock and a source of identifiers, and does nothing by itself: `server` drives it.
"""
