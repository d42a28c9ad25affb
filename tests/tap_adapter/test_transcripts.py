"""What a TAP client hears, as transcripts: `transcripts/*.tap`, one case for each sentence.

Their form is that of `tests.transcripts`. Commands:

====================================  ==========================================================
node 0 1 5:replica                    vBuckets, active unless it is said otherwise
settings backoff_s=1                  of the adapter
set a b=2, set vb1 a, delete, expire  changes at the source, in vBucket 0 unless it is said
purge 0 2, branch 0 2 B0, state ...   what else happens there
connect ACK DUMP as older name=x      a client, its line's name, options of `Rig.connect`
use older                             go on with that line
run: a=v!, opaque 8 vb0!              what comes when all is acknowledged at once
said: ...                             what comes without any answer
ack, ack #5, refuse a=v with 0x07     answer all, or one message by its number or its beginning
tick 1, leave, restart                time passes; the client hangs up; a new process
filter 0 1, reset, disconnect why     commands about the client
deliver 2, end 0, die 0, break        of the upstream; ``refuse_stream 0 0x86`` sets its answer
keeper patient, works, fails, finish  of positions
====================================  ==========================================================

Between ``run`` or ``said`` and the colon may stand: ``plain`` (without the "!" of who is asked),
``items`` (documents only), ``sorted``, and ``begins``, ``ends``, ``has`` or ``lacks``.
Expressions name `line`, `node`, `rig`, `known`, `cursors`, `producer`, `upstream`, `statistics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tap_adapter import tap_peer
from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import FOR_EVER, Line, Rig, brief
from tests.transcripts import Script, cases
from uprmc.model import VBucketState
from uprmc.protocol.opcodes import EndReason
from uprmc.protocol.tap import TapMessage

WORDS = {"ever": FOR_EVER, "yes": True, "no": False}


def value(text: str) -> Any:
    if text in WORDS:
        return WORDS[text]
    return int(text, 0) if text[:1].isdigit() else text


class Play(Script):
    """One case."""

    def __init__(self) -> None:
        super().__init__()
        self.node = FakeNode(0)
        self.settings: dict[str, Any] = {}
        self.lines: dict[str, Line] = {}
        self.budget = 1_000_000
        self._rig: Rig | None = None
        self._line: Line | None = None

    @property
    def rig(self) -> Rig:
        self._rig = self._rig or Rig(self.node, **self.settings)
        return self._rig

    @property
    def line(self) -> Line:
        assert self._line is not None, "nobody has connected"
        return self._line

    def do(self, command: str) -> None:
        head, colon, rest = command.partition(":")
        name, *words = (head if command.startswith(("run", "said")) else command).split()
        if name in ("run", "said"):
            expected = [each.strip() for each in rest.split(",") if each.strip()]
            self.hear(name, words, expected if colon else None)
        else:
            super().do(command)

    def hear(self, name: str, words: list[str], expected: list[str] | None) -> None:
        heard = self.line.run(self.budget) if name == "run" else self.line.said(self.budget)
        if expected is None:
            return
        if "items" in words:
            heard = [each for each in heard if "=" in each]
        if "plain" in words:
            heard = [each.rstrip("!") for each in heard]
        if "sorted" in words:
            heard, expected = sorted(heard), sorted(expected)
        if "has" in words:
            assert set(expected) <= set(heard), heard
        elif "lacks" in words:
            assert not set(expected) & set(heard), heard
        elif "begins" in words:
            assert heard[: len(expected)] == expected
        elif "ends" in words:
            assert heard[-len(expected) :] == expected
        else:
            assert heard == expected

    def names(self) -> dict[str, Any]:
        names: dict[str, Any] = {"node": self.node, "rig": self.rig, "keeper": self.rig.keeper}
        names |= self.lines
        if self._line is not None:
            line, producer = self.line, self.line.producer
            names |= {"line": line, "producer": producer, "upstream": line.upstream}
            names |= {"known": line.known, "cursors": line.known.cursors}
            names |= {"statistics": producer.statistics()}
        return names

    # --- the source ---------------------------------------------------------------------------

    def do_node(self, *numbers: str) -> None:
        self.node = FakeNode()
        for each in numbers:
            number, _, state = each.partition(":")
            of_state = VBucketState[state.upper() or "ACTIVE"]
            self.node.vbuckets |= FakeNode(int(number), state=of_state).vbuckets

    def do_settings(self, *words: str) -> None:
        self.settings |= {name: value(text) for name, text in (each.split("=") for each in words)}

    def _documents(self, words: tuple[str, ...]) -> Iterator[tuple[int, bytes, bytes]]:
        number = 0
        for each in words:
            if each.startswith("vb"):
                number = int(each[2:])
                continue
            key, _, text = each.partition("=")
            first, dots, last = key.partition("..")
            for one in range(int(first[1:]), int(last) + 1) if dots else ("",):
                yield number, (f"{first[0]}{one}" if dots else key).encode(), (text or "v").encode()

    def do_set(self, *words: str) -> None:
        for number, key, text in self._documents(words):
            self.node[number].set(key, text)

    def do_delete(self, *words: str) -> None:
        for number, key, _ in self._documents(words):
            self.node[number].delete(key)

    def do_expire(self, *words: str) -> None:
        for number, key, _ in self._documents(words):
            self.node[number].delete(key, expired=True)

    def do_purge(self, number: str, seqno: str) -> None:
        self.node[int(number)].purge(int(seqno))

    def do_branch(self, number: str, seqno: str, uuid: str) -> None:
        self.node[int(number)].fail_over(int(seqno), uuid=int(uuid, 16))

    def do_state(self, number: str, state: str) -> None:
        self.node[int(number)].state = VBucketState[state.upper()]

    # --- the client ---------------------------------------------------------------------------

    def do_connect(self, *words: str) -> None:
        flags, options, name = 0, {}, ""
        rest = iter(words)
        for each in rest:
            option, sign, text = each.partition("=")
            if each == "as":
                name = next(rest)
            elif option == "vbuckets":
                options[option] = tuple(int(one) for one in text.split(","))
            elif option == "last_closed":
                number, _, checkpoint = text.partition(":")
                options[option] = {int(number): int(checkpoint)}
            elif option == "name":
                options[option] = text.encode()
            elif sign:
                options[option] = value(text)
            elif each != "0":
                flags |= getattr(tap_peer, each)
        self._line = self.lines[name] = self.rig.connect(flags, **options)

    def do_use(self, name: str) -> None:
        self._line = self.lines[name]

    def do_budget(self, size: str) -> None:
        self.budget = int(size)

    def _found(self, words: tuple[str, ...]) -> TapMessage:
        text = " ".join(words)
        for message in reversed(self.line.heard):
            if text == f"#{message.opaque}" or brief(message).startswith(text):
                return message
        raise AssertionError(f"nothing was heard that begins with {text}")

    def do_ack(self, *words: str) -> None:
        if words:
            self.line.answer(self._found(words))
        else:
            self.line.ack_all()

    def do_refuse(self, *words: str) -> None:
        what, _, status = " ".join(words).partition(" with ")
        message = self._found(tuple(what.split()))
        self.line.refuse(message, int(status, 0) if status else tap_peer.TEMPORARY_FAILURE)

    def do_answer(self, sequence: str, status: str) -> None:
        self.line.producer.answered(0x41, int(sequence), int(status, 0))

    def do_tick(self, seconds: str) -> None:
        self.line.tick(float(seconds))

    def do_leave(self) -> None:
        self.line.leave()

    def do_close(self) -> None:
        self.line.producer.close()

    def do_restart(self) -> None:
        self.rig.restart()

    # --- others -------------------------------------------------------------------------------

    def do_filter(self, *numbers: str) -> None:
        self.line.producer.change_filter({int(each): 0 for each in numbers})

    def do_reset(self) -> None:
        self.line.producer.reset()

    def do_disconnect(self, why: str) -> None:
        self.line.producer.disconnect(why)

    def do_deliver(self, count: str = "1000000") -> None:
        self.line.upstream.deliver(int(count))

    def do_end(self, number: str) -> None:
        self.line.upstream.end(int(number), EndReason.STATE_CHANGED)

    def do_die(self, number: str) -> None:
        self.line.upstream.die(int(number))

    def do_break(self) -> None:
        self.line.upstream.break_off()

    def do_refuse_stream(self, number: str, status: str = "") -> None:
        refusals = self.line.upstream.refusals
        refusals.pop(int(number), None)
        if status:
            refusals[int(number)] = int(status, 0)

    def do_fetch(self, works: str) -> None:
        self.line.upstream.can_fetch = value(works)

    def do_keeper(self, what: str) -> None:
        keeper = self.rig.keeper
        if what in ("finish", "finish_all"):
            getattr(keeper, what)()
        elif what == "patient":
            keeper.patient = True
        else:
            keeper.works = what == "works"


@pytest.mark.acceptance("D56")
@pytest.mark.parametrize("commands", cases(Path(__file__).parent / "transcripts", "*.tap"))
def test_a_client_hears_what_the_transcript_says(commands: list[str]) -> None:
    play = Play()
    for command in commands:
        play.do(command)
