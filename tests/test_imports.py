"""No module of `uprmc` imports itself in a circle, imports for the type checker included.

Inside of a package, though, modules may name each other's types. import-linter holds which package
may import which, and overlooks what only the type checker reads.
"""

from __future__ import annotations

import ast
from pathlib import Path

import uprmc

_ROOT = Path(uprmc.__file__).parent


def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package's is that of its `__init__`."""
    found = {}
    for path in sorted(_ROOT.rglob("*.py")):
        parts = ("uprmc", *path.relative_to(_ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that one imports anywhere in its text.

    What it imports from its own package for the type checker only is left out.
    """
    own = f"uprmc.{path.relative_to(_ROOT).parts[0]}."
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [
        each for each in ast.walk(tree) if isinstance(each, ast.If | ast.Import | ast.ImportFrom)
    ]
    for_types = {
        inner
        for check in nodes
        if isinstance(check, ast.If)
        and isinstance(check.test, ast.Name)
        and check.test.id == "TYPE_CHECKING"
        for inner in ast.walk(check)
    }
    found: set[str] = set()
    for node in nodes:
        names: set[str] = set()
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            several = {f"{node.module}.{alias.name}" for alias in node.names}
            names = {each if each in known else node.module for each in several}
        found |= {each for each in names if node not in for_types or not each.startswith(own)}
    return found & known.keys()


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules of which each reaches each other, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
            if other in path:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            at = path.index(module)
            circle = set(path[at:])
            del path[at:]
            if len(circle) > 1 or module in graph[module]:
                found.append(circle)

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return found


def test_no_module_imports_itself_in_a_circle() -> None:
    known = modules()
    graph = {name: imported(path, known) for name, path in known.items()}
    assert "uprmc.model" in graph["uprmc.engine.vbucket"]
    assert [sorted(circle) for circle in circles(graph)] == []


def test_circles_of_any_length_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"d", "a"}, "e": set[str]()}
    assert circles(graph) == [{"a", "b", "c"}, {"d"}]
