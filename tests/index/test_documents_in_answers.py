"""Documents in answers: each as it is stored now, whatever is stored, and whatever node has it.

Source: systems reference c.8; contracts section 4.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from interop.proxy import LastingPort
from interop.server_process import start_uprmc
from tests.index.running import index_server, store
from uprmc.client.connection import NodeError
from uprmc.index.json_text import loads
from uprmc.index.model import Lost
from uprmc.index.service import DocumentReader
from uprmc.protocol.opcodes import Status

#: What is stored, and what is shown of it.
BODIES: dict[bytes, tuple[bytes, Any]] = {
    b"plain": (b'{"a":1}', {"a": 1}),
    b"lines": (b'{\r\n "a":\n [1,\n 2]}\n', {"a": [1, 2]}),
    b"nan": (b'{"a":NaN}', None),
    b"infinite": (b"-Infinity", None),
    b"text": (b"hello", None),
    b"empty": (b"", None),
    b"bytes": (b'{"a":"\xff"}', None),
    b"utf-16": ('{"a":1}'.encode("utf-16"), None),
    b"bom": (b"\xef\xbb\xbf{}", None),
    b"half": (b'["\\ud800", "\\ud83d\\ude00", "\\\\ud800"]', ["\ufffd", "😀", "\\ud800"]),
    b"huge": (b"[1e999, 1e5]", [None, 1e5]),
    b"long": (b"[123456789012345678901234567890]", [123456789012345678901234567890]),
    b"\xff\x80": (b"8", 8),
}

DESIGN = {
    "views": {
        "v": {
            "map": {
                "where": {"ref": {"$exists": True}},
                "emit": [{"key": "$.n", "value": {"_id": "$.ref"}}],
            }
        },
        "own": {
            "map": "function (doc, meta) { if (!isArray(doc.own)) return;"
            "log(doc); emit(toJSON(doc), {_id: meta.id}); }"
        },
    }
}


def shown(key: bytes) -> Any:
    body, value = BODIES[key]
    return b64encode(body).decode() if value is None else value


def test_documents_are_shown_as_they_are_and_a_node_that_was_restarted_is_dialled_again(
    tmp_path: Path,
) -> None:
    port = LastingPort()
    where = ("--upr", str(port.address), "--vbuckets", "8")
    refs = [*(key for key in BODIES if key.isascii()), b"none", b"", b"x" * 251, b"y" * 300]
    named = [ref.decode() for ref in refs] + ["\uefff\uef80"]
    wanted = [shown(ref) if ref in BODIES else None for ref in refs] + [8]
    documents = {
        b"r%d" % n: json.dumps({"n": n, "ref": ref}).encode() for n, ref in enumerate(named)
    }
    documents |= {b"\xffown": b'{"own":[]}', b"r99": b'{"own":{}}'}
    documents |= {key: body for key, (body, _) in BODIES.items()}
    with ExitStack() as stack:
        stack.callback(port.give_back)
        with start_uprmc(tmp_path / "node", *where) as node:
            store(node, documents)
            index = stack.enter_context(index_server(tmp_path / "index", port.address))
            settings = {"index.nodes": index.views.place}
            merger = stack.enter_context(
                index_server(tmp_path / "merger", port.address, settings=settings)
            )
            index.views.put("d", DESIGN)
            for views in (index.views, merger.views):
                rows = views.rows("d/v", include_docs="true", stale="false")
                assert [row["doc"] for row in rows] == wanted
            (row,) = index.views.rows("d/own", include_docs="true")
            assert (row["key"], row["doc"]) == ('{"own":[]}', {"own": []})
            assert (row["id"], row["id_base64"]) == ("\uefffown", b64encode(b"\xffown").decode())
            found = index.views.rows("d/own", key=json.dumps(row["key"]), startkey_docid=row["id"])
            assert len(found) == 1
            assert index.views.info()["map_log"] == [{"id": row["id"], "text": row["key"]}]
            node.stop()
        away = index.views.query("d/v", include_docs="true", stale="ok").body
        assert [row["doc"] for row in away["rows"]] == [None] * len(wanted)
        assert len(away["errors"]) == 1
        assert "cannot be read" in away["errors"][0]["reason"]
        with start_uprmc(tmp_path / "node", *where):
            index.views.until("the node is back", lambda info: not info["error"])
            rows = index.views.rows("d/v", include_docs="true", stale="ok")
            assert [row["doc"] for row in rows] == wanted


# --- which node is asked ------------------------------------------------------------------------


class Nodes:
    """Nodes by place: what they answer to a document, or the error of the next connections."""

    def __init__(self, answers: Mapping[str, Callable[[bytes], tuple[int, bytes]]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def ask(self, place: str, question: Callable[[Any], Any]) -> Any:
        self.asked.append(place)
        if place not in self.answers:
            raise NodeError(f"no node answers at {place}")
        return question(SimpleNamespace(ask_all=lambda asked: map(self._answer(place), asked)))

    def _answer(self, place: str) -> Callable[[Any], Any]:
        def answer(request: Any) -> Any:
            status, value = self.answers[place](request.key)
            return SimpleNamespace(status=status, value=value, reason="why")

        return answer


class Where:
    """A source: one node has all vBuckets, and another one when it was asked again."""

    total = 4
    tls = credentials = None

    def __init__(self, *places: str) -> None:
        self._places = list(places)
        self.refreshed = 0

    def place_of(self, vbucket: int) -> str:
        return self._places[0]

    @property
    def rounds(self) -> int:
        return self.refreshed

    def refresh(self) -> Deferred[None]:
        self.refreshed += 1
        if len(self._places) > 1:
            self._places.pop(0)
        return succeed(None)


def reader(source: Where, nodes: Nodes) -> DocumentReader:
    made = DocumentReader(source, lambda call: call() and None)  # type: ignore[arg-type, func-returns-value]
    made._connections = nodes  # type: ignore[assignment]
    return made


def got(reading: DocumentReader, *keys: bytes) -> Sequence[Any]:
    return [loads(each) if isinstance(each, bytes) else each for each in reading.get(keys)]


def has(key: bytes) -> tuple[int, bytes]:
    return (0, b"1") if key == b"a" else (Status.KEY_NOT_FOUND, b"")


def moved(key: bytes) -> tuple[int, bytes]:
    return Status.NOT_MY_VBUCKET, b""


def test_a_key_that_is_not_there_is_asked_for_once() -> None:
    source, nodes = Where("n:1", "n:2"), Nodes({"n:1": has})
    assert got(reader(source, nodes), b"a", b"b", b"a", b"", b"x" * 251) == [1, None, 1, None, None]
    assert (nodes.asked, source.refreshed) == (["n:1"], 0)


@pytest.mark.parametrize("before", [{}, {"n:1": moved}], ids=["silent", "moved"])
def test_a_document_of_a_node_that_was_replaced_comes_from_the_other(before: Any) -> None:
    source, nodes = Where("n:1", "n:2"), Nodes({**before, "n:2": has})
    assert got(reader(source, nodes), b"a", b"b") == [1, None]
    assert (nodes.asked, source.refreshed) == (["n:1", "n:2"], 1)


def test_what_no_node_can_say_is_lost_and_a_silent_node_is_left_alone_for_a_while() -> None:
    source, nodes = Where("n:1"), Nodes({})
    reading = reader(source, nodes)
    for _ in range(3):
        assert got(reading, b"a", b"b") == [Lost("no node answers at n:1")] * 2
    assert (nodes.asked, source.refreshed) == (["n:1", "n:1"], 1)
    source.refresh()
    nodes.answers = {"n:1": has}
    assert got(reading, b"a") == [1]
    assert got(reader(Where(""), nodes), b"a") == [Lost("no node can be asked for vBucket 3")]


def test_a_refusal_concerns_its_document_only() -> None:
    def busy(key: bytes) -> tuple[int, bytes]:
        return has(key) if key == b"a" else (Status.TEMPORARY_FAILURE, b"")

    reading = reader(Where("n:1"), Nodes({"n:1": busy}))
    assert got(reading, b"b", b"a") == [Lost("the node at n:1 refuses: why"), 1]
