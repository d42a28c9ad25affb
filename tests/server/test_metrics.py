"""The exposition that Prometheus scrapes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly
from prometheus_client.parser import text_string_to_metric_families

from tests.documents import HandDrivenNode
from tests.test_words import banned
from uprmc.engine.stats import Stats
from uprmc.metrics import Exposition, Metric
from uprmc.server.stats.metrics import METRICS

GIVEN = [
    Metric("connections", "gauge", "Open connections.", [({}, 3)]),
    Metric("read_bytes_total", "counter", "Bytes received.", [({}, 2**53)]),
    Metric(
        "commands_total",
        "counter",
        "Commands by name.",
        [({"command": "get", "result": "hit"}, 5), ({"command": 'a"b\\\n', "result": "x"}, 1)],
    ),
]

OPENMETRICS = "application/openmetrics-text"


def families(accept: str = ""):
    page, _ = Exposition(lambda: GIVEN).render(accept)
    return {family.name: family for family in text_string_to_metric_families(page.decode())}


def test_every_name_has_the_prefix_help_and_type() -> None:
    page, content_type = Exposition(lambda: GIVEN).render("")
    assert content_type.startswith("text/plain")
    assert b"# HELP uprmc_connections Open connections." in page
    assert b"# TYPE uprmc_connections gauge\nuprmc_connections 3.0\n" in page
    assert all(name.startswith(("uprmc_", "process_", "python_")) for name in families())


def test_counters_end_in_total_once() -> None:
    found = families()
    assert found["uprmc_read_bytes"].type == "counter"
    assert [s.name for s in found["uprmc_read_bytes"].samples] == ["uprmc_read_bytes_total"]
    assert {s.name for s in found["uprmc_commands"].samples} == {"uprmc_commands_total"}


def test_labels_survive_the_trip_whatever_they_hold() -> None:
    samples = families()["uprmc_commands"].samples
    assert samples[0].labels == {"command": "get", "result": "hit"}
    assert samples[1].labels["command"] == 'a"b\\\n'


def test_values_are_asked_for_at_each_scrape() -> None:
    count = iter(range(1, 10))
    exposition = Exposition(lambda: [Metric("scrapes", "gauge", "Scrapes.", [({}, next(count))])])
    assert b"uprmc_scrapes 1.0" in exposition.render("")[0]
    assert b"uprmc_scrapes 2.0" in exposition.render("")[0]


def test_openmetrics_is_spoken_to_those_who_ask() -> None:
    page, content_type = Exposition(lambda: GIVEN).render(OPENMETRICS)
    assert content_type.startswith(OPENMETRICS)
    assert page.endswith(b"# EOF\n")


def test_the_process_is_measured_under_the_names_of_every_exporter() -> None:
    assert {"process_resident_memory_bytes", "python_info"} <= families().keys()


# --- the metrics of a node ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandDrivenNode]:
    made = HandDrivenNode(tmp_path_factory.mktemp("metrics") / "data", **{"engine.vbuckets": 4})
    yield made
    made.close()


def page(node: HandDrivenNode, accept: str = "") -> str:
    return Exposition(node.node.statistics.metrics).render(accept)[0].decode()


def test_a_strict_parser_accepts_the_page_of_a_node(node: HandDrivenNode) -> None:
    found = {family.name: family for family in strictly(page(node, OPENMETRICS))}
    for info in METRICS:
        family = found[f"uprmc_{info.name}".removesuffix("_total")]
        assert (family.type, family.documentation) == (info.kind, info.help)
        named = [tuple(name for name in each.labels if name != "le") for each in family.samples]
        assert set(named) <= {info.labels}
        assert family.samples or info.labels, "what has no labels has one number always"


def test_the_text_page_has_help_type_and_samples_of_each_metric_together(
    node: HandDrivenNode,
) -> None:
    begun: list[str] = []
    samples: Counter[str] = Counter()
    for line in page(node).splitlines():
        name = re.match(r"(?:# (?:HELP|TYPE) )?([a-z][a-z0-9_]*)", line)[1]
        if line.startswith("# HELP"):
            begun.append(name)
        assert re.sub("_(bucket|count|sum)$", "", name) in (begun[-1], name), line
        assert name.startswith(begun[-1]), line
        samples[line.rpartition(" ")[0]] += 1
    assert max(Counter(begun).values()) == 1
    assert max(samples.values()) == 1


@pytest.mark.parametrize("info", METRICS, ids=lambda info: info.name)
def test_names_and_help_follow_the_conventions(info) -> None:
    assert (info.kind == "counter") == info.name.endswith("_total")
    words = info.name.split("_")
    assert len(set(words)) == len(words)
    assert not {"ms", "us", "kb", "mb", "minutes", "percent", "count", "sum"} & set(words)
    assert re.fullmatch(r"[A-Z1v].+[^.]\.", info.help)
    assert info.name.replace("_", " ") not in info.help
    assert banned(info.help) == []


def test_names_are_unique() -> None:
    assert max(Counter(info.name for info in METRICS).values()) == 1


def test_every_counter_of_the_statistics_is_exposed(node: HandDrivenNode) -> None:
    stats = node.node.bucket.stats
    values = {item.name: 1_000_001 + n for n, item in enumerate(fields(Stats))}
    for name, value in values.items():
        setattr(stats, name, value)
    exposed = {
        sample.value for family in strictly(page(node, OPENMETRICS)) for sample in family.samples
    }
    stats.reset()
    assert [name for name, value in values.items() if value not in exposed] == []


def test_promtool_has_no_complaint(node: HandDrivenNode) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=page(node),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
