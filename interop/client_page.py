"""The Python blocks of ``docs/client.md``, as programs that can be run.

A block that imports `UprClient` or `changes` is a program. The others are what such a program goes
on with: `PRELUDE` is put before them. Addresses of the page's nodes are replaced by real ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from interop.server_process import Address

PAGE = Path(__file__).parent.parent / "docs" / "client.md"
TEXT = PAGE.read_text(encoding="utf-8")

NODES = ("127.0.0.1:11210", "127.0.0.1:11310")

PRELUDE = f"""\
from uprmc.client import Handler, SqliteState, UprClient
handler = Handler()
client = UprClient("{NODES[0]}", handler)
"""


class Block(NamedTuple):
    """One fenced block; `line` is where it begins."""

    kind: str
    line: int
    text: str

    @property
    def endless(self) -> bool:
        """Whether it runs until it is interrupted."""
        return "client.run()" in self.text or "in changes(" in self.text

    def program(self, nodes: Sequence[Address]) -> str:
        """The whole program, for these nodes."""
        whole = re.search(r"^(from uprmc|import)", self.text, re.M) is not None
        text = self.text if whole else PRELUDE + self.text
        for named, real in zip(NODES, nodes, strict=True):
            text = text.replace(named, str(real))
        return text


def blocks() -> list[Block]:
    """All of the page's fenced blocks."""
    return [
        Block(found[1], TEXT.count("\n", 0, found.start()) + 1, found[2])
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", TEXT, re.M | re.S)
    ]


def program_with(words: str) -> Block:
    """The one block that contains these words."""
    (found,) = [each for each in blocks() if each.kind == "python" and words in each.text]
    return found
