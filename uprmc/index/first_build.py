"""The first build of an index: rows are sorted outside of the trees, which are written at once.

A document may come more than once; its newest version counts. Nothing is in the file before all is
loaded, so a build that is interrupted begins again.

Source: systems reference c.4; acceptance row I01.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from uprmc.config import IndexSettings
from uprmc.index.index_file import OpenFile, Trees
from uprmc.index.model import Mapped
from uprmc.index.tree import BulkLoader
from uprmc.index.versions import Latest

_rows = attrgetter("rows")


class FirstBuild:
    """See the module docstring.

    Attributes:
        documents: versions that have come.
    """

    def __init__(self, file: OpenFile, settings: IndexSettings) -> None:
        self.documents = 0
        self._file = file
        self._loader = BulkLoader(file.file, file.reducers, memory_bytes=settings.sort_bytes)

    def add(self, latest: Latest, mapped: Sequence[Mapped]) -> None:
        """Take the newest versions of documents, and what their maps have emitted."""
        documents, gone = latest
        self._loader.add_many(documents.keys, documents.vbuckets, list(map(_rows, mapped)))
        nothing = ((),) * len(self._file.reducers)
        for vbucket, key in gone:
            self._loader.add(key, vbucket, nothing)
        self.documents += len(documents) + len(gone)

    def load(self) -> Trees:
        """Write the trees and return them."""
        return self._file.trees_of(self._loader.finish())

    def abandon(self) -> None:
        """Throw away what was sorted."""
        self._loader.discard()
