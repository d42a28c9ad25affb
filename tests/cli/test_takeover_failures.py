"""``uprmc takeover`` when one of the two nodes does not help."""

from __future__ import annotations

from tests.cli.fake_node import CLOSE, FakeNode
from tests.cli.here import Here
from tests.cli.test_replication_verbs import Start, _here, _start, outcomes, put, states

__all__ = ["_here", "_start"]


def test_a_target_that_is_slow_is_not_said_to_have_changed_nothing(
    start: Start, here: Here
) -> None:
    a = start("a")
    with FakeNode(on_d8=lambda node, asked: CLOSE) as fake:
        ended = here("takeover", "--node", a.upr, "--to", fake.place, "--vbuckets", "0-1")
    assert ended.code == 1
    assert "nothing has changed" not in ended.line()
    assert f"they are active at {a.upr} now; if {fake.place} is only slow" in ended.line()
    assert set(states(here, a).values()) == {"active"}


def test_what_was_taken_is_told_though_the_swap_fails(start: Start, here: Here) -> None:
    a = start("a")
    put(a, 0, b"k")  # so that it is not given up without --demote
    with FakeNode(on_d8=lambda node, asked: node.reply(asked, value=outcomes((0, 0)))) as fake:
        place = fake.place
        ended = here("takeover", "--node", a.upr, "--to", place, "--vbuckets", "0", "--swap")
    assert ended.code == 1
    assert ended.out == f"vBucket 0: active at {place}, dead at {a.upr}\n"
    (line,) = ended.err.splitlines()
    assert line.startswith(f"uprmc: {a.upr} does not follow {place}: ")
    assert "active here, with changes" in line
