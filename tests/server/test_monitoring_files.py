"""The dashboard and the alert rules name metrics and labels that a node exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.documents import ROOT
from uprmc.metrics import Exposition
from uprmc.server.stats.metrics import METRICS

FOLDER = ROOT / "packaging" / "monitoring"
DASHBOARD = FOLDER / "grafana-uprmc.json"
RULES = FOLDER / "prometheus-rules.yml"
SCRAPE = FOLDER / "prometheus.yml"

#: Labels that Prometheus adds, and that of a histogram's classes.
OUTSIDE = {"job", "instance", "le"}

LABELS = {f"uprmc_{info.name}": set(info.labels) for info in METRICS}
HISTOGRAMS = {f"uprmc_{info.name}" for info in METRICS if info.kind == "histogram"}
OF_THE_PROCESS = {
    sample.name
    for family in text_string_to_metric_families(Exposition(list).render("")[0].decode())
    for sample in family.samples
}

_NAME = re.compile(r"\b((?:uprmc|process|python)_[a-z_]+)\b(?:\{([^}]*)\})?")


def expressions(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if path == RULES:
        yield from re.findall(r"^ +expr: (.+)$", text, re.M)
        return
    board = json.loads(text)
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["query"] for each in board["templating"]["list"] if each["type"] == "query")
    yield from (each["expr"] for each in board["annotations"]["list"])


EXPRESSIONS = [(path.name, each) for path in (DASHBOARD, RULES) for each in expressions(path)]


def family(name: str) -> str:
    """Return the metric that a sample's name belongs to; a histogram has samples of classes."""
    base = re.sub(r"_(bucket|count|sum)$", "", name)
    return base if base in HISTOGRAMS and base != name else name


@pytest.mark.parametrize(("file", "expression"), EXPRESSIONS)
def test_an_expression_names_what_there_is(file: str, expression: str) -> None:
    found = _NAME.findall(expression)
    assert found
    known = set(OUTSIDE)
    for name, selector in found:
        if name in OF_THE_PROCESS:
            continue
        assert family(name) in LABELS.keys() - HISTOGRAMS | {family(name)} & HISTOGRAMS, name
        assert (name in HISTOGRAMS) is False, f"{name} has samples by class"
        known |= LABELS[family(name)]
        selected = set(re.findall(r"(\w+)=~?\"", selector))
        assert selected <= LABELS[family(name)] | OUTSIDE
    grouped = {
        each
        for inside in re.findall(r"by \(([^)]*)\)", expression)
        for each in re.split(r",\s*", inside)
    }
    assert grouped <= known


def test_texts_of_alerts_use_labels_that_the_alert_has() -> None:
    for rule in RULES.read_text(encoding="utf-8").split("- alert:")[1:]:
        (expression,) = re.findall(r"expr: (.+)", rule)
        names = [family(name) for name, _ in _NAME.findall(expression)]
        labels = set.union(*(LABELS[name] for name in names)) | {"instance"}
        assert set(re.findall(r"\$labels\.(\w+)", rule)) <= labels


def test_panels_have_titles_legends_of_their_labels_and_places_that_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["description"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
        for target in panel["targets"]:
            names = [family(name) for name, _ in _NAME.findall(target["expr"])]
            labels = set().union(*(LABELS.get(name, set()) for name in names)) | OUTSIDE
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_promtool_accepts_the_scrape_and_its_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    checked = subprocess.run(
        [promtool, "check", "config", str(SCRAPE)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
