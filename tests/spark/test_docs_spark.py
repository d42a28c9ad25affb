"""``docs/spark.md`` and its reference tell the truth: tables name everything there is, and no more.

Its programs and commands are run by ``test_page_spark.py``.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from tests.documents import TROUBLESHOOTING, names, rows, section
from tests.spark.page import PAGE, REFERENCE, ROOT, TEXT, blocks
from tools.reference import errors_page, spark_options_page
from uprmc.backup.manifest import FilePart, Manifest, VBucketPart
from uprmc.columnar import errors, schema
from uprmc.columnar.report import CODES, OUTCOMES, ErrorRow
from uprmc.spark.offsets import BOUNDARIES_MAX, Offset, OffsetPosition
from uprmc.spark.options import ACCESS, READ, WRITE


def test_the_page_of_options_has_each_with_its_default() -> None:
    told_of = {row[0]: row[1] for row in rows(spark_options_page())}
    assert {f"`{each.name}`" for each in (*READ, *WRITE)} <= told_of.keys()
    assert told_of["`snapshot`"] == "complete"
    assert told_of["`password`"] == "-"


def test_options_in_programs_exist() -> None:
    programs = "".join(each.text for each in blocks() if each.kind == "python")
    given = set(re.findall(r'\.option\("(\w+)"', programs))
    of_spark = {"path", "checkpointLocation"}
    assert given - of_spark <= {each.name for each in (*READ, *WRITE)}


def test_words_that_options_take_are_told() -> None:
    whole = spark_options_page() + section(TEXT, "## Reading") + section(TEXT, "## Rollback")
    for option, words in {
        "onRollback": ("fail", "rewind", "restart"),
        "snapshot": ("complete", "held", "bounded"),
        "mode": ("FAILFAST", "PERMISSIVE", "DROPMALFORMED"),
    }.items():
        (found,) = [each for each in READ if each.name == option]
        for word in words:
            assert found.read(word) == word
            assert word in whole


def test_every_field_of_an_error_row_is_told() -> None:
    text = section(REFERENCE, "## Error rows")
    table = [row for row in rows(text) if len(row) == 2]
    told_of = {name for row in table for name in re.findall(r"`(\w+)`", row[0])}
    assert told_of == set(json.loads(ErrorRow(0, "NO_KEY", "").to_json(0, 0)))
    codes = next(row[1] for row in table if row[0] == "`code`")
    assert set(re.findall(r"`(\w+)`", codes)) == set(CODES)


def test_every_count_of_a_report_is_told() -> None:
    text = section(REFERENCE, "## Report")
    assert all(f"`{name}`" in text for name in ("rows", *OUTCOMES))


def test_every_key_of_an_offset_is_told() -> None:
    whole = OffsetPosition(5, 3, (2, 9), (1,), rewound_to=2, origin=1, moved=True)
    said = Offset(64, {1: whole}, "token").to_dict()
    text = section(REFERENCE, "## Offsets")
    told_of = {name for row in rows(text) for name in re.findall(r"`(\w+)`", row[0])}
    assert told_of == set(said["vb"]["1"])
    assert all(f'"{name}"' in text for name in said)
    assert "six at most" in text
    assert BOUNDARIES_MAX == 6


# --- errors -------------------------------------------------------------------------------------


def _kinds(kind: type[errors.ClientError]) -> set[type[errors.ClientError]]:
    return {kind}.union(*(_kinds(each) for each in kind.__subclasses__()))


def test_every_code_word_is_in_the_table_of_errors() -> None:
    verbs()  # the command line has errors of its own
    ours = {each for each in _kinds(errors.ClientError) if each.__module__.startswith("uprmc.")}
    told_of = {row[1].strip("`") for row in rows(errors_page())}
    assert {each.code for each in ours} <= told_of


def test_code_words_that_the_page_mentions_exist() -> None:
    ours = {each.code for each in _kinds(errors.ClientError)}
    assert (
        set(
            re.findall(
                r"\bUPRMC_[A-Z0-9_]+\b", TEXT + REFERENCE + section(TROUBLESHOOTING, "## Streams")
            )
        )
        <= ours
    )


# --- columns ------------------------------------------------------------------------------------


def test_every_column_is_told_with_its_type() -> None:
    table = [row for row in rows(section(REFERENCE, "## Columns")) if len(row) == 3]
    found = {
        name: row[1].split(" ")[0] for row in table for name in re.findall(r"`([^`]+)`", row[0])
    }
    every = schema.Columns(names=tuple(found))
    expected = dict(each.strip().split(" ", 1) for each in every.ddl.split(","))
    expected = {name.strip("`"): kind.lower() for name, kind in expected.items()}
    assert found == expected
    assert set(found) == set(schema.DEFAULT) | set(schema.OPTIONAL)


# --- the command line ---------------------------------------------------------------------------


BULK_VERBS = ("load", "backup", "restore", "verify", "export")


def verbs() -> dict[str, click.Command]:
    from uprmc.cli.main import uprmc

    context = click.Context(uprmc)
    found = {name: uprmc.get_command(context, name) for name in BULK_VERBS}
    return {name: verb for name, verb in found.items() if verb is not None}


def flags(command: click.Command) -> set[str]:
    found = {
        flag
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden
        for flag in (*each.opts, *each.secondary_opts)
        if flag.startswith("--")
    }
    return found - {"--help"}


def test_commands_of_the_pages_name_options_that_exist() -> None:
    found = verbs()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for text in (TEXT, readme, TROUBLESHOOTING):
        joined = text.replace("\\\n", " ")
        for verb, rest in re.findall(
            r"^(?:\$ )?\S*uprmc (load|backup|restore|verify|export) ([^\n]*)$", joined, re.M
        ):
            given = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest))
            assert given <= flags(found[verb]), (verb, rest)


# --- backups ------------------------------------------------------------------------------------


def test_every_field_of_a_manifest_is_told() -> None:
    file = FilePart("data/vbg=0/part-0.parquet", 0, 0, 1, "")
    needed = [each.name for each in fields(Manifest) if each.default == each.default_factory]
    given: dict[str, Any] = dict.fromkeys(needed, "")
    whole = Manifest(**given, vb={0: VBucketPart(1, 0, 1)}, files=[file])
    said = whole.to_dict()
    tables = re.split(r"^Of each .*:$", section(REFERENCE, "## The manifest"), flags=re.M)
    found = [set(names(re.sub(r"\|[^|]*\|$", "|", each, flags=re.M))) for each in tables]
    assert found == [set(said), set(said["vb"]["0"]), set(said["files"][0])]
    totals = next(row[1] for row in rows(tables[0]) if row[0] == "`totals`")
    assert set(re.findall(r"`(\w+)`", totals)) == set(said["totals"])


# --- the page itself ----------------------------------------------------------------------------


def test_the_page_has_programs_commands_and_pictures_only() -> None:
    assert {each.kind for each in blocks()} <= {"python", "sh", "", "java"}


@pytest.mark.parametrize(
    "page",
    [PAGE, PAGE.with_name("spark-reference.md"), ROOT / "README.md"],
    ids=lambda each: each.name,
)
def test_what_the_page_links_to_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, anchor in re.findall(
        r"\]\((?!reference/)([a-z/-]*(?:\.md)?)(?:#([a-z0-9_-]+))?\)", text
    ):
        target = (page.parent / name).read_text(encoding="utf-8") if name else text
        found = {
            re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", target, re.M)
        }
        assert not anchor or anchor in found, (name, anchor)


def test_the_tables_are_compared_with_the_right_module() -> None:
    assert READ[: len(ACCESS)] == ACCESS
