"""The documentation tells the truth: its tables are compared and its examples replayed.

How that is done is in ``tests/documents.py``; the page about streams has ``test_docs_upr.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.testing import StringTransport

from tests.documents import (
    BACKGROUND,
    EXTENSIONS,
    INSTALL,
    MANAGEMENT,
    OPERATIONS,
    PROTOCOL,
    SECURITY,
    STATISTICS,
    STREAMS,
    TAP_MESSAGES,
    TROUBLESHOOTING,
    Example,
    HandDrivenNode,
    HexReader,
    Talk,
    identified,
    names,
    replay,
    rows,
    section,
    shown_opcodes,
)
from tests.server.support import PEER
from tests.storage.processes import claim
from tools import layouts, reference
from uprmc.config import Settings, describe, load
from uprmc.errors import StoreRefused
from uprmc.metrics import Exposition
from uprmc.model import ConflictRule
from uprmc.protocol import text_replies
from uprmc.protocol.opcodes import QUIET, SHAPES, STATUS_TEXT, Opcode
from uprmc.server.http.site import Pages
from uprmc.server.log import EVENTS
from uprmc.server.stats import memcached, streams, vbuckets
from uprmc.storage.directory import open_directory
from uprmc.storage.layout import FORMAT_VERSION


@pytest.fixture(scope="module")
def flushed_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandDrivenNode]:
    made = HandDrivenNode(tmp_path_factory.mktemp("flushed") / "data")
    yield made
    made.close()


@pytest.fixture
def node(flushed_node: HandDrivenNode) -> HandDrivenNode:
    flushed_node.empty()
    return flushed_node


@pytest.fixture(scope="module")
def used_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandDrivenNode]:
    """Give a node with a document and a connection, for tests that only look."""
    made = HandDrivenNode(tmp_path_factory.mktemp("used") / "data")
    Talk(made, by_key=True).send(b"set a 0 0 1\r\nx\r\n")
    factory = made.node._session_factory("memcached", True)
    factory.buildProtocol(PEER).makeConnection(StringTransport())
    yield made
    made.close()


# --- examples in hex ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "example", identified("hex", protocol=PROTOCOL, management=MANAGEMENT, tap=TAP_MESSAGES)
)
def test_every_example_in_hex_is_answered_as_written(
    node: HandDrivenNode, example: Example
) -> None:
    talk = Talk(node, by_key=example.kind != "hex upr")
    reader = HexReader()
    replay(talk, example, lambda lines: talk.send(reader.request(lines)), reader.check)
    talk.hang_up()


#: Commands that the example of another one stands for, or whose layout says everything.
_SHOWN_BY_OTHERS = {
    Opcode.GATK,
    Opcode.PREPEND,
    Opcode.SASL_AUTH,
    Opcode.SASL_STEP,
    Opcode.ADD,
    Opcode.UPR_FLUSH,
    Opcode.HWT_REPLICATE,
    Opcode.NOOP,
    Opcode.VERSION,
    Opcode.QUIT,
    Opcode.VERBOSITY,
    Opcode.SASL_LIST_MECHS,
    Opcode.GET_ERROR_MAP,
    Opcode.SEQNO_PERSISTENCE,
    Opcode.STOP_PERSISTENCE,
    Opcode.START_PERSISTENCE,
    Opcode.ENABLE_TRAFFIC,
    Opcode.DISABLE_TRAFFIC,
    Opcode.DEREGISTER_TAP_CLIENT,
    Opcode.CHANGE_VB_FILTER,
    Opcode.RESET_REPLICATION_CHAIN,
    Opcode.LAST_CLOSED_CHECKPOINT,
    Opcode.CREATE_CHECKPOINT,
    Opcode.TELL_TERMS,
    Opcode.UPR_SEQNO_ACKNOWLEDGED,
}


def test_every_command_group_has_an_example_in_hex() -> None:
    shown = {
        QUIET.get(opcode, opcode)
        for document in (PROTOCOL, MANAGEMENT, STREAMS, EXTENSIONS, TAP_MESSAGES)
        for mark in "><"
        for opcode in shown_opcodes(document, mark)
    }
    assert set(SHAPES) - set(QUIET) - shown <= _SHOWN_BY_OTHERS


# --- examples in text ---------------------------------------------------------------------------


class TextReader:
    """The same for text: ``<cas>`` is any number in an answer and the last one in a request."""

    def __init__(self) -> None:
        self.cas = ""

    @staticmethod
    def _lines(lines: list[str]) -> str:
        return "".join(f"{line}\r\n" for line in lines).replace("␣", " ")

    def request(self, lines: list[str]) -> bytes:
        return self._lines(lines).replace("<cas>", self.cas).encode()

    def check(self, lines: list[str], answered: bytes) -> None:
        expected, got = self._lines(lines), answered.decode()
        found = re.fullmatch(re.escape(expected).replace("<cas>", r"(\d+)"), got)
        assert found, f"answered {got!r}, expected {expected!r}"
        if found.groups():
            self.cas = found[1]


@pytest.mark.parametrize("example", identified("memcached", protocol=PROTOCOL))
def test_every_example_in_text_is_answered_as_written(
    node: HandDrivenNode, example: Example
) -> None:
    talk = Talk(node, by_key=True)
    reader = TextReader()
    replay(talk, example, lambda lines: talk.send(reader.request(lines)), reader.check)


# --- tables of the protocol ---------------------------------------------------------------------

#: Layouts that are parts of others which the pages show, or that a table shows in words.
_WITHIN_OTHERS = {
    "deletionframe",
    "markerframe",
    "mutationframe",
    "mutationseqnoextras",
    "recordnumbers",
    "report",
    "responsebegin",
    "tapbackfilldata",
    "tapcheckpointvalue",
    "tapconnectextras",
    "tapcount",
    "tapdeleteframe",
    "tapextras",
    "tapmutationframe",
    "tapmutationspecific",
    "tapregistereddata",
    "taprevisionspecific",
    "tapvbucketentry",
    "tapwordspecific",
    "versionedmarkerframe",
    "withmetaextras",
    "withmetanmetaextras",
    "withmetaoptionsextras",
}


def test_every_message_has_the_section_that_the_table_of_opcodes_leads_to() -> None:
    told = {row[0].strip("`"): row for row in rows(reference.opcodes_page())[2:]}
    assert set(told) == {f"{opcode:02x}" for opcode in Opcode if opcode.loud is None}
    assert told["02"][1:] == [
        "ADD",
        "`12` ADDQ",
        "8",
        "yes",
        "may be empty",
        "[protocol](../protocol.md#set-add-replace)",
    ]
    assert told["5a"][6] == "[streams](../streams.md#flush)"
    assert told["08"][6] == "[protocol](../protocol.md#flush)"


def test_every_layout_is_the_one_of_the_code_and_none_is_missing() -> None:
    shown: set[str] = set()
    for document in (PROTOCOL, MANAGEMENT, STREAMS, EXTENSIONS, TAP_MESSAGES):
        assert layouts.written(document) == document, "run: python -m tools.layouts"
        shown |= {name.replace("_", "").lower() for name in layouts.names(document)}
    assert set(layouts.LAYOUTS) - shown == _WITHIN_OTHERS


def test_every_status_is_told_with_its_text() -> None:
    text = section(PROTOCOL, "## Statuses")
    told = {row[0]: row[1] for row in rows(text) if re.fullmatch(r"`[0-9a-f]{4}`", row[0])}
    unused = text[text.index("never sent today") - 80 :]
    for status, body in STATUS_TEXT.items():
        number = f"`{status:04x}`"
        shown = f"`{body.decode()}`" if body else "(none)"
        if number in told:
            assert told[number] == shown
        else:
            assert (f"{number} {shown}" if body else number) in " ".join(unused.split())
    assert {int(number.strip("`"), 16) for number in told} <= set(STATUS_TEXT)


def test_every_line_that_text_commands_answer_is_told() -> None:
    document = PROTOCOL.replace("\\|", "|")
    missing = [
        name
        for name, line in vars(text_replies).items()
        if isinstance(line, bytes) and f"`{line.decode().strip()}" not in document
    ]
    assert missing == []


def test_settings_that_the_documents_mention_exist() -> None:
    known = {info.name for info in describe()}
    sections = "|".join(sorted({name.partition(".")[0] for name in known}))
    events = set(EVENTS)
    of_operators = (INSTALL, OPERATIONS, SECURITY, TROUBLESHOOTING, BACKGROUND)
    for document in (PROTOCOL, MANAGEMENT, STREAMS, EXTENSIONS, TAP_MESSAGES, *of_operators):
        mentioned = set(re.findall(rf"`((?:{sections})\.[a-z_]+)`", document))
        assert mentioned - events <= known


# --- settings -----------------------------------------------------------------------------------


def test_the_examples_of_settings_can_be_used(tmp_path: Path) -> None:
    text = section(INSTALL, "## Settings")
    for block in re.findall(r"^```toml\n(.*?)^```$", text, re.M | re.S):
        file = tmp_path / "uprmc.toml"
        file.write_text(block, encoding="utf-8")
        assert load(file, {}, {}) != Settings()
    variables = dict(re.findall(r"\b(UPRMC_\w+)=(\S+)", text))
    assert load(None, variables, {}) != Settings()
    options = dict(re.findall(r"--set ([\w.]+)=(\S+)", text))
    assert load(None, {}, options) == load(None, variables, {})


# --- the data directory -------------------------------------------------------------------------


def _refusal(path: Path, **asked: Any) -> str:
    with pytest.raises(StoreRefused) as refused:
        open_directory(path, uuid=1, sync=False, **asked)
    return re.sub(r"\(pid \d+\)", "(pid 4242)", str(refused.value).replace(str(path), "DIR"))


_ELSE = "choose another data directory"


def test_a_refused_data_directory_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file, foreign, damaged, good = (tmp_path / name for name in ("file", "foreign", "bad", "good"))
    file.touch()
    foreign.mkdir()
    (foreign / "notes.txt").touch()
    damaged.mkdir()
    (damaged / "data.mdb").write_bytes(bytes(range(256)) * 64)
    assert _refusal(file) == f"DIR is not a directory: {_ELSE}"
    others = "DIR holds no uprmc store but other files ('notes.txt')"
    assert _refusal(foreign) == f"{others}: choose an empty or new data directory"
    found = re.sub(r"damaged \(.*?\): restore", "damaged (...): restore", _refusal(damaged))
    restore = "restore a backup, or move the directory away and start empty"
    assert found == f"DIR/data.mdb is damaged (...): {restore}"
    store = open_directory(good, uuid=1, vbuckets=16, sync=False)
    used = "DIR is in use by another uprmc process (pid 4242)"
    assert _refusal(good) == f"{used}: stop that one or {_ELSE}"
    identity = store.identity()
    store.close()
    made = "DIR was made with 16 vBuckets and 32 are asked for"
    assert _refusal(good, vbuckets=32) == f"{made}: ask for 16 or {_ELSE}"
    made = "DIR was made with engine.conflict_resolution=revision and timestamp is asked for"
    found = _refusal(good, conflict_rule=ConflictRule.TIMESTAMP)
    assert found == f"{made}: ask for revision or {_ELSE}"
    store = open_directory(good, uuid=1, sync=False)
    claim(store, identity._replace(format_version=FORMAT_VERSION + 1))
    store.close()
    newer = f"format {FORMAT_VERSION + 1}, this one knows up to {FORMAT_VERSION}"
    written = f"DIR was written by a newer uprmc ({newer})"
    assert _refusal(good) == f"{written}: install that version or {_ELSE}"


# --- events, pages, metrics ---------------------------------------------------------------------


def test_the_table_of_pages_has_every_page(used_node: HandDrivenNode) -> None:
    pages = {path.decode() for path in Pages(used_node.node.statistics).by_path} | {
        "/live",
        "/changes",
    }
    assert set(names(section(OPERATIONS, "## HTTP"))) == pages


def test_metrics_that_the_page_mentions_exist(used_node: HandDrivenNode) -> None:
    page, _ = Exposition(used_node.node.statistics.metrics).render("")
    exposed = set(re.findall(r"^(?:# TYPE )?(\w+)", page.decode(), re.M))
    told = set(re.findall(r"`((?:uprmc|process)_\w+)`", section(OPERATIONS, "## Metrics")))
    assert told - {"uprmc_"} <= exposed


# --- statistics ---------------------------------------------------------------------------------

_GROUPS = [
    "settings",
    "items",
    "slabs",
    "conns",
    "warmup",
    "memory",
    "uprmc",
    "ep",
    "vbucket",
    "prev-vbucket",
    "vbucket-details",
    "vbucket-seqno",
    "failovers",
    "checkpoint",
    "hash",
    "tap",
    "tapagg",
    "uuid",
    "kvstore",
    "workload",
    "config",
]


#: Names for tools, which the page leaves out; of ``ep`` those that are in the general group.
_LEFT_OUT = {
    "": {*memcached._NEVER},
    "settings": {name for name, _ in memcached._UNUSED_SETTINGS},
    "items": {f"items:1:{name}" for name in memcached._NEVER_OF_A_CLASS},
    "ep": memcached._READ_FIRST,
    "vbucket-details": {f"vb_N:{name}" for name in vbuckets._UNKNOWN},
    "tap": {name for name, _ in streams._UNUSED_SETTINGS} | {*streams._UNUSED_COUNTERS},
}


def _statistics(node: HandDrivenNode, group: str) -> set[str]:
    """Return a group's names with N and M for numbers."""
    found = node.node.statistics.group(group)
    assert found is not None
    found_names = [name for name, _ in found]
    if group == "conns":
        found_names = [re.sub(r"^\d+:", "N:", name) for name in found_names]
    found_names = [re.sub(r"^(vb|auxio_worker)_\d+", r"\1_N", name) for name in found_names]
    return {re.sub(r"^vb_N:\d+:", "vb_N:M:", name) for name in found_names}


