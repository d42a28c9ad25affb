"""``docs/tap.md`` tells the truth: its commands run in their order, its tables name what there is.

Proves: what an operator copies from the page moves all data from one server to another, both ways
and through the adapter as a process of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop import upr_wire as u
from interop.replica_pair import Node
from interop.tap_copy import Documents
from interop.tap_nodes import active_at, differences, documents_of, fill, states, wait_until_same
from interop.tap_page import PAGE, TEXT, VBUCKETS, Block, Story, blocks
from interop.upr_wire import UprWire
from tests.documents import rows, section
from uprmc.config import describe

pytestmark = pytest.mark.acceptance("D56")

ALL = tuple(range(VBUCKETS))
Tell = Callable[..., Story]


@pytest.fixture
def tell(tmp_path: Path, peer: str) -> Iterator[Tell]:
    """``tell()``: two nodes on which a part of the page is played."""
    if peer != "uprmc":
        pytest.skip("memcached does not speak TAP")
    stories: list[Story] = []

    def run(*options: str) -> Story:
        stories.append(Story(tmp_path, *options).__enter__())
        return stories[-1]

    yield run
    for story in stories:
        story.__exit__(None, None, None)


def grown(node: Node) -> Documents:
    """Give a node documents of all kinds."""
    fill(node, ALL, 60)
    with node.wire() as wire:
        for number in ALL:
            wire.delete(number, b"fill-%d-3" % number)
            wire.put(number, b"fill-%d-4" % number, b"again")
    return documents_of(node.upr, ALL)


def play(story: Story, parts: list[Block], source: Node, target: Node) -> None:
    """Run blocks; after a pipe has begun, wait until nothing is lacking at the target."""
    for block in parts:
        story.run(block)
        if block.is_endless and block.is_pipe:
            wait_until_same(source.upr, target.upr, ALL)


def test_from_old_to_new_by_takeover(tell: Tell) -> None:
    story = tell()
    wanted = grown(story.old)
    parts = [each for each in blocks("## From old to new") if "failover" not in each.text]
    play(story, parts, story.old, story.new)
    assert documents_of(story.new.upr, ALL) == wanted
    assert active_at(story.new, ALL) == list(ALL)
    assert states(story.old, ALL) == dict.fromkeys(ALL, u.DEAD)


def test_from_old_to_new_without_a_takeover(tell: Tell) -> None:
    story = tell()
    wanted = grown(story.old)
    parts = blocks("## From old to new")
    first = next(place for place, each in enumerate(parts) if each.is_takeover)
    play(story, parts[:first], story.old, story.new)
    story.end_pipes()
    story.run(next(each for each in parts if "failover" in each.text))
    assert documents_of(story.new.upr, ALL) == wanted
    assert active_at(story.new, ALL) == list(ALL)


def test_from_new_to_old_and_back(tell: Tell) -> None:
    story = tell()
    wanted = grown(story.new)
    play(story, blocks("## From new to old"), story.new, story.old)
    assert documents_of(story.old.upr, ALL) == wanted
    assert active_at(story.old, ALL) == list(ALL)
    assert states(story.new, ALL) == dict.fromkeys(ALL, u.DEAD)


def test_through_the_adapter_in_front_of_a_server_without_tap(tell: Tell) -> None:
    story = tell("--set", "tap.enabled=no")
    grown(story.new)
    with story.old.wire() as wire:
        for number in ALL:
            wire.remake(number, u.REPLICA)
    for block in blocks("## In front of another server"):
        story.run(block)
    wait_until_same(story.new.upr, story.old.upr, ALL)
    with story.new.wire() as wire:
        wire.put(3, b"live")
    assert (3, b"live") in wait_until_same(story.new.upr, story.old.upr, ALL)
    assert (story.directory / "positions.db").exists()


def test_the_page_has_commands_only() -> None:
    assert {each.kind for each in blocks()} == {"sh"}
    assert all("127.0.0.1:11210" not in each.text for each in blocks())


def test_settings_that_the_page_mentions_exist() -> None:
    known = {info.name for info in describe()}
    sections = "|".join(sorted({name.partition(".")[0] for name in known}))
    mentioned = set(re.findall(rf"`((?:{sections})\.[a-z_]+)`", TEXT))
    assert mentioned - {"tap.closed"} <= known  # an event of the log


def test_statistics_that_the_page_mentions_exist(tell: Tell) -> None:
    story = tell()
    fill(story.new, ALL, 5)
    with story.old.wire() as wire:
        for number in ALL:
            wire.remake(number, u.REPLICA)
    story.run(next(each for each in blocks("## From new to old") if each.is_pipe))
    wait_until_same(story.new.upr, story.old.upr, ALL)
    of_client, of_master = (
        {name.rpartition(":")[2] for name in texts(node) if name.startswith(prefix)}
        for node, prefix in ((story.new, "eq_tapq:back:"), (story.old, "eq_tapq:push_1:"))
    )
    told = [row[1] for row in rows(section(TEXT, "## Statistics"))]
    mentioned = set(re.findall(r"`([a-z_]{3,})`", " ".join(told))) - {"true"}
    assert mentioned <= of_client | of_master
    deadline = time.monotonic() + 20
    while texts(story.new)["eq_tapq:back:idle"] != "true":
        assert time.monotonic() < deadline, texts(story.new)
    assert differences(documents_of(story.new.upr, ALL), story.old.upr, ALL) == []


def texts(node: Node) -> dict[str, str]:
    with UprWire(node.upr) as wire:
        return wire.texts(b"tap")


def test_what_the_page_links_to_is_there() -> None:
    links = re.findall(r"\]\(([a-z]*(?:\.md)?)(?:#([a-z0-9_-]+))?\)", TEXT)
    assert links
    for name, anchor in links:
        page = (PAGE.parent / name).read_text(encoding="utf-8") if name else TEXT
        found = {
            re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", page, re.M)
        }
        assert not anchor or anchor in found, (name, anchor)
