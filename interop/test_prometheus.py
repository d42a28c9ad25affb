"""A scrape as Prometheus does it, read by the official parsers of both formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from interop.server_process import ServerProcess, start_uprmc
from interop.wire import Wire

#: What Prometheus 2.42 asks for.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PLAIN = "text/plain;version=0.0.4"
PIECES = 1_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("data")) as server:
        with Wire(server.memcached) as wire:
            for number in range(PIECES):
                for request in (b"set k 0 0 1\r\nx\r\n", b"get %d\r\n" % number):
                    wire.send(request)
                    wire.line()
        yield server


def scraped(node: ServerProcess, accept: str) -> dict[str, Any]:
    with urlopen(Request(f"http://{node.http}/metrics", headers={"Accept": accept})) as answer:
        page = answer.read().decode()
        parse = openmetrics if "openmetrics" in answer.headers["Content-Type"] else plain
    return {family.name: family for family in parse(page)}


@pytest.mark.parametrize("accept", [ACCEPT, PLAIN])
def test_the_official_parser_reads_every_family(node: ServerProcess, accept: str) -> None:
    found = scraped(node, accept)
    assert {"process_cpu_seconds", "python_info", "uprmc_build_info"} <= {
        name.removesuffix("_total") for name in found
    }
    (build,) = found["uprmc_build_info"].samples
    assert set(build.labels) == {"core", "python", "version"}
    assert all(family.documentation for family in found.values())


def test_one_piece_of_input_in_61_is_timed(node: ServerProcess) -> None:
    samples = scraped(node, PLAIN)["uprmc_op_seconds"].samples
    counts = {each.labels["op"]: each.value for each in samples if each.name.endswith("_count")}
    assert 2 * PIECES // 61 <= sum(counts.values()) <= 2 * PIECES // 61 + 5
    assert min(counts["get"], counts["set"]) >= PIECES // 61 - 1
    ends = [each for each in samples if each.labels == {"op": "get", "le": "+Inf"}]
    assert [each.value for each in ends] == [counts["get"]]


def test_holders_have_the_memory_of_the_process(node: ServerProcess) -> None:
    found = scraped(node, ACCEPT)
    total = sum(each.value for each in found["uprmc_memory_holder_bytes"].samples)
    assert 10e6 < total < found["process_resident_memory_bytes"].samples[0].value
