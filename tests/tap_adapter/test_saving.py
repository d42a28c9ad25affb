"""Documents of registered TAP clients, one write of each at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.tap_adapter.fake_keeper import FakeKeeper
from uprmc.tap_adapter.names import WAITING_MAX, Saves


def test_a_drop_that_failed_leaves_the_name_stored() -> None:
    keeper = FakeKeeper({b"a": b"0"}, patient=True)
    saves = Saves(keeper)
    saves.drop(b"a")
    keeper.finish(ok=False)
    assert saves.stored == {b"a"}


def test_as_many_saves_as_allowed_wait_and_one_more_fails() -> None:
    keeper = FakeKeeper(patient=True)
    saves, told = Saves(keeper), list[bool]()
    for _ in range(1 + WAITING_MAX):
        saves.save(b"a", lambda: b"1", told.append)
    assert told == []
    saves.save(b"a", lambda: b"1", told.append)
    assert told == [False]
    saves.drop(b"a")  # is never refused
    keeper.finish_all()
    assert keeper.documents == {}


_STEPS = st.lists(st.sampled_from(["save", "drop", "finish", "fail"]), max_size=40)


@given(_STEPS)
def test_everybody_is_told_once_and_the_last_word_stays(steps: list[str]) -> None:
    keeper = FakeKeeper(patient=True)
    saves = Saves(keeper)
    told: dict[int, list[bool]] = {}
    last: bytes | None = None
    for number, step in enumerate(steps):
        text = b"%d" % number
        if step == "save" and len(told) < WAITING_MAX:
            answers = told[number] = []
            saves.save(b"a", lambda text=text: text, answers.append)  # type: ignore[misc]
            last = text
        elif step == "drop":
            saves.drop(b"a")
            last = None
        elif keeper.pending:
            keeper.finish(step == "finish")
        assert len(keeper.pending) <= 1
        assert set(keeper.documents) <= saves.stored
    saves.save(b"a", lambda: last, bool)
    keeper.finish_all()
    assert keeper.documents == ({} if last is None else {b"a": last})
    assert all(len(answers) == 1 for answers in told.values())
