"""Every group of statistics, read from a real node, and the same numbers as JSON and metrics."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from interop.wire import NOOP, frame
from tests.contents import table_of
from tests.server.support import Loop
from tests.system.support import node_here
from uprmc import MEMCACHED_VERSION
from uprmc.engine.watermarks.rows import Kind, WatermarkReport
from uprmc.engine.watermarks.table import MANAGER
from uprmc.errors import InvalidArguments, NotMyVBucket
from uprmc.metrics import Exposition
from uprmc.model import VBucketState
from uprmc.server.node import Node
from uprmc.server.stats.memcached import _NEVER, _UNUSED_SETTINGS
from uprmc.server.stats.statistics import numbered
from uprmc.server.stats.vbuckets import ROWS_MAX

#: What test suites of memcached clients read, reference 3.6.
GENERAL = """
pid uptime time version pointer_size rusage_user rusage_system max_connections curr_connections
total_connections cmd_get cmd_set cmd_flush cmd_touch cmd_meta get_hits get_misses get_expired
get_flushed delete_hits delete_misses incr_hits incr_misses decr_hits decr_misses cas_misses
cas_hits cas_badval touch_hits touch_misses auth_cmds auth_errors bytes_read bytes_written
limit_maxbytes accepting_conns threads bytes curr_items total_items evictions reclaimed
expired_unfetched evicted_unfetched
"""

#: What Couchbase's tools read, in the general group and in the one of the engine.
COUCHBASE_GENERAL = """
curr_items curr_items_tot vb_active_curr_items ep_queue_size ep_flusher_todo ep_flusher_state
ep_commit_num ep_degraded_mode ep_max_size ep_dbname mem_used ep_num_non_resident
"""
COUCHBASE = """
mem_used ep_max_size ep_mem_low_wat ep_mem_high_wat ep_queue_size ep_flusher_todo ep_commit_num
ep_num_value_ejects ep_num_non_resident ep_num_pager_runs ep_bg_fetched ep_tmp_oom_errors
ep_expired_access ep_expired_pager ep_degraded_mode vb_active_curr_items curr_items_tot
ep_flusher_state ep_dbname ep_total_persisted ep_db_file_size ep_db_data_size ep_vb_total
vb_active_num vb_replica_num vb_pending_num vb_dead_num vb_replica_curr_items
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Loop]]:
    with node_here(tmp_path_factory.mktemp("data")) as (node, loop):
        for number in range(10):
            put(node, b"key-%d" % number, b"v" * 100)
        loop.until(lambda: node.bucket.flusher.queued == 0)
        yield node, loop


def put(node: Node, key: bytes, value: bytes) -> None:
    node.bucket.of_key(key).store(key, value, 0, 0)


def group(node: Node, words: str = "") -> dict[str, str]:
    rows = node.statistics.group(words)
    assert rows is not None
    found = [row for row in rows if row is not None]
    names = [name for name, _ in found]
    assert len(set(names)) == len(names), "a name appears twice"
    assert all(isinstance(value, str) for _, value in found)
    return dict(found)


def test_the_general_group_has_every_name_that_clients_read(running: tuple[Node, Loop]) -> None:
    found = group(running[0])
    assert not {*GENERAL.split(), *COUCHBASE_GENERAL.split()} - found.keys()
    assert not set(COUCHBASE.split()) - group(running[0], "ep").keys()
    assert found["pid"] == str(os.getpid())
    assert found["version"] == MEMCACHED_VERSION
    assert found["curr_items"] == found["vb_active_curr_items"] == "10"
    assert len(found["rusage_user"].partition(".")[2]) == 6
    texts = {"version", "uprmc_version", "uprmc_core", "ep_flusher_state", "ep_dbname"}
    numbers = found.keys() - texts - {"ep_conflict_resolution_type"}
    assert all(float(found[name]) >= 0 for name in numbers)


def test_the_flusher_says_when_it_is_paused(running: tuple[Node, Loop]) -> None:
    node, _ = running
    assert group(node)["ep_flusher_state"] == "running"
    node.bucket.flusher.paused = True
    assert group(node)["ep_flusher_state"] == "paused"
    node.bucket.flusher.paused = False


