"""Documents of registered TAP clients, one write of each at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.tap_adapter.fake_keeper import FakeKeeper
from uprmc.tap_adapter.names import WAITING_MAX, Saves


def test_documents_are_found_at_the_start() -> None:
    saves = Saves(FakeKeeper({b"a": b"1"}))
    assert saves.found == {b"a": b"1"}
    assert saves.stored == {b"a"}


def test_a_save_is_told_when_it_is_on_disk() -> None:
    keeper = FakeKeeper(patient=True)
    saves, told = Saves(keeper), list[bool]()
    saves.save(b"a", lambda: b"1", told.append)
    assert told == []
    keeper.finish()
    assert told == [True]
    assert keeper.documents == {b"a": b"1"}


def test_saves_during_a_write_share_the_next_one_and_the_newest_wins() -> None:
    keeper = FakeKeeper(patient=True)
    saves, told = Saves(keeper), list[str]()
    saves.save(b"a", lambda: b"1", lambda _: told.append("first"))
    saves.save(b"a", lambda: b"2", lambda _: told.append("second"))
    saves.save(b"a", lambda: b"3", lambda _: told.append("third"))
    assert len(keeper.pending) == 1
    keeper.finish()
    assert told == ["first"]
    keeper.finish()
    assert told == ["first", "second", "third"]
    assert keeper.documents == {b"a": b"3"}
    assert keeper.writes == 2


def test_names_do_not_wait_for_one_another() -> None:
    keeper = FakeKeeper(patient=True)
    saves = Saves(keeper)
    saves.save(b"a", lambda: b"1", bool)
    saves.save(b"b", lambda: b"2", bool)
    assert len(keeper.pending) == 2


def test_a_write_that_failed_is_told_and_the_next_one_follows() -> None:
    keeper = FakeKeeper(patient=True)
    saves, told = Saves(keeper), list[bool]()
    saves.save(b"a", lambda: b"1", told.append)
    saves.save(b"a", lambda: b"2", told.append)
    keeper.finish(ok=False)
    keeper.finish()
    assert told == [False, True]
    assert keeper.documents == {b"a": b"2"}


def test_a_drop_waits_for_the_write_before_it_and_fails_the_saves_that_wait() -> None:
    keeper = FakeKeeper(patient=True)
    saves, told = Saves(keeper), list[bool]()
    saves.save(b"a", lambda: b"1", told.append)
    saves.save(b"a", lambda: b"2", told.append)
    saves.drop(b"a")
    assert told == [False]
    keeper.finish_all()
    assert told == [False, True]
    assert keeper.documents == {}
    assert saves.stored == set()


def test_a_save_after_a_drop_stays() -> None:
    keeper = FakeKeeper({b"a": b"0"}, patient=True)
    saves, told = Saves(keeper), list[bool]()
    saves.drop(b"a", told.append)
    saves.save(b"a", lambda: b"1", told.append)
    keeper.finish_all()
    assert told == [True, True]
    assert keeper.documents == {b"a": b"1"}
    assert saves.stored == {b"a"}


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


def test_a_save_from_within_a_callback_is_a_write_of_its_own() -> None:
    keeper = FakeKeeper()
    saves, told = Saves(keeper), list[bool]()

    def again(ok: bool) -> None:
        told.append(ok)
        saves.save(b"a", lambda: b"2", told.append)

    saves.save(b"a", lambda: b"1", again)
    assert told == [True, True]
    assert keeper.documents == {b"a": b"2"}


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
