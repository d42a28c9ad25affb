"""Three pages about the code: what each module is for, who imports what, sizes and names."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tools.markdown import page, table

ROOT = Path(__file__).parent.parent
_PACKAGE = ROOT / "uprmc"


class Seen(NamedTuple):
    """What the pages need of a module; its tree is large and is not kept."""

    summary: str  # first paragraph of its docstring
    imported: tuple[tuple[str, tuple[str, ...]], ...]  # modules, with the names that are from them
    classes: tuple[str, ...]  # public ones at its top level


@cache
def _seen(path: Path) -> Seen:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.append((node.module, tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.Import):
            imported += ((alias.name, ()) for alias in node.names)
    classes = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return Seen(
        (ast.get_docstring(tree) or "").partition("\n\n")[0],
        tuple(imported),
        tuple(name for name in classes if not name.startswith("_")),
    )


def modules() -> dict[str, list[tuple[str, str]]]:
    """Return (path, first sentence of its docstring) of every module, by package."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        summary = _seen(path).summary
        package = path.parent.relative_to(ROOT).as_posix()
        if summary or path.name != "__init__.py":
            found.setdefault(package, []).append((path.name, summary))
    return found


def modules_page() -> str:
    """List every module by package."""
    parts = ["# File map", "Each module has one idea, which its docstring begins with."]
    for package, files in modules().items():
        rows = ((f"`{name}`", summary) for name, summary in files)
        parts += [f"## {package}", table(("module", "what it is for"), rows)]
    return page(*parts)


# --- imports ------------------------------------------------------------------------------------


def _room(parts: tuple[str, ...]) -> str:
    """Return the package below ``uprmc`` that a module belongs to; single modules are one room."""
    inside = len(parts) > 1 and (_PACKAGE / parts[1]).is_dir()
    return parts[1] if inside else "vocabulary"


def _imported(path: Path) -> Iterator[tuple[str, ...]]:
    for module, names in _seen(path).imported:
        parts = tuple(module.split("."))
        if parts == ("uprmc",):
            yield from (("uprmc", name) for name in names)
        elif parts[0] == "uprmc":
            yield parts


def imports() -> dict[str, set[str]]:
    """Return which packages each package imports, for types or at run time."""
    found: dict[str, set[str]] = {}
    for path in _PACKAGE.rglob("*.py"):
        room = _room(path.relative_to(ROOT).with_suffix("").parts)
        if path.parent == _PACKAGE and path.stem == "__main__":
            continue
        below = found.setdefault(room, set())
        below.update(each for parts in _imported(path) if (each := _room(parts)) != room)
    return found


def below(graph: dict[str, set[str]], room: str) -> set[str]:
    """Return everything that a package reaches."""
    reached: set[str] = set()
    waiting = list(graph[room])
    while waiting:
        each = waiting.pop()
        if each not in reached:
            reached.add(each)
            waiting += graph[each]
    return reached


def _direct(graph: dict[str, set[str]], room: str) -> list[str]:
    """Return what a package imports, but for what one of those reaches as well."""
    return sorted(
        each
        for each in graph[room]
        if not any(each in below(graph, other) for other in graph[room])
    )


def imports_page() -> str:
    """Draw which package imports which."""
    graph = imports()
    ordered = sorted(graph, key=lambda room: (-len(below(graph, room)), room))
    arrows = [f"  {room} --> {each}" for room in ordered for each in _direct(graph, room)]
    rows = (
        (f"`{room}`", ", ".join(f"`{each}`" for each in sorted(graph[room]))) for room in ordered
    )
    return page(
        "# Imports",
        "Packages import only what is below them. The drawing leaves out arrows that follow from "
        "others; `vocabulary` stands for the modules directly in `uprmc/`.",
        "\n".join(["```mermaid", "graph TD", *arrows, "```"]),
        table(("package", "imports"), rows),
    )


# --- size and names -----------------------------------------------------------------------------


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def class_names() -> dict[str, list[str]]:
    """Return the modules that define a public class of each name, at their top level."""
    found: dict[str, list[str]] = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        for name in _seen(path).classes:
            found.setdefault(name, []).append(_module(path))
    return found


def importers() -> dict[str, set[str]]:
    """Return which modules import each module, for types or at run time.

    A name that is imported from a package counts for the module of that name, if there is one.
    """
    paths = {_module(path): path for path in _PACKAGE.rglob("*.py")}
    found: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for module, aliases in _seen(path).imported:
            names = {f"{module}.{alias}" for alias in aliases}
            for each in (names & paths.keys()) or ({module} & paths.keys()):
                found[each].add(name)
    return found


def _lonely(importers_of: dict[str, set[str]]) -> dict[str, str]:
    """Return the modules that only one other module imports, with that one."""
    packages = {_module(path.parent / "__init__.py") for path in _PACKAGE.rglob("__init__.py")}
    return {
        name: next(iter(users))
        for name, users in importers_of.items()
        if len(users) == 1 and name not in packages
    }


def size_page(journeys: str = "") -> str:
    """Count files and lines by package, names with several meanings, importers of each module.

    Args:
        journeys: how far data travels, as a Markdown table; empty if it was not measured.
    """
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    lonely = _lonely(importers())
    alone = Counter(_room(tuple(name.split("."))) for name in lonely)
    for path in _PACKAGE.rglob("*.py"):
        room = _room(path.relative_to(ROOT).with_suffix("").parts)
        files[room] += 1
        lines[room] += len(path.read_text(encoding="utf-8").splitlines())
    rooms = sorted(lines, key=lambda room: (-lines[room], room))
    sizes = [
        (f"`{room}`", f"{files[room]}", f"{lines[room]:,}", f"{alone[room]}") for room in rooms
    ]
    sizes.append(("all", f"{files.total()}", f"{lines.total():,}", f"{alone.total()}"))
    double = {name: where for name, where in class_names().items() if len(where) > 1}
    parts = [
        "# Size and names",
        (
            "How large the packages are, and what makes them hard to read: modules that only one "
            "other module imports, and names of public classes that mean several things."
        ),
        table(("package", "files", "lines", "imported by one module only"), sizes),
    ]
    if journeys:
        parts += ["## How far data travels", "Measured by `python -m tools.journeys`.", journeys]
    parts += [
        "## Class names with several meanings",
        table(
            ("name", "modules"),
            [(name, ", ".join(f"`{each}`" for each in where)) for name, where in double.items()],
        ),
        "## Modules that one other module imports",
        table(
            ("module", "imported by"),
            [(f"`{name}`", f"`{user}`") for name, user in sorted(lonely.items())],
        ),
    ]
    return page(*parts)
