"""``docs/spark.md`` as something that can be run: its blocks in their order, one after another.

Shell blocks are run by ``sh`` in a directory of the story's own, Python blocks in this process, all
in one namespace, as a reader would type them into one session. The page's addresses become those of
two real nodes. Names of files in Python blocks become whole paths: Spark would look for them where
its JVM was started, which is elsewhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.documents import section

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "spark.md"
TEXT = PAGE.read_text(encoding="utf-8")
REFERENCE = PAGE.with_name("spark-reference.md").read_text(encoding="utf-8")

NODES = ("127.0.0.1:11210", "127.0.0.1:11310")
_BLOCK_S = 120.0

#: Files and directories that Python blocks name.
_FILES = re.compile(
    r'"((?:mirror-|copy-)?checkpoint|changes|mirror\.db|backups|errors|report\.json)"'
)


class Block(NamedTuple):
    """One fenced block; `line` is where it begins."""

    kind: str
    line: int
    text: str


def blocks(heading: str = "") -> list[Block]:
    """The fenced blocks of a section, or of the whole page."""
    text = section(TEXT, heading) if heading else TEXT
    before = TEXT.index(text)
    return [
        Block(found[1], TEXT.count("\n", 0, before + found.start()) + 1, found[2])
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    ]


class Story:
    """A directory, two nodes and a namespace in which blocks of the page are run."""

    def __init__(self, directory: Path, nodes: Mapping[str, str]) -> None:
        self.directory = directory
        self.names: dict[str, Any] = {"__name__": "page"}
        self._nodes = nodes
        programs = directory / "bin"
        programs.mkdir()
        path = programs / "uprmc"
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m uprmc "$@"\n')
        path.chmod(0o755)
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("UPRMC_")}
        self._environment["PATH"] = f"{programs}:{os.environ['PATH']}"
        self._environment["PYTHONPATH"] = str(ROOT)

    def run(self, block: Block) -> str:
        """Run a block; gives what a shell block printed. Its exit code must be 0."""
        text = block.text
        for named, real in self._nodes.items():
            text = text.replace(named, real)
        return self._python(block, text) if block.kind == "python" else self._shell(text)

    def _python(self, block: Block, text: str) -> str:
        whole = _FILES.sub(lambda found: f'"{self.directory / found[1]}"', text)
        exec(compile("\n" * block.line + whole, str(PAGE), "exec"), self.names)
        return ""

    def _shell(self, text: str) -> str:
        done = subprocess.run(
            ["sh", "-euc", self._with_servers(text)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BLOCK_S,
            cwd=self.directory,
            env=self._environment,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}"
        return done.stdout

    def _with_servers(self, text: str) -> str:
        """Name the first node where a command relies on the default address."""
        return "\n".join(
            f"{line} --servers {self._nodes[NODES[0]]}"
            if re.match(r"uprmc (load|backup|restore|export) ", line)
            and "--servers" not in line
            and not line.endswith("\\")
            else line
            for line in text.splitlines()
        )