def _told_names(group: str) -> list[str]:
    """Return the names that the page has for a group, in its section or in its row."""
    others = {row[0].strip("`"): row[1] for row in rows(section(STATISTICS, _OTHERS))}
    if (told := others.get(f"stats {group}")) is not None:
        return [name for name in re.findall(r"`([^`]+)`", told) if not _MEANING.fullmatch(name)]
    return names(section(STATISTICS, f"## `stats {group}`"))


_OTHERS = "## Other groups of Couchbase"

#: What a row about a group has in backquotes besides names: values, and names of other groups.
_MEANING = re.compile(
    "lmdb|running|sleeping|ht_item_memory|commit_failures|bg_fetch_failures|disk_commit|bg_load|bg_wait"
)


@pytest.mark.parametrize("group", _GROUPS)
def test_the_tables_of_statistics_have_every_name_of_a_group(
    used_node: HandDrivenNode, group: str
) -> None:
    told = _told_names(group)
    assert len(told) == len(set(told))
    assert set(told) == _statistics(used_node, group) - _LEFT_OUT.get(group, set())


def test_the_table_of_general_statistics_has_every_name(used_node: HandDrivenNode) -> None:
    told = names(section(STATISTICS, "## `stats` (general)"))
    assert len(told) == len(set(told))
    assert set(told) == _statistics(used_node, "") - _LEFT_OUT[""]


