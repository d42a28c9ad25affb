"""What makes rows of documents and reductions of rows."""

from uprmc.index.mapping.mapper import make_mapper, make_reducer

__all__ = ["make_mapper", "make_reducer"]
