"""Statistics by the names that memcached has and that monitoring programs read.

The real memcached of this machine says which names there are. What programs read is taken from
their sources: memcached_exporter (`pkg/exporter/exporter.go` of prometheus/memcached_exporter at
0cbb0fb2), telegraf (`plugins/inputs/memcached/memcached.go` of influxdata/telegraf at 0b88695a),
collectd 5.12 (`src/memcached.c`) and Munin 2.0.73 (`memcached_`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from interop.server_process import ServerProcess, memcached_program, start_memcached, start_uprmc
from interop.waiting import wait_until
from interop.wire import Wire
from tests.cli.support import uprmc

#: Names of memcached that are not here, and why.
MISSING = {
    "libevent": "there is no libevent",
    "slab_automove_ratio": "there are no slabs",
    "slab_automove_window": "there are no slabs",
    "slab_automove_freeratio": "there are no slabs",
    "watcher_logbuf_size": "there is no `watch`",
    "worker_logbuf_size": "there is no `watch`",
    "read_buf_mem_limit": "server.buffer_bytes limits buffers in another way",
    "num_napi_ids": "there is one thread",
}
MISSING_PREFIXES = {
    "ext_": "there is no extstore",
    "ssl_": "TLS is configured by other settings; only ssl_enabled, ssl_chain_cert, ssl_key apply",
}

#: Read from `stats` by memcached_exporter, which fails on text that is no number.
EXPORTER = """
get_hits get_misses delete_hits delete_misses incr_hits incr_misses decr_hits decr_misses cas_hits
cas_misses touch_hits touch_misses uptime time cas_badval cmd_flush cmd_set rusage_user
rusage_system bytes limit_maxbytes curr_items total_items bytes_read bytes_written curr_connections
total_connections rejected_connections conn_yields listen_disabled_num evictions reclaimed
store_too_large store_no_memory lru_crawler_starts direct_reclaims crawler_items_checked
crawler_reclaimed moves_to_cold moves_to_warm moves_within_lru accepting_conns
"""
EXPORTER_ITEMS = """
number age hits_to_hot hits_to_warm hits_to_cold hits_to_temp crawler_reclaimed evicted
evicted_nonzero evicted_time evicted_unfetched expired_unfetched outofmemory reclaimed tailrepairs
mem_requested moves_to_cold moves_to_warm moves_within_lru number_hot number_warm number_cold
age_hot age_warm
"""
EXPORTER_SLABS = """
get_hits delete_hits incr_hits decr_hits cas_hits touch_hits cas_badval cmd_set chunk_size
chunks_per_page total_pages total_chunks used_chunks free_chunks free_chunks_end mem_requested
"""
EXPORTER_SETTINGS = """
maxconns lru_crawler_sleep lru_crawler_tocrawl hot_lru_pct warm_lru_pct hot_max_factor
warm_max_factor
"""

TELEGRAF = """
accepting_conns auth_cmds auth_errors bytes bytes_read bytes_written cas_badval cas_hits cas_misses
cmd_flush cmd_get cmd_set cmd_touch conn_yields connection_structures curr_connections curr_items
decr_hits decr_misses delete_hits delete_misses evicted_unfetched evictions expired_unfetched
get_hits get_misses hash_bytes hash_is_expanding hash_power_level incr_hits incr_misses
limit_maxbytes listen_disabled_num reclaimed threads total_connections total_items touch_hits
touch_misses uptime
"""
COLLECTD = """
rusage_user rusage_system threads curr_items uptime bytes limit_maxbytes curr_connections
listen_disabled_num total_connections cmd_get cmd_set cmd_flush cmd_touch incr_misses incr_hits
decr_misses decr_hits get_hits get_misses evictions delete_hits delete_misses bytes_read
bytes_written
"""
MUNIN = """
get_hits get_misses cmd_get cmd_set total_items total_connections bytes_read bytes_written
curr_items curr_connections bytes
"""

#: Done before the statistics are read: of everything a little.
TRAFFIC = (
    b"set a 0 0 1\r\n1\r\nset b 0 1000 5\r\nvalue\r\nget a\r\nget gone\r\ntouch a 0\r\n"
    b"incr a 1\r\ndecr a 1\r\ndelete b\r\ndelete gone\r\ncas gone 0 0 1 1\r\nx\r\n"
    b"cas a 0 0 1 1234567\r\nx\r\nset large 0 0 1048600\r\n" + b"v" * 1_048_600 + b"\r\n"
    b"set c 0 0 2000\r\n" + b"c" * 2000 + b"\r\nversion\r\n"
)


def group(server: ServerProcess, words: str = "") -> dict[str, str]:
    found = {}
    with Wire(server.memcached) as wire:
        wire.send(f"stats {words}".strip().encode() + b"\r\n")
        while (line := wire.line()) != b"END\r\n":
            _, name, value = line.decode().removesuffix("\r\n").split(" ", 2)
            found[name] = value
    return found


def used(server: ServerProcess) -> ServerProcess:
    with Wire(server.memcached) as wire:
        wire.send(TRAFFIC)
        while not wire.line().startswith(b"VERSION"):
            pass
    return server


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("data")) as server:
        yield used(server)


@pytest.fixture(scope="module")
def theirs() -> Iterator[ServerProcess]:
    if memcached_program() is None:
        pytest.skip("memcached is not installed")
    with start_memcached() as server:
        yield used(server)


def of_class(found: dict[str, str], place: str) -> dict[str, str]:
    """Return the rows of one class by their last word."""
    begin = re.compile(place)
    return {begin.sub("", name): value for name, value in found.items() if begin.match(name)}


def is_missing(name: str) -> bool:
    return name in MISSING or name.startswith(tuple(MISSING_PREFIXES))


@pytest.mark.parametrize("name", ["", "settings"])
def test_every_name_of_memcached_is_here(
    ours: ServerProcess, theirs: ServerProcess, name: str
) -> None:
    here, there = group(ours, name), group(theirs, name)
    assert {each for each in there.keys() - here.keys() if not is_missing(each)} == set()
    stale = [each for each in MISSING if each in here]
    assert stale == [], "they are here: take them off the list"


def test_every_counter_of_a_class_is_here(ours: ServerProcess, theirs: ServerProcess) -> None:
    for name, place in (("items", r"items:\d+:"), ("slabs", r"\d+:")):
        here, there = of_class(group(ours, name), place), of_class(group(theirs, name), place)
        assert there.keys() - here.keys() == set()
    assert group(ours, "slabs").keys() >= {"active_slabs", "total_malloced"}


def test_connections_have_memcacheds_fields(ours: ServerProcess, theirs: ServerProcess) -> None:
    here, there = (of_class(group(each, "conns"), r"\d+:") for each in (ours, theirs))
    assert there.keys() - here.keys() == set()


def test_what_was_done_counts_as_in_memcached(ours: ServerProcess, theirs: ServerProcess) -> None:
    here, there = group(ours), group(theirs)
    # memcached increments in a new item if another of its threads looks at the old one just then.
    assert int(there.pop("total_items")) - int(here["total_items"]) in (0, 1)
    counters = [
        name
        for name in there
        if re.match(r"(get|delete|incr|decr|touch|cas)_|cmd_|store_|curr_items", name)
    ]
    assert {name: here[name] for name in counters} == {name: there[name] for name in counters}


@pytest.mark.parametrize(
    ("program", "name", "place", "names"),
    [
        ("memcached_exporter", "", "", EXPORTER),
        ("memcached_exporter", "items", r"items:1:", EXPORTER_ITEMS),
        ("memcached_exporter", "slabs", r"1:", EXPORTER_SLABS),
        ("memcached_exporter", "settings", "", EXPORTER_SETTINGS),
        ("telegraf", "", "", TELEGRAF),
        ("collectd", "", "", COLLECTD),
        ("munin", "", "", MUNIN),
    ],
    ids=lambda each: each.split()[0] if isinstance(each, str) and each else "-",
)
def test_what_a_monitoring_program_reads_is_a_number(
    ours: ServerProcess, program: str, name: str, place: str, names: str
) -> None:
    found = of_class(group(ours, name), place) if place else group(ours, name)
    values = {each: float(found[each]) for each in names.split()}
    assert all(value >= 0 for value in values.values()), program


def test_the_exporter_can_tell_sets_from_swaps(ours: ServerProcess) -> None:
    """It subtracts the latter, which memcached counts as sets, too."""
    found = {name: int(value) for name, value in group(ours).items() if value.isdecimal()}
    swaps = found["cas_misses"] + found["cas_hits"] + found["cas_badval"]
    assert found["cmd_set"] - swaps >= 3
    assert group(ours, "settings")["lru_crawler"] == "yes"
    assert group(ours, "settings")["lru_maintainer_thread"] == "no"


def test_a_changed_limit_of_memory_shows(ours: ServerProcess) -> None:
    with Wire(ours.memcached) as wire:
        wire.talk(b"cache_memlimit 99\r\n", b"OK\r\n")
    found = group(ours, "settings")
    own = group(ours, "settings-uprmc")["memory.quota"]
    assert found["maxbytes"] == own == group(ours)["limit_maxbytes"]
    assert found["maxbytes"] == str(99 << 20)


def test_a_reset_sets_the_same_counters_to_0(ours: ServerProcess, theirs: ServerProcess) -> None:
    """What is counted after it is the connection that asks, and what it says."""
    counters = re.compile(r"(get|delete|incr|decr|touch|cas)_|cmd_|store_|total_|rejected_")
    found = []
    for server in (ours, theirs):
        with Wire(server.memcached) as wire:
            wire.talk(b"stats reset\r\n", b"RESET\r\n")
        told = group(server)
        assert int(told["bytes_read"]) < 100
        assert int(told["bytes_written"]) < 100
        found.append({name: value for name, value in told.items() if counters.match(name)})
    assert found[0] == found[1]
    assert {value for name, value in found[0].items() if name != "total_connections"} == {"0"}


@pytest.mark.parametrize(
    "words",
    [
        *("disable", "metadump all", "crawl all", "enable", "enable", "enable x", "crawl all"),
        *("crawl 1,2", "crawl 99", "crawl x", "crawl", "sleep 100", "sleep x", "sleep 1000001"),
        *("tocrawl 5", "tocrawl x", "tocrawl", "bogus x", "metadump", "metadump 5", "metadump x"),
    ],
)
def test_the_crawler_is_switched_as_in_memcached(
    ours: ServerProcess, theirs: ServerProcess, words: str
) -> None:
    """In this order: each says the same as memcached."""
    said: list[bytes] = []
    for server in (ours, theirs):
        with Wire(server.memcached) as wire:

            def says(wire: Wire = wire) -> bool:
                wire.send(f"lru_crawler {words}\r\n".encode())
                said.append(wire.line())
                return not said[-1].startswith(b"BUSY")  # its thread has not done the last one

            wait_until(says)
    assert said[0] == said[-1]


def test_verbs_that_are_sent_to_memcached_say_so(theirs: ServerProcess) -> None:
    for verb in (["keys"], ["status"]):
        said = uprmc(*verb, "--node", theirs.memcached, "--timeout", "300ms").err
        assert said == (
            f"uprmc: a memcached server answers at {theirs.memcached}, not a node: name the node's "
            "upr listener\n"
        )
    ended = uprmc("settings", "--effective", "--node", theirs.memcached)
    assert "does not tell where its settings come from" in ended.line()