def test_vbuckets_and_documents_are_counted_by_state(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, _):
        for vbucket in node.bucket.vbuckets.values():
            vbucket.store(b"k", b"v", 0, 0)
        node.bucket.set_state(1, VBucketState.REPLICA)
        node.bucket.set_state(2, VBucketState.REPLICA)
        node.bucket.set_state(3, VBucketState.DEAD)
        found = group(node, "ep") | group(node)
        assert found["ep_vb_total"] == found["curr_items_tot"] == "4"
        for state, count in (("active", "1"), ("replica", "2"), ("pending", "0"), ("dead", "1")):
            assert found[f"vb_{state}_num"] == found[f"vb_{state}_curr_items"] == count
        assert found["curr_items"] == "1"
        node.bucket.shut_traffic_out()
        found = group(node)
        assert found["curr_items"] == found["vb_active_curr_items"] == "0"
        assert group(node, "ep")["vb_replica_curr_items"] == "2"
        assert found["ep_degraded_mode"] == "1"
        assert group(node, "warmup")["ep_warmup_thread"] == "complete"


def test_the_size_of_the_store_is_told_with_and_without_free_pages(
    running: tuple[Node, Loop],
) -> None:
    node, _ = running
    found = group(node, "ep")
    usage = node.bucket.store.usage()
    assert found["ep_db_file_size"] == str(usage.file_bytes)
    assert found["ep_db_data_size"] == str(usage.used_bytes)


def test_connections_are_counted_and_listed(running: tuple[Node, Loop]) -> None:
    node, loop = running
    client = loop.client(node.addresses()["upr"])
    client.socket.send(frame(NOOP))
    assert len(client.read(24)) == 24
    assert group(node)["curr_connections"] == "1"
    found = group(node, "conns")
    (place,) = {name.partition(":")[0] for name in found}
    host, port = client.socket.getsockname()
    assert found[f"{place}:addr"] == f"tcp:{host}:{port}"
    assert found[f"{place}:listener"] == "upr"
    assert found[f"{place}:state"] == "open"
    assert (found[f"{place}:bytes_read"], found[f"{place}:bytes_written"]) == ("24", "24")
    client.socket.close()
    loop.until(lambda: node.connections.current == 0)
    assert group(node, "conns") == {}
    assert int(group(node)["bytes_read"]) >= 24


def test_the_settings_group_shows_what_is_in_force(running: tuple[Node, Loop]) -> None:
    node, _ = running
    found = group(node, "settings") | group(node, "settings-uprmc")
    assert found["engine.vbuckets"] == "4"
    assert found["maxbytes"] == found["memory.quota"] == str(1 << 30)
    assert found["item_size_max"] == found["kv.max_item_bytes"] == str(1 << 20)


def test_the_groups_of_slabs_speak_of_one_class(running: tuple[Node, Loop]) -> None:
    node, _ = running
    assert group(node, "items")["items:1:number"] == "10"
    slabs = {name: int(value) for name, value in group(node, "slabs").items()}
    assert slabs["1:used_chunks"] == 10
    assert slabs["1:total_pages"] == 1
    expect_agreement(node)


def expect_agreement(node: Node) -> None:
    """Require that numbers about the same memory and documents fit together."""
    general, items = group(node), group(node, "items")
    slabs = {name.removeprefix("1:"): int(value) for name, value in group(node, "slabs").items()}
    sizes = {int(size): int(number) for size, number in group(node, "sizes").items()}
    used, documents = int(general["bytes"]), int(general["curr_items"])
    assert slabs["total_chunks"] == slabs["total_pages"] * slabs["chunks_per_page"]
    assert slabs["total_chunks"] == slabs["used_chunks"] + slabs["free_chunks"]
    assert slabs["total_chunks"] * slabs["chunk_size"] == slabs["total_malloced"]
    assert slabs["mem_requested"] <= slabs["used_chunks"] * slabs["chunk_size"]
    page = max(slabs["chunk_size"], 1 << 20)
    assert slabs["mem_requested"] <= used <= int(general["limit_maxbytes"])
    assert slabs["total_malloced"] <= slabs["mem_requested"] + page + documents
    assert slabs["used_chunks"] == documents == int(items["items:1:number"]) == sum(sizes.values())
    assert int(items["items:1:mem_requested"]) == slabs["mem_requested"]
    if documents == sum(len(vbucket.table) for vbucket in node.bucket.vbuckets.values()):
        assert slabs["mem_requested"] == used
        assert used <= sum(size * number for size, number in sizes.items()) <= used + 32 * documents


