"""Run clients of 2014, which are written in Python 2, as they come from the package index.

`load` imports an installed package without changing a file of it: what it says is read as Python 2.
Two things make up the difference in these clients. Some words are spelt differently, `_SPELLING`
has them. And text and bytes were one type: here their strings stay text, one character for each
byte, and `text_struct` and `text_socket` stand in for the two modules through which bytes come in
and go out. No statement of theirs is left out or altered.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import socket
import struct
import sys
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

_SPELLING = (
    (r"^(\s*)except ([\w., ()]+), (\w+):", r"\1except \2 as \3:"),
    (r"^import Queue$", "import queue as Queue"),
    (r"^import exceptions$", "import builtins as exceptions"),
    (r"^import struct$", "from interop.python2 import text_struct as struct"),
    (r"^import socket$", "from interop.python2 import text_socket as socket"),
    (r"^(from|import) memcacheConstants", r"\1 mc_bin_client.memcacheConstants"),
    (r"^import mc_bin_client\.(\w+)", r"from mc_bin_client import \1"),
    (r"\biteritems\b", "items"),
    (r"\bstring\.letters\b", "string.ascii_letters"),
)


class text_struct:  # noqa: N801 - it stands for a module
    """Module ``struct``, with text in the place of bytes."""

    error = struct.error
    calcsize = staticmethod(struct.calcsize)

    @staticmethod
    def pack(layout: str, *values: Any) -> str:
        encoded = (value.encode("latin-1") if isinstance(value, str) else value for value in values)
        return struct.pack(layout, *encoded).decode("latin-1")

    @staticmethod
    def unpack(layout: str, text: str) -> tuple[Any, ...]:
        return struct.unpack(layout, text.encode("latin-1"))


class TextSocket(socket.socket):
    """A socket that takes and gives text."""

    def send(self, text: str) -> int:  # type: ignore[override]
        super().sendall(text.encode("latin-1"))
        return len(text)

    def recv(self, size: int) -> str:  # type: ignore[override]
        return super().recv(size).decode("latin-1")


#: Module ``socket``, with text in the place of bytes.
text_socket = SimpleNamespace(**{**vars(socket), "socket": TextSocket})


class _Loader(importlib.machinery.SourceFileLoader):
    """Reads a module as Python 2; leaves nothing on disk."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path).decode()
        for old, new in _SPELLING:
            source = re.sub(old, new, source, flags=re.MULTILINE)
        return compile(source, path, "exec", dont_inherit=True)


def load(package: str, *modules: str) -> ModuleType | None:
    """Import a package and these modules of it; ``None`` if it is not installed.

    The modules are given in the order in which they need one another. A package may be a single
    file.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    if found.submodule_search_locations is None:
        return _run(_make(package, found.origin, None))
    directory = found.submodule_search_locations[0]
    made = _make(package, found.origin, [directory])
    for name in modules:
        setattr(made, name, _run(_make(f"{package}.{name}", f"{directory}/{name}.py", None)))
    return _run(made)


def _make(name: str, path: str, directories: list[str] | None) -> ModuleType:
    loader = _Loader(name, path)
    spec = importlib.util.spec_from_file_location(
        name, path, loader=loader, submodule_search_locations=directories
    )
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    return module


def _run(module: ModuleType) -> ModuleType:
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    module.__spec__.loader.exec_module(module)
    return module
