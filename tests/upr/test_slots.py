"""Permits to read the disk: so many, no more, and nobody is left to wait beside a free one."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from uprmc.engine.reading import ViewGate
from uprmc.upr.hub import Slots


class Reader:
    """Somebody who may want a permit.

    Attributes:
        wants: whether it tries when it is called.
        calls: how often it was called.
    """

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.has = False
        self.wants = True
        self.calls = 0

    def ask(self) -> None:
        self.has = self.slots.take(self.retry)

    def retry(self) -> bool:
        self.calls += 1
        if self.wants and not self.has:
            self.ask()
        return self.wants

    def free(self) -> None:
        self.has = False
        self.slots.free(self.retry)


def readers_of(slots: Slots, count: int) -> list[Reader]:
    """Return readers that have all asked."""
    readers = [Reader(slots) for _ in range(count)]
    for reader in readers:
        reader.ask()
    return readers


def with_permits(readers: list[Reader]) -> list[int]:
    return [number for number, reader in enumerate(readers) if reader.has]


def test_there_are_only_so_many() -> None:
    slots = Slots(2, ViewGate())
    readers = readers_of(slots, 4)
    assert (slots.used, with_permits(readers)) == (2, [0, 1])
    assert all(reader.calls == 0 for reader in readers)


def test_who_waited_longest_gets_the_permit_and_who_gave_it_back_comes_last() -> None:
    slots = Slots(1, ViewGate())
    readers = readers_of(slots, 3)
    turns = []
    for _ in range(7):
        (number,) = with_permits(readers)
        turns.append(number)
        readers[number].free()
    assert turns == [0, 1, 2, 0, 1, 2, 0]


def test_everybody_who_waits_is_called_once_for_each_permit_given_back() -> None:
    slots = Slots(1, ViewGate())
    first, second, third = readers_of(slots, 3)
    first.free()
    assert (first.calls, second.calls, third.calls) == (0, 1, 1)
    assert (second.has, third.has) == (True, False)


def test_whoever_does_not_want_it_any_more_does_not_keep_it_from_the_others() -> None:
    slots = Slots(1, ViewGate())
    first, second, third = readers_of(slots, 3)
    second.wants = False
    first.free()
    assert third.has
    third.free()
    assert first.has
    assert second.calls == 1, "it did not ask again"


def test_who_gave_it_back_is_called_if_nobody_else_has_a_use_for_it() -> None:
    slots = Slots(1, ViewGate())
    first, second = readers_of(slots, 2)
    second.wants = False
    first.free()
    assert (first.calls, first.has) == (1, True)
    first.wants = False
    first.free()
    assert (first.calls, slots.used) == (2, 0)


def test_whoever_is_forgotten_is_not_called() -> None:
    slots = Slots(1, ViewGate())
    first, second, third = readers_of(slots, 3)
    slots.forget(second.retry)
    slots.forget(second.retry)
    first.free()
    assert (second.calls, third.has) == (0, True)


def test_a_permit_that_nobody_wants_stays_free() -> None:
    slots = Slots(1, ViewGate())
    reader = Reader(slots)
    for _ in range(3):
        reader.wants = True
        reader.ask()
        assert reader.has
        reader.wants = False
        reader.free()
    assert slots.used == 0


class SlotsMachine(RuleBasedStateMachine):
    """Any number of readers that come and go, and take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(3, ViewGate())
        self.readers: list[Reader] = []

    @precondition(lambda self: len(self.readers) < 12)
    @rule()
    def come(self) -> None:
        self.readers.append(Reader(self.slots))
        self.readers[-1].ask()

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), stays=st.booleans())
    def have_done(self, data: st.DataObject, stays: bool) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        reader.wants = stays
        if reader.has:
            reader.free()
        if not stays:
            self.readers.remove(reader)
            self.slots.forget(reader.retry)

    @invariant()
    def nobody_waits_beside_a_free_permit(self) -> None:
        assert self.slots.used == len(with_permits(self.readers))
        assert self.slots.used == min(3, len(self.readers))


TestSlotsMachine = SlotsMachine.TestCase
TestSlotsMachine.settings = settings(max_examples=60, stateful_step_count=40)
