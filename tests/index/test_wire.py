"""What an index asks its node for, and what it gets: seen on the wire, by a codec of its own.

Source: systems reference c.4; rows I05, I07, I09.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.upr_wire import NEVER
from interop.wire import vbucket_of
from tests.index.running import BY_CITY, cities, delete, index_server, store
from tests.index.wire_trace import Item, Marker, Trace, trace

VBUCKETS = 8


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path / "node", "--vbuckets", str(VBUCKETS)) as server:
        yield server


@pytest.mark.acceptance("I05")
def test_a_request_names_vbucket_version_start_and_end(node: ServerProcess, tmp_path: Path) -> None:
    assert node.upr is not None
    store(node, cities(range(200)))
    with trace(node.upr) as seen, index_server(tmp_path / "index", seen.place) as server:
        server.views.put("d", BY_CITY)
        assert server.views.count() == 200
        first = seen.asked()
        assert sorted(first) == list(range(VBUCKETS))
        assert {(each.start, each.snapshot) for each in first.values()} == {(0, (0, 0))}
        assert {each.end for each in first.values()} == {NEVER}
        info = server.views.info()
        server.stop()
    store(node, cities(range(200, 220)))
    with trace(node.upr) as seen, index_server(tmp_path / "index", seen.place) as server:
        assert server.views.count() == 220
        again = seen.asked()
        assert {vb: each.start for vb, each in again.items()} == {
            int(vb): seqno for vb, seqno in info["seqnos"].items()
        }
        assert {vb: str(each.uuid) for vb, each in again.items()} == {
            int(vb): log[0][0] for vb, log in info["partition_versions"].items()
        }
        for each in again.values():
            assert each.snapshot[0] <= each.start <= each.snapshot[1] <= each.end


@pytest.mark.acceptance("I07")
def test_a_snapshot_has_each_document_once_and_snapshots_come_in_order(
    node: ServerProcess, tmp_path: Path
) -> None:
    """With documents that change again and again while they are indexed."""
    assert node.upr is not None
    for turn in range(5):
        store(node, cities(range(100), city=f"before {turn}"))
    with trace(node.upr) as seen, index_server(tmp_path / "index", seen.place) as server:
        server.views.put("d", BY_CITY)
        for turn in range(20):
            store(node, cities(range(100), city=f"city {turn}"))
            delete(node, [b"k%d" % n for n in range(0, 100, 7)])
            if turn % 4 == 0:
                server.views.count()
        assert server.views.count() == 100 - len(range(0, 100, 7))
        assert judged(seen) >= 2 * VBUCKETS


def judged(seen: Trace) -> int:
    """Check all snapshots; return how many there were."""
    markers = 0
    last: dict[tuple[int, int], int] = defaultdict(int)
    until: dict[tuple[int, int], int] = defaultdict(int)
    keys: dict[tuple[int, int], set[bytes]] = defaultdict(set)
    for told in seen.told():
        stream = told.stream
        if isinstance(told, Marker):
            assert last[stream] <= until[stream] <= told.end
            assert told.start <= told.end
            until[stream] = told.end
            keys[stream].clear()
            markers += 1
        else:
            assert last[stream] < told.seqno <= until[stream]
            assert told.key not in keys[stream]
            last[stream] = told.seqno
            keys[stream].add(told.key)
    return markers


BODY = b'{"city": "c", "n": 1}'


def keys_in(vbuckets: set[int], count: int) -> list[bytes]:
    """Return keys of some vBuckets."""
    keys = (b"key %d" % number for number in itertools.count())
    found = (key for key in keys if vbucket_of(key, VBUCKETS) in vbuckets)
    return list(itertools.islice(found, count))


@pytest.mark.acceptance("I09")
def test_a_vbucket_with_much_to_send_holds_up_no_other(node: ServerProcess, tmp_path: Path) -> None:
    """Of the changes nearly all are in one vBucket: the others have come long before its last."""
    assert node.upr is not None
    hot, cold = keys_in({0}, 20_000), keys_in(set(range(1, VBUCKETS)), 140)
    store(node, dict.fromkeys(hot + cold, BODY))
    with trace(node.upr) as seen, index_server(tmp_path / "index", seen.place) as server:
        server.views.put("d", BY_CITY)
        assert server.views.count() == len(hot) + len(cold)
        changes = [told.vbucket for told in seen.told() if isinstance(told, Item)]
        ends = {vbucket: place for place, vbucket in enumerate(changes)}
        assert len(ends) == VBUCKETS
        assert max(ends[vbucket] for vbucket in range(1, VBUCKETS)) < ends[0] / 2


@pytest.mark.acceptance("I09")
def test_while_one_vbucket_changes_without_end_queries_see_what_others_got(
    node: ServerProcess, tmp_path: Path
) -> None:
    hot, cold = keys_in({0}, 500), keys_in(set(range(1, VBUCKETS)), 20)
    enough = threading.Event()

    def change() -> None:
        while not enough.is_set():
            store(node, dict.fromkeys(hot, BODY))

    with index_server(tmp_path / "index", node.upr) as server:
        server.views.put("d", BY_CITY)
        writer = threading.Thread(target=change)
        writer.start()
        try:
            for number, key in enumerate(cold):
                store(node, {key: b'{"city": "cold", "n": 1}'})
                assert len(server.views.rows(key='"cold"')) == number + 1
        finally:
            enough.set()
            writer.join(60)
