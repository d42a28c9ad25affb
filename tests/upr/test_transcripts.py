"""What becomes of an operator's commands about replication, as `transcripts/*.txt`.

A case is ``== its sentence`` and commands, on a line each or between semicolons:

==================================  ============================================================
follow A 0,1 demote, stop all       commands of `Replication`; what they promise is in `promised`
takeover A 0,1, failover 0
refused KIND words: COMMAND         it raises that error with these words
opens, connects, failed why         what becomes of the newest call; ``use 0`` looks at another
begins 0 1, ends 0 why, taken 0     what its link says; ``ends_for_good`` allows no second try
closes why
state 0 dead, remove 0, write 1     something else changes a vBucket here
flush, fail_flush, wait 2, redial   the disk works or fails; time passes
close, restart                      the process ends; another one goes on
check EXPRESSION                    a question to `asked`, `left`, `taking`, `states`, `followed`,
                                    `document`, `standing`, `promised`, `source`, `world` ...
call, let NAME, put THING FIELD     a call; a value is noted under a name; a field is set
==================================  ============================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.upr.replication_rig import A, B, FakeLink, World
from uprmc import errors
from uprmc.model import VBucketState
from uprmc.protocol.replication import Outcome
from uprmc.upr import replication

PLACES = {"A": A, "B": B, "C": "c:1"}


def numbers_in(text: str) -> list[int] | None:
    return None if text == "all" else [int(each) for each in text.split(",")]


class Play:
    """One case."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
        self.world = World(monkeypatch, **settings)
        self.links: dict[int, FakeLink] = {}
        self.call = 0
        self.promised: list[Any] = []
        self.noted: dict[str, Any] = {}

    def do(self, command: str) -> None:
        name, _, rest = command.partition(" ")
        if name == "check":
            assert self.value(rest), rest
        elif name == "call":
            self.value(rest)
        elif name == "let":
            noted, _, rest = rest.partition(" ")
            self.noted[noted] = self.value(rest)
        elif name == "put":
            thing, field, rest = rest.split()
            setattr(self.value(thing), field, self.value(rest))
        elif name == "refused":
            kind, _, rest = rest.partition(" ")
            words, _, inner = rest.rpartition(": ")
            with pytest.raises(getattr(errors, kind)) as refusal:
                self.do(inner)
            assert words in str(refusal.value)
            assert "\n" not in str(refusal.value)
        else:
            getattr(self, f"do_{name}")(*rest.split())

    def value(self, expression: str) -> Any:
        return eval(expression, {"__builtins__": {}, **self.names(), **self.noted})  # our own files

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


def cases() -> Iterator[Any]:
    """Yield settings and commands of each case; its sentence is its name."""
    for path in sorted((Path(__file__).parent / "transcripts").glob("*.txt")):
        for case in path.read_text().split("\n== ")[1:]:
            title, _, body = case.partition("\n")
            lines = [line for line in body.splitlines() if line and not line.startswith("#")]
            settings = {}
            if lines[0].startswith("settings "):
                for each in lines.pop(0).split()[1:]:
                    name, _, text = each.partition("=")
                    settings[name] = json.loads(text)
            commands = [one.strip() for line in lines for one in line.split(";") if one.strip()]
            marks = [pytest.mark.acceptance(row) for row in ("D50", "D51")]
            yield pytest.param(settings, commands, id=f"{path.stem}: {title}", marks=marks)


@pytest.mark.parametrize(("settings", "commands"), list(cases()))
def test_a_node_does_what_the_transcript_says(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], commands: list[str]
) -> None:
    play = Play(monkeypatch, settings)
    for command in commands:
        play.do(command)
