"""The judge of the crash test speaks when it should, and only then."""

from __future__ import annotations

import pytest

from tests.crash.judge import Judge, value_of, version_in

KEY = b"k"


def judge_with(*writes: tuple[int, bool], confirmed: int | None = None) -> Judge:
    judge = Judge()
    for version, present in writes:
        judge.sent(KEY, version, present=present)
    if confirmed is not None:
        judge.confirmed(KEY, confirmed)
    return judge


def verdict(judge: Judge, version: int | None) -> list[str]:
    return judge.restarted({KEY: None if version is None else value_of(KEY, version)})


def test_a_value_names_its_version_and_a_damaged_one_names_none() -> None:
    value = value_of(KEY, 77)
    assert version_in(KEY, value) == 77
    assert version_in(b"other", value) is None
    assert version_in(KEY, value[:-1]) is None
    assert version_in(KEY, value + b"x") is None
    assert version_in(KEY, b"") is None


@pytest.mark.parametrize("found", [2, 3, 4])
def test_the_confirmed_version_and_every_later_one_are_fine(found: int) -> None:
    judge = judge_with((1, True), (2, True), (3, True), (4, True), confirmed=2)
    assert verdict(judge, found) == []


def test_a_version_below_the_confirmed_one_is_reported() -> None:
    (complaint,) = verdict(judge_with((1, True), (2, True), confirmed=2), 1)
    assert "went back to version 1" in complaint


def test_a_confirmed_key_that_is_gone_is_reported() -> None:
    (complaint,) = verdict(judge_with((1, True), confirmed=1), None)
    assert "is gone" in complaint


def test_a_key_that_was_never_confirmed_may_be_gone() -> None:
    assert verdict(judge_with((1, True), (2, True)), None) == []


def test_a_confirmed_deletion_that_comes_back_is_reported() -> None:
    (complaint,) = verdict(judge_with((1, True), (2, False), confirmed=2), 1)
    assert "went back" in complaint


def test_a_deletion_after_the_confirmed_version_may_have_been_lost_or_not() -> None:
    assert verdict(judge_with((1, True), (2, False), confirmed=1), 1) == []
    assert verdict(judge_with((1, True), (2, False), confirmed=1), None) == []


def test_a_value_that_was_never_written_is_reported() -> None:
    judge = judge_with((1, True))
    (complaint,) = judge.restarted({KEY: b"garbage"})
    assert "never written" in complaint
    (complaint,) = verdict(judge_with((1, True)), 9)
    assert "never sent" in complaint


def test_what_a_restart_showed_must_not_be_lost_by_the_next_crash() -> None:
    judge = judge_with((1, True), (2, True), confirmed=1)
    assert verdict(judge, 2) == []
    (complaint,) = verdict(judge, 1)
    assert "lost or deleted before" in complaint


def test_a_version_lost_in_one_crash_does_not_return_after_the_next() -> None:
    judge = judge_with((1, True), (2, True), confirmed=1)
    assert verdict(judge, 1) == []
    judge.sent(KEY, 3, present=True)
    (complaint,) = verdict(judge, 2)
    assert "lost or deleted before" in complaint


def test_after_a_clean_stop_only_the_last_version_will_do() -> None:
    judge = judge_with((1, True), (2, True))
    assert judge.unconfirmed() == 1
    judge.confirm_everything()
    assert judge.unconfirmed() == 0
    (complaint,) = verdict(judge, 1)
    assert "went back" in complaint
