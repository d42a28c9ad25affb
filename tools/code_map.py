"""Two pages about the code: what each module is for, and which package imports which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.markdown import page, table

ROOT = Path(__file__).parent.parent
_PACKAGE = ROOT / "uprmc"


def modules() -> dict[str, list[tuple[str, str]]]:
    """Return (path, first sentence of its docstring) of every module, by package."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        summary = (ast.get_docstring(_tree(path)) or "").partition("\n\n")[0]
        package = path.parent.relative_to(ROOT).as_posix()
        if summary or path.name != "__init__.py":
            found.setdefault(package, []).append((path.name, summary))
    return found


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


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
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            parts = tuple(node.module.split("."))
            if parts == ("uprmc",):
                yield from (("uprmc", alias.name) for alias in node.names)
            elif parts[0] == "uprmc":
                yield parts
        elif isinstance(node, ast.Import):
            yield from (tuple(a.name.split(".")) for a in node.names if a.name.startswith("uprmc."))


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
