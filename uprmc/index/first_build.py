"""The first build of an index: rows are sorted outside of the trees, which are written at once.

A document may come more than once; its newest version counts. Nothing is in the file before all is
loaded, so a build that is interrupted begins again.

Source: systems reference c.4; acceptance row I01.
"""

from __future__ import annotations

from collections.abc import Iterable

from uprmc.config import IndexSettings
from uprmc.index.edits import Latest
from uprmc.index.index_file import OpenFile, Trees
from uprmc.index.model import Document, Mapped
from uprmc.index.tree import BulkLoader


class FirstBuild:
    """See the module docstring.

    Attributes:
        documents: versions that have come.
    """

    def __init__(self, file: OpenFile, settings: IndexSettings) -> None:
        self.documents = 0
        self._file = file
        self._loader = BulkLoader(file.file, file.reducers, memory_bytes=settings.sort_bytes)

    def add(self, latest: Latest, mapped: Iterable[tuple[Document, Mapped]]) -> None:
        """Take the newest versions of documents; those that are deleted are not in `mapped`."""
        self._loader.add_many(
            [(document.key, document.vbucket, each.rows) for document, each in mapped]
        )
        nothing = ((),) * len(self._file.reducers)
        for (vbucket, key), there in latest.items():
            if there is None:
                self._loader.add(key, vbucket, nothing)
        self.documents += len(latest)

    def load(self) -> Trees:
        """Write the trees and return them."""
        return self._file.trees_of(self._loader.finish())

    def abandon(self) -> None:
        """Throw away what was sorted."""
        self._loader.discard()