def test_the_table_of_timings_has_everything_that_is_measured(used_node: HandDrivenNode) -> None:
    measured = [name for name, _ in used_node.node.bucket.timings.items()]
    told = names(section(STATISTICS, "## `stats timings`"))
    assert sorted(told) == sorted(f"{name}_N,M" for name in measured)


@pytest.mark.parametrize("group", ["kvtimings", "scheduler", "runtimes"])
def test_the_tables_of_durations_by_other_names_have_every_one(
    used_node: HandDrivenNode, group: str
) -> None:
    timings = used_node.node.bucket.timings
    for histogram in (timings.bg_wait, timings.bg_load, timings.disk_commit):
        histogram.add(1.0)
    told = _told_names(group)
    measured = {re.sub(r"\d+,\d+$", "N,M", name) for name in _statistics(used_node, group)}
    assert set(told) == measured


def test_every_setting_has_its_value_in_a_group_of_their_own(used_node: HandDrivenNode) -> None:
    assert {info.name for info in describe()} == _statistics(used_node, "settings-uprmc")


def test_every_group_of_statistics_is_told(used_node: HandDrivenNode) -> None:
    statistics = used_node.node.statistics
    groups = {*statistics._groups, *statistics._by_vbucket, *statistics._by_words} - {""}
    assert {group for group in groups if f"`stats {group}`" in STATISTICS} == groups
