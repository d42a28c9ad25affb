"""What is no file of an index keeps no index waiting, wherever in its directory it lies."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from interop.server_process import ServerProcess
from tests.index.running import BY_CITY, cities, index_server, store

DESIGNS = ("facts", "text", "rows", "more")


def test_designs_are_answered_for_or_refused_whatever_lies_among_their_files(
    node: ServerProcess, tmp_path: Path
) -> None:
    store(node, cities(range(10)))
    data = tmp_path / "beside"
    with index_server(data, node.upr) as server:
        for name in DESIGNS:
            server.views.put(name, BY_CITY)
            assert server.views.count(view=f"{name}/by_city") == 10
        assert server.stop() == 0
    root = next(path.parent for path in data.rglob("facts.design"))
    _replaced_by_a_pipe(root / "facts.design/design.json")
    (text,) = (root / "text.design").glob("*.text")
    _replaced_by_a_pipe(text)
    (rows,) = (root / "rows.design").glob("*.index")
    _replaced_by_a_pipe(rows)
    (file,) = (root / "more.design").glob("*.index")
    for number in (2, 3):
        os.mkfifo(file.with_suffix("").with_suffix(f".{number}.unfinished"))
    file.with_suffix("").with_suffix(".7.index").mkdir()
    (root / "more.design/left/over").mkdir(parents=True)
    os.mkfifo(root / "pipe.design")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(root / "socket.design"))
    with index_server(data, node.upr) as server:
        for name in ("rows", "more"):
            assert server.views.count(view=f"{name}/by_city") == 10
        for name, why in (("facts", "put it again"), ("text", "Not a regular file")):
            answer = server.views.query(f"{name}/by_city", stale="false")
            assert (answer.status, answer.body["error"]) == (503, "unavailable")
            assert why in answer.body["reason"]
            server.views.put(name, BY_CITY)
            assert server.views.count(view=f"{name}/by_city") == 10
        assert server.stop() == 0


def _replaced_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
