"""What a program means otherwise than it says is refused when it says so, in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interop.server_process import ServerProcess, start_uprmc
from uprmc.client import Handler, Position, SqliteState, UprClient
from uprmc.client.errors import MisuseError
from uprmc.client.kv import KvClient
from uprmc.client.state import StateRefused
from uprmc.client.twisted_client import TwistedUprClient
from uprmc.errors import UprmcError

NOWHERE = "127.0.0.1:1"


def refusal(handler: Any, client: Any = UprClient, **options: Any) -> str:
    with pytest.raises(MisuseError) as refused:
        client(NOWHERE, handler, **options)
    text = str(refused.value)
    assert "\n" not in text
    return text


def defining(**methods: Any) -> Handler:
    kind: Any = type("Mirror", (Handler,), {"__module__": __name__, **methods})
    found: Handler = kind()
    return found


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_mutaton", "mutation"),
        ("on_mutation", "mutation"),
        ("mutaton", "mutation"),
        ("onDeletion", "deletion"),
        ("handle_deletions", "deletion"),
        ("snapshotEnd", "snapshot_end"),
        ("snapshot_ended", "snapshot_end"),
        ("roll_back", "rollback"),
        ("on_change", "changes"),
        ("native_rolback", "native_rollback"),
    ],
)
@pytest.mark.parametrize("client", [UprClient, TwistedUprClient])
def test_a_name_that_is_never_called_is_refused_with_the_one_that_was_meant(
    name: str, meant: str, client: Any
) -> None:
    handler = defining(**{name: lambda *_: None})
    assert f"Mirror.{name} is never called: did you mean {meant}?" in refusal(handler, client)


@pytest.mark.parametrize(
    "names",
    [
        ("mutation", "deletion", "change", "put", "drop"),
        ("mutation", "mutations"),
        ("changes", "change"),
        ("undo", "redo"),
        ("query", "close", "flush", "delete", "on_start"),
        ("_on_mutation",),
    ],
)
def test_helpers_of_a_handler_are_left_alone(names: tuple[str, ...]) -> None:
    arguments = {"undo": lambda self, vbucket, key, document: None}
    methods = {name: arguments.get(name, lambda self, one: None) for name in names}
    UprClient(NOWHERE, defining(**methods)).close()


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({"mutation": lambda self: None}, "define mutation(change)"),
        ({"mutation": lambda self, a, b: None}, "cannot be called with 1 argument:"),
        ({"undo": lambda self, key, document: None}, "define undo(vbucket, key, document)"),
        ({"changes": lambda self, one, two: None}, "define changes(batch)"),
        ({"durable": lambda self, one: None}, "define durable()"),
        ({"rollback": None}, "Mirror.rollback is no method: define rollback(vbucket, seqno)"),
    ],
)
def test_a_method_that_could_not_be_called_is_refused(methods: Any, words: str) -> None:
    assert words in refusal(defining(**methods))


def test_more_parameters_are_fine_if_they_have_defaults() -> None:
    UprClient(NOWHERE, defining(mutation=lambda self, change, more=1: None)).close()
    UprClient(NOWHERE, defining(rollback=lambda self, *arguments: None)).close()


def test_a_coroutine_is_for_the_client_that_waits_for_it() -> None:
    async def mutation(self: Handler, change: Any) -> None: ...

    assert "use TwistedUprClient" in refusal(defining(mutation=mutation))
    TwistedUprClient(NOWHERE, defining(mutation=mutation)).close()


@pytest.mark.parametrize("handler", [None, 5, print, {"mutation": print}, object()])
def test_what_is_no_handler_is_refused(handler: object) -> None:
    assert "a subclass of uprmc.client.Handler" in refusal(handler)


def test_a_class_is_no_handler() -> None:
    assert "give an object, Handler()" in refusal(Handler)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("begining", "did you mean beginning?"),
        ("xyz", "say checkpoint, beginning, now, or positions"),
        (-1, "there is no such seqno"),
        (2**64, "there is no such seqno"),
        (1.5, "a dictionary of positions"),
        (True, "a dictionary of positions"),
        ([1], "a dictionary of positions"),
        (None, "a dictionary of positions"),
        ({0: 7}, "7 is no position: say Position(seqno, vb_uuid)"),
        ({0: ("a", "b")}, "is no position"),
        ({0: Position(-1, 1)}, "there is no seqno -1"),
        ({1024: Position(1, 1)}, "there is no vBucket 1024: say 0 to 1023"),
        ({"0": Position(1, 1)}, "there is no vBucket '0'"),
    ],
)
@pytest.mark.parametrize("client", [UprClient, TwistedUprClient])
def test_a_start_that_is_none_is_refused(start: Any, words: str, client: Any) -> None:
    assert words in refusal(Handler(), client, start=start, total_vbuckets=1024)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vbuckets": 5}, "say a list of numbers"),
        ({"vbuckets": []}, "empty"),
        ({"vbuckets": [65536]}, "65536"),
        ({"ring_items": 0}, "ring_items"),
        ({"vbuckets": [8], "total_vbuckets": 8}, "say 0 to 7"),
        ({"total_vbuckets": 65_537}, "say 1 to 65536"),
        ({"on_rollback": "rewnd"}, "did you mean rewind?"),
        ({"on_rollback": 5}, "say fail, rewind, restart, or a function"),
        ({"on_purged": "restrat"}, "did you mean restart?"),
    ],
)
def test_other_options_are_checked_before_the_state_is_opened(
    options: Any, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.db"
    assert words in refusal(Handler(), state=path, **options)
    assert not path.exists()


@pytest.mark.parametrize("place", ["", "he re", "here:", "here:x", "here:0", "here:65536", ":1"])
def test_a_place_that_is_none_is_refused(place: str) -> None:
    with pytest.raises(MisuseError, match=f"'{place}' is no node: say HOST:PORT"):
        UprClient(place, Handler())


# --- how many vBuckets ----------------------------------------------------------------------------


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with start_uprmc(tmp_path_factory.mktemp("data"), "--vbuckets", "4", "--no-sync") as server:
        yield server


def complaint(server: ServerProcess, **options: Any) -> str:
    client = UprClient(str(server.upr), Handler(), **options)
    with client, pytest.raises(MisuseError) as refused:
        client.run("now", timeout_s=30)
    return str(refused.value)


def test_a_count_that_is_not_the_nodes_is_refused_at_the_first_connection(
    server: ServerProcess, tmp_path: Path
) -> None:
    place = f"the node at {server.upr} has 4 vBuckets"
    assert complaint(server, total_vbuckets=8) == f"{place}, not 8 as total_vbuckets says"
    SqliteState(tmp_path / "other.db", name="consumer", vbuckets=16).close()
    found = complaint(server, state=tmp_path / "other.db")
    assert found == f"{place}, not 16 as the state: it belongs to another node"
    assert "vbuckets: there is no vBucket 4: say 0 to 3" in complaint(server, vbuckets=[4])
    assert "start: there is no vBucket" in complaint(server, start={9: Position(0, 0)})


def test_a_new_state_learns_the_count_from_the_node_and_keeps_to_it(
    server: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "state.db"
    with UprClient(str(server.upr), Handler(), state=path) as client:
        client.run("now", timeout_s=30)
    with pytest.raises(StateRefused, match="of 4 vBuckets, not 8"):
        UprClient(NOWHERE, Handler(), state=path, total_vbuckets=8)
    UprClient(NOWHERE, Handler(), state=path, total_vbuckets=4).close()


def test_a_client_of_documents_refuses_another_count(server: ServerProcess) -> None:
    with pytest.raises(UprmcError, match="has 4 vBuckets, not 8"):
        KvClient(str(server.upr), vbuckets=8)


def test_an_argument_that_there_is_not_is_told_with_the_one_that_is_meant() -> None:
    with pytest.raises(TypeError, match="'ring_item': did you mean ring_items"):
        UprClient("127.0.0.1:1", Handler(), ring_item=5)  # type: ignore[call-arg]
