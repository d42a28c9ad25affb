"""What a commit may need in memory is counted beforehand: never less than it then writes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.contracts.store_values import header, live
from uprmc.config import GIB, MIB, FlushSettings, StorageSettings
from uprmc.engine.commit_room import CommitRoom
from uprmc.record import pack
from uprmc.storage.directory import open_directory
from uprmc.storage.interface import CommitBatch, VBucketChange
from uprmc.storage.lmdb_files import DATA_FILE

PAGE_BYTES = 4_096


@dataclass(frozen=True)
class Story:
    """A store, and what is written to it."""

    documents: int
    vbuckets: int
    batch: int
    values: tuple[int, ...]
    sorted_first: bool = False
    dropped: int = 0


STORIES = {
    "many small documents": Story(10_000, 64, 1_500, (100,)),
    "few in each of many vBuckets": Story(3_000, 1_024, 600, (40, 200)),
    "a batch that is small for its store": Story(8_000, 4, 50, (100, 1_000)),
    "pages that are full of entries in order": Story(10_000, 1, 1_500, (20,), sorted_first=True),
    "large and small documents": Story(2_000, 16, 300, (50, 1_900, 2_100, 9_000)),
    "only large documents": Story(1_500, 16, 200, (4_096,)),
    "documents that are dropped": Story(8_000, 16, 500, (30,), dropped=300),
}


class Writing:
    """One run of a story, on files."""

    def __init__(self, path: Path, story: Story, memory: int) -> None:
        self.memory = memory
        settings = StorageSettings(map_initial=256 * MIB)
        self.store = open_directory(path, uuid=1, settings=settings, sync=False)
        self.file = path / DATA_FILE
        self.story = story
        self.random = random.Random(1)
        self.seqnos = [0] * story.vbuckets
        self.stored: dict[bytes, int] = {}

    def commit(self, keys: list[int], drops: Sequence[int] = ()) -> tuple[int, int]:
        """Write some keys and drop others; return the bytes that were counted and written."""
        items = len(keys) + len(drops)
        settings = replace(FlushSettings(), batch_items=items, commit_memory=self.memory)
        records_most = len(self.stored.keys() | {_key(number) for number in keys})
        room = CommitRoom(settings, 64 * GIB, self.store.trees(), lambda: records_most)
        changes = []
        for vbucket in range(self.story.vbuckets):
            dropped = self._dropped(vbucket, drops)
            records = self._records(vbucket, keys)
            room.use_drops(len(dropped))
            room.use(records)
            if dropped or records:
                at = header(self.seqnos[vbucket])
                changes.append(VBucketChange(vbucket, at, records, drop=dropped))
        before = self.file.read_bytes()
        self.store.commit(CommitBatch(changes))
        return self.memory - room.memory_bytes, _written(before, self.file.read_bytes())

    def _records(self, vbucket: int, keys: list[int]) -> list[bytes]:
        records = []
        for number in keys:
            if number % self.story.vbuckets == vbucket:
                self.seqnos[vbucket] += 1
                self.stored[_key(number)] = seqno = self.seqnos[vbucket]
                value = bytes(self.random.choice(self.story.values))
                records.append(pack(live(_key(number), seqno, value)))
        return records

    def _dropped(self, vbucket: int, drops: Sequence[int]) -> list[tuple[bytes, int]]:
        mine = [_key(number) for number in drops if number % self.story.vbuckets == vbucket]
        return [(key, self.stored.pop(key)) for key in mine if key in self.stored]


def _key(number: int) -> bytes:
    return b"%020d" % (number * 7_919 % 1_000_003)


def _written(before: bytes, after: bytes) -> int:
    pages = [
        at
        for at in range(0, len(after), PAGE_BYTES)
        if before[at : at + PAGE_BYTES] != after[at : at + PAGE_BYTES]
    ]
    return len(pages) * PAGE_BYTES


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("memory", [MIB, 128 * MIB])
def test_a_commit_writes_no_more_than_was_counted(tmp_path: Path, name: str, memory: int) -> None:
    story = STORIES[name]
    writing = Writing(tmp_path, story, memory)
    numbers = list(range(story.documents))
    first = numbers if story.sorted_first else writing.random.sample(numbers, len(numbers))
    for at in range(0, len(first), 4 * story.batch):
        counted, written = writing.commit(first[at : at + 4 * story.batch])
        assert written <= counted
    for number in range(8):
        if number % 4 == 3:
            numbers += range(len(numbers), len(numbers) + story.batch)
        drops = writing.random.sample(numbers, story.dropped)
        keys = [*{*writing.random.sample(numbers, story.batch)} - {*drops}]
        counted, written = writing.commit(keys, drops)
        assert written <= counted
    writing.store.close()
