"""Stories of several nodes: shell sessions with their output, which are run and compared.

A ``*.story`` file is read from top to bottom. A line that begins with ``$`` is a command, and the
lines below it, up to the next empty line, are what it prints. All other lines are prose. A line
``Proves: D50 P17`` names rows of the acceptance list. What a command may say is in `stage`.

In what a command prints, the address of a node is replaced by its name, each long number (a
vb_uuid, a CAS) by ``#1``, ``#2`` ... in the order of their first appearance, and blanks by one
blank. A command may contain such a number, too. An expected line may contain ``...``, which stands
for any text.

``$ until COMMAND`` repeats a command until it prints what is expected.

``python -m tests.scenarios.story FILE ...`` runs stories and writes into them what was printed.
Accept a difference only when you can explain it.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.scenarios.stage import Stage

LIMIT_S = 30.0
_ASK_AGAIN_S = 0.05

_LONG_NUMBER = re.compile(r"\b\d{12,}\b")
_LABEL = re.compile(r"#\d+\b")
_PROVES = re.compile(r"^Proves: (.+)$", re.MULTILINE)


@dataclass
class Step:
    """Prose, or a command and the lines that it has to print."""

    text: str
    expected: list[str] = field(default_factory=list)

    @property
    def is_command(self) -> bool:
        return self.text.startswith("$ ")


def parse(text: str) -> list[Step]:
    """Cut a story into steps; every line of it is in one of them."""
    steps: list[Step] = []
    for line in text.splitlines():
        if steps and steps[-1].is_command and line and not line.startswith("$ "):
            steps[-1].expected.append(line)
        else:
            steps.append(Step(line))
    return steps


def proves(text: str) -> list[str]:
    """Rows of the acceptance list that a story shows."""
    return [row for rows in _PROVES.findall(text) for row in rows.split()]


class Labels:
    """Long numbers of one story, by the order in which they appeared."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def apply(self, lines: Iterable[str]) -> list[str]:
        """Replace long numbers; those of output that is not accepted must be forgotten again."""

        def label(found: re.Match[str]) -> str:
            return self._known.setdefault(found[0], f"#{len(self._known) + 1}")

        return [_LONG_NUMBER.sub(label, " ".join(line.split())) for line in lines if line.strip()]

    def resolve(self, command: str) -> str:
        """Put the numbers in the place of their labels."""
        numbers = {label: number for number, label in self._known.items()}
        return _LABEL.sub(lambda found: numbers[found[0]], command)

    def mark(self) -> dict[str, str]:
        return dict(self._known)

    def forget(self, mark: dict[str, str]) -> None:
        self._known = mark


def same(expected: list[str], printed: list[str]) -> bool:
    """Whether a command printed what it had to."""
    return len(expected) == len(printed) and all(map(_fits, expected, printed))


def _fits(expected: str, printed: str) -> bool:
    pattern = ".*".join(map(re.escape, " ".join(expected.split()).split("...")))
    return re.fullmatch(pattern, printed) is not None


class Difference(AssertionError):
    """A command printed something else."""


def play(steps: list[Step], stage: Stage) -> Iterator[tuple[Step, list[str]]]:
    """Carry out the commands of a story; yields each with what it has printed."""
    labels = Labels()
    for step in steps:
        if step.is_command:
            yield step, _printed(step, stage, labels)


def _printed(step: Step, stage: Stage, labels: Labels) -> list[str]:
    command = labels.resolve(step.text.removeprefix("$ "))
    again = command.startswith("until ")
    deadline = time.monotonic() + LIMIT_S
    mark = labels.mark()
    while True:
        printed = labels.apply(stage.run(command.removeprefix("until ")))
        if not again or same(step.expected, printed) or time.monotonic() > deadline:
            return printed
        labels.forget(dict(mark))
        time.sleep(_ASK_AGAIN_S)


def check(path: Path, directory: Path) -> None:
    """Run a story.

    Raises:
        Difference: with the command, what was expected of it and what it printed.
    """
    with Stage(directory) as stage:
        for step, printed in play(parse(path.read_text()), stage):
            if not same(step.expected, printed):
                expected, found = "\n  ".join(step.expected), "\n  ".join(printed)
                raise Difference(
                    f"{path.name}: {step.text}\nexpected:\n  {expected}\nprinted:\n  {found}\n"
                    f"{stage.logs()}"
                )


def accept(path: Path) -> None:
    """Write what the commands print into a story."""
    steps = parse(path.read_text())
    with tempfile.TemporaryDirectory() as directory, Stage(Path(directory)) as stage:
        for step, printed in play(steps, stage):
            if not same(step.expected, printed):
                step.expected = printed
    lines = [line for step in steps for line in (step.text, *step.expected)]
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        accept(Path(each))
