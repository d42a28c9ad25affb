"""Index files after crashes and damage: the newest sound header, or one line that says why not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.index.disks import MemoryDisk, Operation, replayed
from tests.index.reducing import Lengths
from uprmc.index.errors import IndexDamaged, IndexRolledBack
from uprmc.index.model import Entry
from uprmc.index.tree import Header, IndexFile, IndexPosition, NodeCache, Pointer, Tree, compact
from uprmc.index.tree import file as file_module
from uprmc.index.tree.nodes import BLOCK, decode_header, encode_header

PATH = Path("design.index")
IDENTITY = bytes(range(16))


class Life:
    """A file that lived through changes, headers and rollbacks.

    Attributes:
        rows: what there was at each header, by its number.
        newest: (after how many operations, number of the newest header since).
    """

    def __init__(self, seed: int, headers: int = 6) -> None:
        self.rng = random.Random(seed)
        self.disk = MemoryDisk()
        self.file = IndexFile.create(PATH, disk=self.disk, identity=IDENTITY)
        self.rows: dict[int, list[Entry]] = {-1: []}
        self.newest: list[tuple[int, int]] = [(0, -1)]
        self.tree = Tree(self.file, None, Lengths())
        for number in range(headers):
            for _ in range(self.rng.randrange(3)):
                self.change()
            self.write_header(number)
            if self.rng.random() < 0.2:
                self.roll_back()

    def change(self) -> None:
        rng = self.rng
        # Neighbours, so that most leaves stay as they were written with an older header.
        start = rng.randrange(700)
        numbers = range(start, start + 60) if self.tree.count else range(0, 700, 2)
        new = [Entry(b"%03d" % n, n % 4, rng.randbytes(rng.randrange(60))) for n in numbers]
        self.tree = self.tree.update([b"%03d" % rng.randrange(700)], new)
        if rng.random() < 0.5:
            self.file.flush()

    def write_header(self, number: int) -> None:
        sync = self.rng.random() < 0.5
        self.file.write_header(Header(roots=(None, self.tree.root), epoch=number), sync)
        self.rows[number] = list(self.tree.rows())
        self.newest.append((len(self.disk.operations) - sync, number))

    def roll_back(self) -> None:
        back = self.rng.choice(list(self.file.headers()))
        self.file.truncate_to(back)
        self.tree = Tree(self.file, back.roots[1], Lengths())
        self.newest.append((len(self.disk.operations) - 1, back.epoch))

    def newest_after(self, operations: int) -> int:
        return [number for count, number in self.newest if count <= operations][-1]


def state_of(life: Life, disk: MemoryDisk, *, flipped: bool = False) -> int:
    """Return which header a disk is opened at, if its rows are right; -1 = none, with one line.

    Rows may also be refused with one line if something was `flipped`.
    """
    try:
        file = IndexFile.open(PATH, disk=disk, cache=NodeCache(0))
    except IndexDamaged as error:
        assert_one_line(error)
        return -1
    assert file.header is not None
    assert disk.size() == file.header.end
    tree = Tree(file, file.header.roots[1], Lengths())
    try:
        rows = list(tree.rows())
        assert tree.count == len(rows)
        assert rows == life.rows[file.header.epoch]
    except IndexDamaged as error:
        assert flipped
        assert_one_line(error)
    return file.header.epoch


def assert_one_line(error: Exception) -> None:
    assert str(error).startswith(str(PATH))
    assert "\n" not in str(error)


@pytest.mark.parametrize("seed", range(20))
def test_a_process_killed_at_any_write_leaves_the_newest_header(seed: int) -> None:
    life = Life(seed)
    done = life.disk.operations
    for count, operation in enumerate(done):
        assert state_of(life, replayed(done[:count])) == life.newest_after(count)
        for cut in {1, len(operation.data or b"") // 2, len(operation.data or b"") - 1}:
            if operation.data:
                torn = [*done[:count], Operation(operation.offset, operation.data[:cut])]
                assert state_of(life, replayed(torn)) == life.newest_after(count)
    assert state_of(life, replayed(done)) == life.newest_after(len(done))


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_that_loses_any_writes_since_a_sync_leaves_what_was_synced_or_newer(
    seed: int,
) -> None:
    life, rng = Life(seed), random.Random(seed)
    done = life.disk.operations
    for count in range(len(done) + 1):
        synced = max((n for n in range(count) if done[n].offset is None), default=0)
        allowed = {life.newest_after(n) for n in range(synced, count + 1)}
        for _ in range(4):
            kept = done[:synced] + [one for one in done[synced:count] if rng.random() < 0.6]
            assert state_of(life, replayed(kept)) in allowed


@pytest.mark.parametrize("seed", range(6))
def test_a_truncated_file_is_opened_at_a_header_that_it_still_has(seed: int) -> None:
    life = Life(seed)
    whole = bytes(life.disk.content)
    cuts = sorted({*range(0, len(whole), 997), *range(0, len(whole), BLOCK), len(whole) - 1})
    found = [state_of(life, MemoryDisk(whole[:cut])) for cut in cuts]
    assert found[0] == -1
    assert found == sorted(found)


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_is_found_when_it_is_read_and_never_gives_wrong_rows(seed: int) -> None:
    life, rng = Life(seed), random.Random(seed)
    whole = bytes(life.disk.content)
    for place in [*range(64), *(rng.randrange(len(whole)) for _ in range(300))]:
        disk = MemoryDisk(whole)
        disk.content[place] ^= 1 << rng.randrange(8)
        state_of(life, disk, flipped=True)


def test_a_header_of_another_file_at_a_block_is_no_header(tmp_path: Path) -> None:
    disk, other = MemoryDisk(), MemoryDisk()
    file = IndexFile.create(PATH, disk=disk, identity=IDENTITY)
    file.write_header(Header(epoch=1))
    stranger = IndexFile.create(PATH, disk=other, identity=IDENTITY[::-1])
    stranger.write_header(Header(epoch=2))
    disk.write_at(2 * BLOCK, bytes(other.content[BLOCK:]))
    found = IndexFile.open(PATH, disk=disk).header
    assert found is not None
    assert found.epoch == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is no index file"),
        (b"#!/bin/sh" * 100, "is no index file"),
        (b"uprmcIX\x01" + bytes(24), "its first bytes have a wrong checksum"),
    ],
)
def test_what_is_no_index_file_is_refused_in_one_line(content: bytes, why: str) -> None:
    disk = MemoryDisk(content)
    with pytest.raises(IndexDamaged, match=why):
        IndexFile.open(PATH, disk=disk)
    assert disk.closed
    assert disk.operations == []


def test_a_file_without_a_header_is_refused_in_one_line() -> None:
    disk = MemoryDisk()
    IndexFile.create(PATH, disk=disk)
    with pytest.raises(IndexDamaged, match="no sound header in 28 bytes"):
        IndexFile.open(PATH, disk=disk)


def test_a_reader_does_not_change_a_torn_file() -> None:
    life = Life(1)
    torn = MemoryDisk(bytes(life.disk.content) + b"torn")
    IndexFile.open(PATH, disk=torn, write=False)
    assert torn.operations == []


def rows_of(number: int) -> list[Entry]:
    return [Entry(b"%04d" % n, n % 3, b"%d" % number) for n in range(500)]


@pytest.mark.acceptance("I19")
def test_after_a_rollback_the_file_ends_with_the_older_header_and_goes_on_from_it(
    tmp_path: Path,
) -> None:
    file = IndexFile.create(tmp_path / "index")
    tree = Tree(file, None, Lengths())
    kept = []
    for number in range(4):
        tree = tree.update([], rows_of(number))
        position = {0: IndexPosition(10 * number, 0, 10 * number)}
        kept.append(file.write_header(Header(roots=(tree.root,), positions=position)))
    back = next(header for header in file.headers() if header.positions[0].seqno <= 15)
    file.truncate_to(back)
    assert back == kept[1]
    assert file.path.stat().st_size == back.end
    tree = Tree(file, back.roots[0], Lengths()).update([], [Entry(b"new", 0, b"")])
    file.write_header(Header(roots=(tree.root,)))
    file.close()
    file = IndexFile.open(file.path)
    assert [header.offset for header in file.headers()][1:] == [kept[1].offset, kept[0].offset]
    assert file.header is not None
    assert list(Tree(file, file.header.roots[0]).rows()) == [*rows_of(1), Entry(b"new", 0, b"")]
    file.close()


def test_a_snapshot_that_a_rollback_cut_off_is_refused_and_never_misread(tmp_path: Path) -> None:
    file = IndexFile.create(tmp_path / "index", cache=NodeCache(0))
    tree = Tree(file, None).update([], rows_of(0))
    first = file.write_header(Header(roots=(tree.root,)))
    later = tree.update([], rows_of(1))
    file.truncate_to(first)
    Tree(file, first.roots[0]).update([], rows_of(2))
    for old in (tree, later):
        with pytest.raises(IndexRolledBack, match="cut off by a rollback"):
            list(old.rows())
    file.close()


def test_a_compaction_that_is_stopped_leaves_nothing_and_harms_nothing(tmp_path: Path) -> None:
    file = IndexFile.create(tmp_path / "index")
    many = [Entry(b"%06d" % n, 0, b"v" * 50) for n in range(20_000)]
    tree = Tree(file, None).update([], many)
    file.write_header(Header(roots=(None, tree.root)))
    seen = []

    def stop(part: float) -> None:
        seen.append(part)
        if part > 0.5:
            raise InterruptedError("stopped")

    with pytest.raises(InterruptedError):
        compact(file, tmp_path / "new", [None], step=stop)
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert list(tree.rows()) == many
    file.close()


@pytest.mark.acceptance("I22")
def test_a_compacted_file_has_one_header_and_no_garbage(tmp_path: Path) -> None:
    file = IndexFile.create(tmp_path / "index")
    tree = Tree(file, None, Lengths())
    for number in range(20):
        tree = tree.update([], rows_of(number))
        file.write_header(Header(roots=(None, tree.root), epoch=number, signature="s"), sync=False)
    (tmp_path / "new").write_bytes(b"left by a crash")
    new = compact(file, tmp_path / "new", [Lengths()])
    (header,) = new.headers()
    assert (header.epoch, header.signature, header.row_counts) == (19, "s", (0, 500))
    assert list(Tree(new, header.roots[1]).rows()) == rows_of(19)
    assert header.offset - header.data_bytes <= BLOCK
    assert new.size < file.size / 10
    assert new.size == (tmp_path / "new").stat().st_size
    new.close()
    file.close()


@pytest.mark.acceptance("I24")
def test_rows_of_a_vbucket_are_dropped_and_added_in_one_change_that_reads_no_others() -> None:
    disk = MemoryDisk()
    file = IndexFile.create(PATH, disk=disk, cache=NodeCache(0))
    rows = [Entry(b"%d-%05d" % (vb, n), vb, b"value") for vb in range(8) for n in range(2000)]
    tree = Tree(file, None, Lengths()).update([], rows)
    again = [Entry(b"3-00007", 3, b"new"), Entry(b"3-9", 3, b"new")]
    reads = 0
    read_at = disk.read_at

    def counted(offset: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return read_at(offset, size)

    disk.read_at = counted  # type: ignore[method-assign]
    after = tree.update([], again, drop_vbuckets=1 << 3)
    assert reads < 12
    expected = sorted([row for row in rows if row.vbucket != 3] + again)
    assert list(after.rows()) == expected
    assert after.vbuckets == 0xFF
    assert tree.update([], [], drop_vbuckets=0xFF).root is None


def test_a_change_that_changes_nothing_writes_nothing() -> None:
    rows = [Entry(b"%05d" % n, n % 8, b"value") for n in range(5000)]
    tree = Tree(IndexFile.create(PATH, disk=MemoryDisk()), None, Lengths()).update([], rows)
    size = tree.file.size
    for some in (rows[77:78], rows[::50], rows):
        assert tree.update([b"not there", b"999"], some).root == tree.root
    assert tree.update([], [], drop_vbuckets=1 << 9).root == tree.root
    assert tree.file.size == size


@pytest.mark.parametrize("wanted", [None, 0b1000, 0b10110111])
@pytest.mark.parametrize("descending", [False, True])
def test_rows_that_are_left_out_are_wanted_ones_of_the_range_and_few_are_read(
    wanted: int | None, descending: bool
) -> None:
    disk = MemoryDisk()
    file = IndexFile.create(PATH, disk=disk, cache=NodeCache(0))
    rows = [Entry(b"%05d" % n, n % 8 if n < 3000 else 0, b"value") for n in range(20_000)]
    tree = Tree(file, None).update([], rows)
    file.flush()
    expected = [row for row in rows[100:] if wanted is None or wanted >> row.vbucket & 1][
        :: -1 if descending else 1
    ]
    bounds = (None, b"00100") if descending else (b"00100", None)
    for skip in (0, 1, 99, 2000, 15_000, 30_000):
        found = tree.rows(*bounds, wanted=wanted, descending=descending, skip=skip)
        assert list(found) == expected[skip:]
    if wanted is None:
        places = []
        read_at = disk.read_at
        disk.read_at = lambda *place: places.append(place) or read_at(*place)  # type: ignore
        next(tree.rows(*bounds, descending=descending, skip=15_000))
        assert len(places) < 9


def test_a_full_disk_is_an_error_of_the_system_and_the_next_start_is_sound() -> None:
    life = Life(2)
    header = life.file.header
    assert header is not None
    size = life.disk.size()

    def full(offset: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    write_at = life.disk.write_at
    life.disk.write_at = full  # type: ignore[method-assign]
    tree = Tree(life.file, header.roots[1], Lengths()).update([], rows_of(1))
    with pytest.raises(OSError, match="No space"):
        life.file.write_header(Header(roots=(None, tree.root)))
    life.disk.write_at = write_at  # type: ignore[method-assign]
    assert life.disk.size() == size
    assert state_of(life, MemoryDisk(bytes(life.disk.content))) >= 0


def test_headers_are_listed_up_to_a_limit() -> None:
    file = IndexFile.create(PATH, disk=MemoryDisk())
    for number in range(9):
        file.write_header(Header(epoch=number))
    assert [header.epoch for header in file.headers(3)] == [8, 7, 6]
    assert len(list(file.headers())) == 9
    assert file_module.MAX_HEADERS >= 1000


bits = st.integers(0, 2**70)
seqnos = st.integers(0, 2**64 - 1)
vbuckets = st.integers(0, 65535)
reductions = st.lists(st.none() | st.binary(max_size=4), max_size=2).map(tuple)
pointers = st.builds(Pointer, seqnos, st.integers(0, 2**32 - 1), seqnos, seqnos, bits, reductions)


@given(
    st.builds(
        Header,
        signature=st.text(max_size=4),
        num_vbuckets=vbuckets,
        active=bits,
        passive=bits,
        cleanup=bits,
        positions=st.dictionaries(vbuckets, st.builds(IndexPosition, seqnos, seqnos, seqnos)),
        logs=st.dictionaries(vbuckets, st.lists(st.tuples(seqnos, seqnos), max_size=3).map(tuple)),
        purge_seqnos=st.dictionaries(vbuckets, seqnos),
        epoch=seqnos,
        roots=st.lists(st.none() | pointers, max_size=3).map(tuple),
        replica=st.booleans(),
        extra=st.binary(max_size=5),
    )
)
def test_a_header_is_read_as_it_was_written(header: Header) -> None:
    assert decode_header(encode_header(header), offset=0, end=0, previous=0) == header


def test_a_file_of_another_format_is_refused_with_both_numbers() -> None:
    body = encode_header(Header(version=9))
    with pytest.raises(IndexDamaged, match="format 9, this program reads 1"):
        decode_header(body, offset=0, end=0, previous=0)
