"""The reference pages are made from the code, and what they are made from is complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.documents import ROOT, names, rows
from tools import code_map, command_line, reference
from uprmc.config import describe
from uprmc.kv.roles import USERS_WORDS, denied_words
from uprmc.login.users import Role
from uprmc.protocol.opcodes import Opcode
from uprmc.server.log import EVENTS

_LEVEL_OF = {"failure": "error"}
_CALL = r'\.(debug|info|warn|error|failure)\(\s*"(\w+)"'


def test_every_page_is_written_and_linked_from_the_page_about_the_reference(tmp_path: Path) -> None:
    reference.write(tmp_path)
    written = {path.name for path in tmp_path.glob("*.md")}
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(reference/([\w-]+\.md)\)", page)) == written
    pages = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.1")}
    assert pages == command_line.man_pages()


def test_the_site_has_every_page_in_its_navigation() -> None:
    told = set(
        re.findall(r"[\w-]+(?:/[\w-]+)?\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    )
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert told == pages | {f"reference/{name}.md" for name in reference.PAGES}


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    mkdocs = shutil.which("mkdocs")
    if mkdocs is None:
        pytest.skip("mkdocs is not installed; `make docs` brings its own")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("reference"))
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    reference.write(tmp_path / "docs" / "reference")
    built = subprocess.run(
        [mkdocs, "build", "--strict", "--quiet"], cwd=tmp_path, timeout=120, check=False
    )
    assert built.returncode == 0
    assert (tmp_path / "site" / "index.html").exists()


def test_the_page_of_settings_has_every_setting_with_its_default_and_range() -> None:
    page = reference.settings_page()
    assert names(page) == [f"{info.name}" for info in describe()]
    told = {row[0]: row[1:] for row in rows(page)}
    assert told["`kv.max_item_bytes`"][:3] == ["1 MiB", "bytes", "1 KiB to 128 MiB"]
    assert told["`flush.sync`"][:3] == ["yes", "yes/no", "-"]
    assert told["`log.format`"][1] == "text|json"


def events_in_the_code() -> set[tuple[str, str]]:
    """Return (event, level) of everything our own code can log."""
    found = set()
    for path in (ROOT / "uprmc").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for event in re.findall(r'\b_?on_event\(\s*"(\w+)"', text):
            found.add((f"event.{event}", EVENTS[f"event.{event}"].level))
        logs = re.findall(r'^(_\w*log) = Log\("(\w+)"\)', text, re.M)
        if path.parts[-2:] == ("cli", "process.py"):
            logs.append(("events", "node"))
        for log, section in logs:
            calls = re.findall(rf"(?<!\.)\b{log}{_CALL}", text)
            assert len(calls) == len(re.findall(rf"(?<!\.)\b{log}\.", text)), path
            found |= {(f"{section}.{event}", _LEVEL_OF.get(level, level)) for level, event in calls}
        for section, level, event in re.findall(rf'(?<!`)\bLog\("(\w+)"\){_CALL}', text):
            found.add((f"{section}.{event}", _LEVEL_OF.get(level, level)))
    return found


def test_the_table_of_events_has_every_event_with_its_level() -> None:
    told = {(name, info.level) for name, info in EVENTS.items() if not name.startswith("twisted.")}
    assert told == events_in_the_code()
    assert names(reference.log_events_page()) == list(EVENTS)


# --- the command line ---------------------------------------------------------------------------


def _uprmc(*arguments: str, **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "uprmc", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout


def _man_pages() -> str:
    return "".join(command_line.man_pages().values())


@pytest.mark.parametrize("written", [command_line.command_line_page, _man_pages])
def test_every_option_that_help_shows_is_on_both_pages(written) -> None:
    shown = written().replace("\\-", "-").replace("\\|", "|")
    for context in command_line.contexts():
        assert context.command_path in shown
        for param in context.command.get_params(context):
            if record := param.get_help_record(context):
                assert record[0] in shown


def test_the_manual_pages_have_no_mistake_in_their_macros() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed")
    made = subprocess.run(
        [groff, "-man", "-ww", "-z", "-Tutf8"],
        input=_man_pages(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (made.returncode, made.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_and_manual_are_installed_beside_the_program(tmp_path: Path, shell: str) -> None:
    program = tmp_path / "bin" / "uprmc"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m uprmc "$@"\n')
    program.chmod(0o755)
    around = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    place = {
        "bash": "share/bash-completion/completions/uprmc",
        "zsh": "share/zsh/site-functions/_uprmc",
        "fish": "config/fish/completions/uprmc.fish",
    }[shell]
    said = _uprmc("completion", shell, "--install", **around)
    assert said.startswith(f"{tmp_path / place} is installed\n")
    assert (tmp_path / place).read_text() == _uprmc("completion", shell)
    if shell == "bash" and shutil.which("bash") is not None:
        ask = 'source "$0"; COMP_WORDS=(uprmc ta); COMP_CWORD=1; _uprmc_completion uprmc'
        ended = subprocess.run(
            ["bash", "-c", f'{ask}; echo "${{COMPREPLY[@]}}"', tmp_path / place],
            env=os.environ | around,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert ended.stdout == "tail takeover tap-adapter\n"
        _uprmc("manual", "--install", **around)
        assert {path.name for path in (tmp_path / "share/man/man1").iterdir()} == {
            *command_line.man_pages()
        }


def test_verbs_and_options_are_completed() -> None:
    def completed(words: str, number: int) -> list[str]:
        given = {"COMP_WORDS": words, "COMP_CWORD": str(number)}
        out = _uprmc(_UPRMC_COMPLETE="bash_complete", **given)
        return [line.partition(",")[2] for line in out.splitlines()]

    assert completed("uprmc ta", 1) == ["tail", "takeover", "tap-adapter"]
    assert completed("uprmc tail --key", 2) == ["--keys-only"]


# --- the code -----------------------------------------------------------------------------------


def test_every_module_begins_with_what_it_is_for() -> None:
    silent = [
        f"{package}/{name}"
        for package, files in code_map.modules().items()
        for name, summary in files
        if not summary
    ]
    assert silent == []


def test_no_package_imports_one_above_it_or_in_a_circle() -> None:
    graph = code_map.imports()
    assert [room for room in graph if room in code_map.below(graph, room)] == []
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    rank = {
        name.strip().removeprefix("uprmc."): number
        for number, layer in enumerate(layers[:-1])
        for name in re.split("[|:]", layer)
    } | {"vocabulary": len(layers)}
    assert set(graph) == set(rank)
    for room, imported in graph.items():
        assert all(rank[each] > rank[room] for each in imported), room


# --- commands on the pages ----------------------------------------------------------------------

_COMMAND = re.compile(
    r"^(?:\$ )?(?:\S*/)?uprmc ((?![a-z]+ [a-z]+=)[a-z].*)$|`uprmc ([a-z][^`\n]*)`", re.M
)


def _commands(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ").replace("\\|", "|")
    return [block or inline for block, inline in _COMMAND.findall(text)]


def _options(words: list[str]) -> set[str]:
    """Return the options of the verb that words begin with, old forms included."""
    known = {context.command_path: context.command for context in command_line.contexts()}
    path = "uprmc"
    while words and f"{path} {words[0]}" in known:
        path += f" {words.pop(0)}"
    assert path != "uprmc", words
    params = known[path].params
    return {form for param in params for form in (*param.opts, *param.secondary_opts)} | {"--help"}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_commands_on_the_pages_exist_with_their_options(page: Path) -> None:
    for line in _commands(page):
        for one in re.split(r" [|#] |`, `uprmc ", line):
            words = one.split()
            if words[0].isupper() or "VERB" in words:
                continue
            given = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", one))
            assert given <= _options(words), line


def test_the_glossary_is_in_order_and_says_each_word_once() -> None:
    told = [row[0] for row in rows((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))]
    assert told == sorted(set(told), key=str.lower)


def test_settings_on_the_cheat_sheet_exist() -> None:
    text = (ROOT / "docs" / "cheatsheet.md").read_text(encoding="utf-8")
    sections = {info.name.partition(".")[0] for info in describe()}
    told = set(re.findall(rf"`((?:{'|'.join(sections)})\.[a-z_]+)`", text))
    assert told
    assert told <= {info.name for info in describe()}


def test_the_page_of_roles_has_every_opcode_word_and_page_of_the_node() -> None:
    found = {row[0].strip("`"): row[1:] for row in rows(reference.roles_page())}
    assert {opcode.name for opcode in Opcode} <= found.keys()
    assert {word.decode() for word in denied_words(frozenset()) | USERS_WORDS} <= found.keys()
    who = ["nobody", "any user", *Role, "read and write"]
    cases = {
        "GET": {"read", "read and write"},
        "GETL": {"read and write"},
        "HELLO": set(who),
        "FLUSH": {"manage"},
        "get": {"read", "read and write"},
        "version": set(who),
    }
    for name, allowed in cases.items():
        assert [*found[name]] == ["x" if each in allowed else "" for each in who], name
    assert [*found["GET /healthz"]] == ["http", *["x"] * len(who)]
    assert [*found["GET /changes"]] == ["http", *["x" if each == "stream" else "" for each in who]]
    deletes = found["DELETE /default/_design/NAME"]
    assert [*deletes] == ["views", *["x" if each == "manage" else "" for each in who]]
