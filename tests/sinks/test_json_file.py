"""Lines of JSON in a file: exactly once, cut after a crash, rotated, refused if not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.consumer_world import node, write
from tests.sinks.sink_contract import Changes, Documents, Lines, SinkContract
from uprmc.client.state import StateRefused
from uprmc.sinks.json_file import JsonFile
from uprmc.sinks.sink import Sink, SinkError


def files(place: Path) -> list[Path]:
    """Return the file and those that were renamed, the oldest first."""
    found = [each for each in place.glob("x.jsonl.*") if each.suffix[1:].isdecimal()]
    return [*sorted(found, key=lambda each: int(each.suffix[1:])), place / "x.jsonl"]


def lines(place: Path) -> list[bytes]:
    return [line for each in files(place) for line in each.read_bytes().splitlines()]


class TestJsonFile(SinkContract):
    """Nothing comes twice, whatever dies."""

    rotate_bytes = 0

    def open(self, place: Path) -> Sink:
        return JsonFile(place / "x.jsonl", rotate_bytes=self.rotate_bytes)

    def documents(self, place: Path) -> Documents:
        reader = Lines()
        reader.take(lines(place))
        assert reader.repeated == []
        return reader.documents

    def changes(self, place: Path) -> Changes:
        reader = Lines()
        reader.take(lines(place))
        return reader.changes


class TestRotatedJsonFile(TestJsonFile):
    """The same in many files."""

    rotate_bytes = 300


class Forgetful(JsonFile):
    """A planted fault: what is lost is not taken back."""

    def undo(self, *_: object) -> None:
        return


def test_the_contract_notices_a_sink_that_takes_nothing_back(tmp_path: Path) -> None:
    contract = TestJsonFile()
    contract.open = lambda place: Forgetful(place / "x.jsonl")  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        contract.test_what_a_failover_lost_is_taken_back(tmp_path)


def test_the_contract_notices_a_file_that_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_without_cutting(self: JsonFile) -> None:
        self._out = open(self._path, "ab")  # noqa: SIM115
        self._there = self._kept[0], self._path.stat().st_size

    monkeypatch.setattr(JsonFile, "_cut", open_without_cutting)
    with pytest.raises(AssertionError):
        TestJsonFile().test_a_crash_at_any_commit_leaves_nothing_wrong(tmp_path, False)


@pytest.fixture(name="made")
def _made(tmp_path: Path) -> Path:
    rig = node()
    write(rig, 0, a="1", b="2")
    with TestJsonFile().following(tmp_path, rig) as consumer:
        consumer.go_on()
    return tmp_path / "x.jsonl"


def test_what_stands_beyond_the_position_is_cut(made: Path) -> None:
    before = made.read_bytes()
    made.write_bytes(before + b'{"torn')
    JsonFile(made).close()
    assert made.read_bytes() == before


def test_a_file_that_is_shorter_than_its_position_is_refused(made: Path) -> None:
    made.write_bytes(made.read_bytes()[:-1])
    with pytest.raises(SinkError, match="put the file back, or move both away"):
        JsonFile(made)


def test_a_file_with_lines_of_another_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("mine\n")
    with pytest.raises(SinkError, match="give another path, or move it away"):
        JsonFile(path)
    assert path.read_text() == "mine\n"


def test_a_file_is_anothers_while_it_is_open(made: Path) -> None:
    first = JsonFile(made)
    with pytest.raises(StateRefused, match="another process uses it"):
        JsonFile(made)
    first.close()


def test_the_position_is_one_consumers(made: Path) -> None:
    with pytest.raises(StateRefused, match=r"x\.jsonl\.position: it is consumer 'json-file'"):
        JsonFile(made, name="other")


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StateRefused, match="see that the directory exists"):
        JsonFile(tmp_path / "no" / "x.jsonl")
