"""The rules of one node: order, versions, memory, and what reaches the disk when.

The engine uses domain terms (item, seqno, `KeyExists`), never opcodes. It is given a store, a clock
and a source of identifiers, and does nothing on its own: `server` drives it.
"""
