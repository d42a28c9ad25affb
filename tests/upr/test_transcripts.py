"""What becomes of an operator's commands about replication, as `transcripts/*.txt`.

Their form is that of `tests.transcripts`. Commands:

==================================  ============================================================
settings upr__sources=2             of the node
follow A 0,1 demote, stop all       commands of `Replication`; what they promise is in `promised`
takeover A 0,1, failover 0
opens, connects, failed why         what becomes of the newest call; ``use 0`` looks at another
begins 0 1, ends 0 why, taken 0     what its link says; ``ends_for_good`` allows no second try
closes why
state 0 dead, remove 0, write 1     something else changes a vBucket here
flush, fail_flush, wait 2, redial   the disk works or fails; time passes
close, restart                      the process ends; another one goes on
==================================  ============================================================

Expressions name `asked`, `left`, `taking`, `states`, `followed`, `document`, `standing`,
`promised`, `source`, `world`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.transcripts import Script, cases
from tests.upr.replication_rig import A, B, FakeLink, World
from uprmc.model import VBucketState
from uprmc.protocol.replication import Outcome
from uprmc.upr import replication

PLACES = {"A": A, "B": B, "C": "c:1"}


def numbers_in(text: str) -> list[int] | None:
    return None if text == "all" else [int(each) for each in text.split(",")]


class Play(Script):
    """One case."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._new_world = lambda **settings: World(monkeypatch, **settings)
        self.world: World = self._new_world()
        self.links: dict[int, FakeLink] = {}
        self.call = 0
        self.promised: list[Any] = []

    def do_settings(self, *words: str) -> None:
        pairs = (each.split("=") for each in words)
        self.world = self._new_world(**{name: json.loads(text) for name, text in pairs})

    def names(self) -> dict[str, Any]:
        world, link = self.world, self.links.get(self.call)
        stored = world.rig.store.local(replication.FOLLOWED)
        sources, vbuckets = world.replication.sources, world.bucket.vbuckets
        names = {each.name: each for each in (*Outcome, *VBucketState)} | {
            "A": A,
            "B": B,
            "len": len,
            "set": set,
        }
        names |= {"world": world, "calls": world.calls, "promised": self.promised, "link": link}
        names |= {"states": "".join(each.name[0] if each else "-" for each in world.states())}
        names |= {"followed": world.followed(), "document": stored and json.loads(stored)}
        names |= {"source": sources.get(A), "vbuckets": vbuckets}
        of = [world.replication.source_of(number) for number in range(4)]
        names["standing"] = [one and one.followed[n].standing.value for n, one in enumerate(of)]
        if link is not None:
            names |= {"asked": link.asked, "left": link.left, "taking": link.taking}
        return names

    # --- commands -----------------------------------------------------------------------------

    def do_follow(self, place: str, numbers: str, demote: str = "") -> None:
        self.promised = self.world.follow(
            PLACES.get(place, place), numbers_in(numbers), demote=bool(demote)
        )
        self.call = len(self.world.calls) - 1

    def do_stop(self, numbers: str) -> None:
        self.promised = self.world.stop(numbers_in(numbers))

    def do_takeover(self, place: str, numbers: str) -> None:
        self.promised = self.world.take_over(PLACES.get(place, place), numbers_in(numbers))
        self.call = len(self.world.calls) - 1

    def do_failover(self, numbers: str) -> None:
        self.promised = self.world.fail_over(*(numbers_in(numbers) or ()))

    # --- lines --------------------------------------------------------------------------------

    @property
    def link(self) -> FakeLink:
        return self.links[self.call]

    def do_use(self, call: str) -> None:
        self.call = int(call)

    def do_connects(self) -> None:
        self.links[self.call] = self.world.calls[self.call].connects()

    def do_opens(self) -> None:
        if self.call not in self.links:
            self.do_connects()
        self.link.opens()

    def do_failed(self, *why: str) -> None:
        self.world.calls[self.call].failed(" ".join(why))

    def do_begins(self, *numbers: str) -> None:
        self.link.begins(*map(int, numbers))

    def do_ends(self, number: str, *why: str) -> None:
        self.link.ends(int(number), " ".join(why))

    def do_ends_for_good(self, number: str, *why: str) -> None:
        self.link.ends(int(number), " ".join(why), retry=False)

    def do_taken(self, number: str) -> None:
        self.world.bucket.set_state(int(number), VBucketState.ACTIVE, takeover=True)
        if self.link.owner is not None:
            self.link.owner.taken(int(number))

    def do_closes(self, *why: str) -> None:
        self.link.closes(" ".join(why))

    # --- the node -----------------------------------------------------------------------------

    def do_state(self, number: str, state: str) -> None:
        self.world.bucket.set_state(int(number), VBucketState[state.upper()])

    def do_remove(self, number: str) -> None:
        self.do_state(number, "dead")
        self.world.bucket.remove(int(number), lambda _: None)

    def do_write(self, number: str) -> None:
        self.world.write(int(number))

    def do_flush(self) -> None:
        self.world.rig.flush()

    def do_fail_flush(self) -> None:
        self.world.rig.fail_flush()

    def do_wait(self, seconds: str) -> None:
        self.world.wait(float(seconds))

    def do_redial(self) -> None:
        self.world.redialled_after()
        self.call = len(self.world.calls) - 1

    def do_close(self) -> None:
        self.world.replication.close()

    def do_restart(self) -> None:
        self.world.restart()
        self.world.replication.resume()


@pytest.mark.acceptance("D50", "D51")
@pytest.mark.parametrize("commands", cases(Path(__file__).parent / "transcripts", "*.txt"))
def test_a_node_does_what_the_transcript_says(
    monkeypatch: pytest.MonkeyPatch, commands: list[str]
) -> None:
    play = Play(monkeypatch)
    for command in commands:
        play.do(command)
