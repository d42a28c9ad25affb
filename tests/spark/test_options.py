"""Options: every one of them read, every wrong one refused by name with the nearest right one."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.columnar.access import Access, Tls
from uprmc.columnar.errors import BadOption
from uprmc.columnar.option import Option, plain
from uprmc.remote import ranges
from uprmc.spark.options import (
    READ,
    SPARE_LEASES,
    WRITE,
    access_of,
    as_texts,
    read_options,
    write_options,
)

SERVERS = {"servers": "127.0.0.1:11210"}


def reading(**options: str) -> Any:
    return read_options({**SERVERS, **options})


def writing(**options: str) -> Any:
    return write_options({**SERVERS, **options}).write


def refusal(call: Any, **options: Any) -> str:
    with pytest.raises(BadOption) as caught:
        call(**options)
    return str(caught.value)


# --- names ----------------------------------------------------------------------------------------


#: What is refused: of which side, the options, and what is told beside their names.
REFUSED = [
    *[
        (reading, {wrong: "1"}, f"did you mean {right}?")
        for wrong, right in (
            ("colums", "columns"),
            ("keytyp", "keyType"),
            ("startingOffset", "startingOffsets"),
            ("numPartition", "numPartitions"),
            ("on-rolback", "onRollback"),
        )
    ],
    (reading, {"writemode": "upsert"}, "writeMode is no option of reading"),
    (writing, {"snapshot": "held"}, "snapshot is no option of writing"),
    (reading, {"keytype": "binary", "key_type": "string"}, "keyType is given twice"),
    (reading, {"numPartitions": "0"}, "from 1 to 65,536"),
    (reading, {"numPartitions": "65537"}, "from 1 to 65,536"),
    (reading, {"numPartitions": "many"}, "a whole number"),
    (reading, {"leaseSeconds": "4"}, "from 5 to 86,400"),
    (reading, {"leaseSeconds": "86401"}, "from 5 to 86,400"),
    (reading, {"batchBytes": "8 pounds"}, "a size such as"),
    (reading, {"connectTimeout": "soon"}, "a time such as"),
    (reading, {"noValue": "perhaps"}, "true or false"),
    (reading, {"snapshot": "complet"}, "did you mean complete?"),
    (reading, {"keyType": "text"}, "one of string, binary"),
    (reading, {"vbuckets": "7-3"}, "a list of vBuckets"),
    (reading, {"vbuckets": "0-65536"}, "(0 to 65535)"),
    (reading, {"vbuckets": "a"}, "a list of vBuckets such as 5 or 0,8-11"),
    (reading, {"columns": "key,key"}, "key is there twice"),
    (reading, {"columns": "key,_sec"}, "did you mean _seq?"),
    (reading, {"mode": "FAIL"}, "FAILFAST"),
    (reading, {"startingOffsets": ""}, "a text that is not empty"),
    (reading, {"novalue": "true", "columns": "key,value"}, "contradict"),
    (reading, {"tls": "false", "tlscafile": "ca.pem"}, "contradict"),
    (reading, {"tlsKeyFile": "key.pem"}, "tlsKeyFile needs tlsCertFile"),
    (reading, {"passwordEnv": "SECRET"}, "needs username"),
    (reading, {"username": "u", "password": "p", "passwordFile": "f"}, "contradict"),
    (reading, {"lease": "x", "snapshot": "bounded"}, "contradict"),
    (reading, {"endingOffsets": "{}"}, "needs snapshot=bounded"),
    (reading, {"starting_timestamp": "0", "StartingOffsets": "earliest"}, "contradict"),
    (writing, {"ttlColumn": "a", "expColumn": "b"}, "contradict"),
    (writing, {"onError": "file"}, "go together"),
    (writing, {"errorsPath": "d"}, "go together"),
    (writing, {"force": "true"}, "append-meta"),
    (writing, {"writeMode": "overwrite"}, "one of upsert, insert, replace, append-meta, delete"),
    (writing, {"window": "100001"}, "from 1 to 100,000"),
    (writing, {"maxErrors": "-1"}, "0 or more"),
]


@pytest.mark.parametrize(("side", "options", "expected"), REFUSED)
def test_what_makes_no_sense_is_told_by_name_with_what_was_expected(
    side: Any, options: dict[str, str], expected: str
) -> None:
    told = refusal(side, **options)
    assert expected in told
    assert any(plain(name) in plain(told) for name in options)


def test_a_name_that_resembles_nothing_gets_the_list_of_all() -> None:
    told = refusal(reading, xyzzy="1")
    assert told.startswith("UPRMC_OPTION there is no option xyzzy of reading")
    assert "keyType" in told
    assert "vbuckets" in told


def test_an_option_of_a_view_that_is_read_and_written_is_passed_over_by_writing() -> None:
    assert writing(columns="key").mode == "upsert"


def test_an_option_of_streams_is_refused_for_a_batch_and_the_other_way_round() -> None:
    limited = {**SERVERS, "maxRowsPerTrigger": "10"}
    assert read_options(limited, kind="stream").max_rows == 10
    with pytest.raises(BadOption, match=r"maxRowsPerTrigger is an option of spark\.readStream"):
        read_options(limited, kind="batch")
    with pytest.raises(BadOption, match=r"snapshot is an option of spark\.read$"):
        read_options({**SERVERS, "snapshot": "held"}, kind="stream")


def test_case_underscores_and_hyphens_make_no_difference() -> None:
    assert reading(KEYTYPE="binary").columns.key_type == "binary"
    assert reading(key_type="binary").columns.key_type == "binary"
    assert read_options({**SERVERS, "key-type": "binary"}).columns.key_type == "binary"


def test_what_spark_itself_adds_is_passed_over() -> None:
    assert writing(checkpointLocation="/tmp/x", queryname="q")


def test_no_two_options_answer_to_one_name() -> None:
    for table in (READ, WRITE):
        names = [name for option in table for name in option.known_as()]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("option", [*READ, *WRITE], ids=lambda each: each.name)
def test_every_default_is_a_value_that_the_option_takes(option: Option) -> None:
    assert option.help.endswith(".")
    if option.default:
        value = option.read(option.default)
        if isinstance(value, int | float):
            assert option.least <= value <= option.most


# --- values ---------------------------------------------------------------------------------------


def test_servers_are_needed() -> None:
    with pytest.raises(BadOption, match="servers is missing"):
        read_options({})


def test_path_is_another_word_for_servers() -> None:
    assert read_options({"path": "a:1,b:2"}).access.servers == ("a:1", "b:2")


@pytest.mark.parametrize("bad", ["host:", ":1", "host:x", "host:70000", "a:1,,b:2", ","])
def test_a_server_is_host_and_port(bad: str) -> None:
    assert "HOST:PORT" in refusal(read_options, options={"servers": bad})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("numPartitions", "65536"),
        ("numPartitions", "1"),
        ("leaseSeconds", "5"),
        ("leaseSeconds", "86400"),
        ("vbuckets", "65535"),
        ("batchRows", "1000000"),
    ],
)
def test_values_at_their_limits_are_taken(name: str, text: str) -> None:
    assert reading(**{name: text})


@pytest.mark.parametrize(
    ("text", "size"), [("65536", 65536), ("64k", 65536), ("1 MiB", 2**20), ("8MB", 2**23)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert reading(batchBytes=text).batch_bytes == size


@pytest.mark.parametrize(("text", "seconds"), [("5", 5), ("100ms", 0.1), ("2m", 120), ("0.5", 0.5)])
def test_times_have_units(text: str, seconds: float) -> None:
    assert reading(connectTimeout=text).access.connect_timeout_s == seconds


def test_the_value_of_a_secret_is_never_told() -> None:
    with pytest.raises(BadOption) as caught:
        read_options({**SERVERS, "password": "hunter2"})
    assert "hunter2" not in str(caught.value)
    options = reading(username="me", password="hunter2")
    assert "hunter2" not in repr(options)


@given(st.sets(st.integers(0, 65_535), min_size=1, max_size=40))
def test_vbuckets_are_read_however_they_are_written(numbers: set[int]) -> None:
    text = ",".join(str(each) for each in numbers)
    assert ranges.parsed(text) == tuple(sorted(numbers))
    low, high = min(numbers), max(numbers)
    assert ranges.parsed(f"{low}-{high}") == tuple(range(low, high + 1))


@given(st.text())
def test_no_text_makes_a_reader_raise_anything_but_what_was_expected(text: str) -> None:
    for option in (*READ, *WRITE):
        with suppress(ValueError):
            option.read(text)


# --- what comes of them ---------------------------------------------------------------------------


def test_defaults_are_those_of_the_table() -> None:
    options = reading()
    assert options.access == Access(("127.0.0.1:11210",), spare_leases=SPARE_LEASES)
    assert options.snapshot == "complete"
    assert (options.batch_rows, options.batch_bytes) == (10_000, 8 * 2**20)
    assert options.partitions is None
    assert options.on_rollback == "fail"
    write = writing()
    assert write.access == Access(("127.0.0.1:11210",))
    assert (write.mode, write.window, write.window_bytes) == ("upsert", 1000, 2**20)
    assert write.max_errors is None
    assert write.durability == "persist"


def test_without_values_there_is_no_column_for_them() -> None:
    assert "value" not in reading(noValue="true").columns.names


def test_columns_are_chosen_in_order() -> None:
    assert reading(columns="_seq, key").columns.names == ("_seq", "key")


def test_a_tls_file_turns_tls_on() -> None:
    assert reading(tlsCaFile="ca.pem").access.tls == Tls(ca_file="ca.pem")
    assert reading(tls="true").access.tls == Tls()
    assert reading().access.tls is None


def test_meta_is_short_for_append_meta() -> None:
    assert writing(writeMode="META").mode == "append-meta"


def test_a_lease_means_to_read_what_it_holds() -> None:
    assert reading(lease="token").snapshot == "held"


def test_the_access_alone_can_be_read_from_all_options() -> None:
    access = access_of({**SERVERS, "columns": "nonsense", "username": "me"})
    assert access == Access(("127.0.0.1:11210",), username="me")


def test_options_of_a_python_program_become_texts() -> None:
    class Held:
        token = "lease1;60"

    found = as_texts(
        {
            "servers": ["a:1", "b:2"],
            "no_value": True,
            "batch_rows": 5,
            "columns": None,
            "lease": Held(),
            "startingOffsets": {"5": {"s": 1}},
        }
    )
    assert found == {
        "servers": "a:1,b:2",
        "no_value": "true",
        "batch_rows": "5",
        "lease": "lease1;60",
        "startingOffsets": '{"5": {"s": 1}}',
    }


def test_options_travel_to_workers() -> None:
    options = reading(columns="key", username="me", passwordEnv="SECRET")
    assert pickle.loads(pickle.dumps(options)) == options
    sink = write_options(SERVERS)
    assert pickle.loads(pickle.dumps(sink)) == sink