def test_numbers_about_the_same_things_fit_together(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, _):
        for number in range(200):
            put(node, b"key-%d" % number, b"v" * (number * 37))
        expect_agreement(node)
        put(node, b"large", b"v" * 1_000_000)
        put(node, b"larger", b"v" * 1_040_000)
        expect_agreement(node)
        for number in range(50):
            node.bucket.of_key(b"key-%d" % number).delete(b"key-%d" % number)
        expect_agreement(node)
        node.bucket.set_state(1, VBucketState.REPLICA)
        expect_agreement(node)


@pytest.mark.parametrize("name", ["", "settings"])
@pytest.mark.parametrize(("length", "told"), [(160, True), (161, False)])
def test_what_monitoring_programs_read_fits_into_their_buffer(
    running: tuple[Node, Loop], monkeypatch: pytest.MonkeyPatch, name: str, length: int, told: bool
) -> None:
    """Each number is as long as 64 bits get, each path as long as it may be."""
    node, path = running[0], "/" + "d" * (length - 1)
    storage = replace(node.settings.storage, data=path)
    server = replace(node.settings.server, tls_cert=path, tls_key=path)
    monkeypatch.setattr(node, "settings", replace(node.settings, storage=storage, server=server))
    monkeypatch.setattr(node, "addresses", lambda: {"memcached": "unix:/" + "s" * 106})
    found = group(node, name)
    assert (path in found.values()) is told
    unchanging = {*_NEVER, *dict(_UNUSED_SETTINGS)}
    longest = {
        each: str(2**64 - 1) if value.isdecimal() and each not in unchanging else value
        for each, value in found.items()
    }
    longest |= {each: "9" * 20 for each in found if each.startswith(("rusage", "uprmc_version"))}
    size = sum(len(f"STAT {each} {value}\r\n") for each, value in longest.items())
    assert size + len("END\r\n") < 4_096


def test_an_empty_node_has_empty_groups(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, _):
        assert group(node, "items") == group(node, "sizes") == group(node, "conns") == {}
        assert group(node, "slabs")["active_slabs"] == "0"
        assert group(node)["curr_items"] == "0"


def test_memory_warmup_and_our_own_group(running: tuple[Node, Loop]) -> None:
    node, _ = running
    memory = group(node, "memory")
    assert int(memory["mem_used"]) == node.bucket.account.used > 10 * 100
    assert int(memory["total_rss_bytes"]) > 1_000_000
    warmup = group(node, "warmup")
    assert (warmup["ep_warmup_thread"], warmup["ep_warmup_clean"]) == ("complete", "true")
    own = group(node, "uprmc")
    assert own["disk_error"] == ""
    assert own["session_errors"] == own["protocol_errors"] == "0"
    assert int(own["disk_file_bytes"]) > 0


def test_the_groups_of_vbuckets(running: tuple[Node, Loop]) -> None:
    node, _ = running
    assert group(node, "vbucket") == {f"vb_{number}": "active" for number in range(4)}
    details = group(node, "vbucket-details")
    assert sum(int(details[f"vb_{number}:num_items"]) for number in range(4)) == 10
    for number in range(4):
        vbucket = node.bucket.vbuckets[number]
        one = group(node, f"vbucket-details {number}")
        assert one.items() <= details.items()
        assert one[f"vb_{number}:high_seqno"] == one[f"vb_{number}:persisted_seqno"]
        seqnos = group(node, f"vbucket-seqno {number}")
        assert seqnos[f"vb_{number}:high_seqno"] == str(vbucket.high_seqno)
        assert seqnos[f"vb_{number}:uuid"] == str(vbucket.failover_log[0].uuid)
    assert len(group(node, "vbucket-seqno")) == 4 * 7
    assert group(node, "prev-vbucket") == group(node, "vbucket")


@pytest.mark.parametrize(
    "name", ["vbucket-details", "vbucket-seqno", "failovers", "checkpoint", "hash"]
)
def test_a_group_about_vbuckets_shows_one_or_all(running: tuple[Node, Loop], name: str) -> None:
    node, _ = running
    one, all_of_them = group(node, f"{name} 2"), group(node, name)
    assert {found.partition(":")[0] for found in one} == {"vb_2"}
    assert len(all_of_them) == 4 * len(one)


