"""The exposition that Prometheus scrapes."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from uprmc.server.metrics import Exposition, Metric, single

METRICS = [
    single("connections", "gauge", "Open connections.", 3),
    single("bytes_read_total", "counter", "Bytes received.", 2**53),
    Metric(
        "commands",
        "counter",
        "Commands by name.",
        [({"command": "get", "result": "hit"}, 5), ({"command": 'a"b\\\n', "result": "x"}, 1)],
    ),
]


def families(accept: str = ""):
    page, _ = Exposition(lambda: METRICS).render(accept)
    return {family.name: family for family in text_string_to_metric_families(page.decode())}


def test_every_name_has_the_prefix_help_and_type() -> None:
    page, content_type = Exposition(lambda: METRICS).render("")
    assert content_type.startswith("text/plain")
    assert b"# HELP uprmc_connections Open connections." in page
    assert b"# TYPE uprmc_connections gauge\nuprmc_connections 3.0\n" in page
    assert all(name.startswith("uprmc_") for name in families())


def test_counters_end_in_total_once() -> None:
    found = families()
    assert found["uprmc_bytes_read"].type == "counter"
    assert [s.name for s in found["uprmc_bytes_read"].samples] == ["uprmc_bytes_read_total"]
    assert {s.name for s in found["uprmc_commands"].samples} == {"uprmc_commands_total"}


def test_labels_survive_the_trip_whatever_they_hold() -> None:
    samples = families()["uprmc_commands"].samples
    assert samples[0].labels == {"command": "get", "result": "hit"}
    assert samples[1].labels["command"] == 'a"b\\\n'


def test_values_are_asked_for_at_each_scrape() -> None:
    count = iter(range(1, 10))
    exposition = Exposition(lambda: [single("scrapes", "gauge", "Scrapes.", next(count))])
    assert b"uprmc_scrapes 1.0" in exposition.render("")[0]
    assert b"uprmc_scrapes 2.0" in exposition.render("")[0]


def test_openmetrics_is_spoken_to_those_who_ask() -> None:
    page, content_type = Exposition(lambda: METRICS).render("application/openmetrics-text")
    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")


def test_the_process_itself_is_measured() -> None:
    assert "uprmc_process_resident_memory_bytes" in families()