def test_what_was_measured_is_shown_by_powers_of_two(tmp_path: Path) -> None:
    with node_here(tmp_path, flush__min_delay_s=0.0) as (node, loop):
        put(node, b"k", b"v")
        loop.until(lambda: node.bucket.flusher.queued == 0)
        vbucket = node.bucket.of_key(b"k")
        vbucket.eject(b"k")
        node.bucket.fetcher.want([(vbucket.id, b"k")], lambda found: None)
        loop.until(lambda: table_of(vbucket)[b"k"].value)
        assert group(node) is not None
        found = group(node, "timings")
        shown = {name.rpartition("_")[0] for name in found}
        assert shown == {"disk_commit", "bg_wait", "bg_load", "get_stats_cmd"}
        for name, count in found.items():
            low, high = map(int, name.rpartition("_")[2].split(","))
            assert high == max(2 * low, 1)
            assert int(count) > 0
        for name in ("bg_wait", "bg_load"):
            assert sum(int(found[key]) for key in found if key.startswith(name)) == 1


def test_groups_of_couchbases_engine_tell_what_there_is_of_them(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        for number in range(7):
            put(node, b"%d" % number, b"value")
        loop.until(lambda: node.bucket.flusher.queued == 0)
        uuid = group(node, "uuid")["uuid"]
        assert int(uuid, 16) == node.uuid
        assert len(uuid) == 32
        store = group(node, "kvstore")
        assert store["rw_0:backend_type"] == store["ro_0:backend_type"] == "lmdb"
        assert int(store["rw_0:lastCommDocs"]) in range(1, 8)
        node.bucket.stats.commit_failures = 3
        assert group(node, "kvstore")["rw_0:failure_set"] == "3"
        commits = group(node, "timings")
        for words, name in (("kvtimings", "rw_0:commit"), ("runtimes", "flusher_tasks")):
            shown = group(node, words)
            for row in (row for row in commits if row.startswith("disk_commit_")):
                assert shown[name + row.removeprefix("disk_commit")] == commits[row]
        assert group(node, "scheduler") == {}, "nothing was fetched"
        threads = group(node, "dispatcher")
        assert set(threads.values()) <= {"running", "sleeping"}
        assert "auxio_worker_0:state" in threads
        assert group(node, "workload")["ep_workload:ready_tasks"] == "0"
        config = group(node, "config")
        assert config["ep_max_vbuckets"] == "4"
        assert config["ep_dbname"] == str(tmp_path)
        assert config["ep_max_size"] == str(node.bucket.account.quota)


def test_expired_documents_are_counted_by_what_their_vbucket_is_now(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, _):
        first, second = node.bucket.vbuckets[0], node.bucket.vbuckets[1]
        for number in range(5):
            first.store(b"%d" % number, b"", 0, 1)
        assert [first.get(b"%d" % number) for number in range(2)] == [None, None]
        deque(node.bucket.expirer.run(node.bucket.clock.now()))
        second.store(b"k", b"", 0, 1)
        assert second.get(b"k") is None
        assert group(node, "ep")["vb_active_expired"] == "6"
        node.bucket.set_state(0, VBucketState.REPLICA)
        found = group(node, "ep")
        assert (found["vb_active_expired"], found["vb_replica_expired"]) == ("1", "5")
        assert found["vb_pending_expired"] == found["vb_dead_expired"] == "0"


@pytest.mark.acceptance("D10")
def test_the_failover_log_is_told_newest_first(running: tuple[Node, Loop]) -> None:
    node, _ = running
    uuid = node.bucket.vbuckets[2].failover_log[0].uuid
    assert group(node, "failovers 2") == {
        "vb_2:num_entries": "1",
        "vb_2:term": "1",
        "vb_2:0:id": str(uuid),
        "vb_2:0:seq": "0",
    }
    assert len(group(node, "failovers")) == 4 * 4


@pytest.mark.parametrize(
    "words", ["bogus", "items 1", "SETTINGS", "vbucket 1", "tap _", "timings 0", "\x00", "ü"]
)
def test_there_is_no_such_group(running: tuple[Node, Loop], words: str) -> None:
    assert running[0].statistics.group(words) is None


@pytest.mark.parametrize(
    "words", ["failovers x", "failovers -1", "vbucket-seqno 1 2", "failovers ²"]
)
def test_what_is_no_number_is_refused(running: tuple[Node, Loop], words: str) -> None:
    with pytest.raises(InvalidArguments):
        running[0].statistics.group(words)


@pytest.mark.parametrize(
    "words",
    [
        "failovers 4",
        "vbucket-details " + "9" * 200,
        "vbucket-seqno 100000",
        "checkpoint 100000",
        "hash " + "9" * 10_000,
    ],
)
def test_a_vbucket_that_is_absent_is_not_mine(running: tuple[Node, Loop], words: str) -> None:
    with pytest.raises(NotMyVBucket):
        running[0].statistics.group(words)


def test_the_status_page_can_be_written_as_json(running: tuple[Node, Loop]) -> None:
    node, _ = running
    status = json.loads(json.dumps(node.statistics.status()))
    assert status["ready"] is True
    assert status["items"] == 10
    assert status["vbuckets"]["active"] == 4
    assert set(status["listeners"]) == {"memcached", "upr", "http"}


def test_every_metric_can_be_read_by_prometheus(running: tuple[Node, Loop]) -> None:
    node, _ = running
    page, _ = Exposition(node.statistics.metrics).render("")
    families = {family.name: family for family in text_string_to_metric_families(page.decode())}
    assert families["uprmc_items"].samples[0].value == 10
    assert families["uprmc_disk_failing"].samples[0].value == 0
    states = {sample.labels["state"]: sample.value for sample in families["uprmc_vbuckets"].samples}
    assert states == {"active": 4, "replica": 0, "pending": 0, "dead": 0}
    names = [metric.name for metric in node.statistics.metrics()]
    assert len(set(names)) == len(names)


def test_verbosity_and_reset(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, _):
        services = node._services("somebody")
        services.bucket.stats.cmd_get = 7
        assert group(node)["cmd_get"] == "7"
        services.reset_stats()
        assert group(node, "timings") == {}
        assert group(node)["cmd_get"] == "0"
        for asked, shown in ((1, "1"), (2, "2"), (4_000_000_000, "2"), (0, "0")):
            services.set_verbosity(asked)
            assert group(node, "settings")["verbosity"] == shown
        services.report_misuse("nonsense")
        assert group(node, "uprmc")["protocol_errors"] == "1"


@contextmanager
def failing(node: Node, reason: str) -> Iterator[None]:
    node.bucket.account.disk_failed(reason)
    yield
    node.bucket.account.disk_works()


def test_a_failing_disk_shows_everywhere(running: tuple[Node, Loop]) -> None:
    node, _ = running
    with failing(node, "no space left"):
        assert group(node, "uprmc")["disk_error"] == "no space left"
        assert node.statistics.status()["disk"]["error"] == "no space left"  # type: ignore[index]
        page, _ = Exposition(node.statistics.metrics).render("")
        assert b"\nuprmc_disk_failing 1.0\n" in page


@pytest.mark.acceptance("X10")
def test_the_page_of_a_vbucket_shows_the_rows_that_its_statistics_have(
    running: tuple[Node, Loop],
) -> None:
    node, _ = running
    names = [b"client-%03d" % number for number in range(ROWS_MAX + 1)]
    vbucket = node.bucket.vbuckets[3]
    for name in names:
        node.bucket.watermarks.report(
            vbucket, WatermarkReport(name, Kind.BACKUP, 0, meta=b"\xff"), MANAGER
        )
    page = node.statistics.watermarks("3")
    shown = group(node, "watermarks 3")
    rows = page.pop("rows")
    assert isinstance(rows, list)
    assert page.pop("row_count") == int(shown["vb_3:rows"]) == len(names)
    assert [row.pop("id") for row in rows] == [name.decode() for name in names[:ROWS_MAX]]
    assert (rows[0]["kind"], rows[0]["meta"], rows[0]["floor"]) == ("backup", "/w==", None)
    for what, value in rows[0].items():
        assert shown[f"vb_3:row_client-000:{what}"] == ("" if value is None else str(value))
    for name in names:
        node.bucket.watermarks.remove(vbucket, name, MANAGER)
    for wrong in ("", "x", "99"):
        with pytest.raises((InvalidArguments, NotMyVBucket)):
            node.statistics.watermarks(wrong)


def test_numbers_of_the_status_page_are_numbers() -> None:
    rows = [("used", "324"), ("ratio", "1.50"), ("clean", "true"), ("state", "key dump")]
    found = numbered(rows)
    assert found == {"used": 324, "ratio": 1.5, "clean": True, "state": "key dump"}
    assert [type(value) for value in found.values()] == [int, float, bool, str]
