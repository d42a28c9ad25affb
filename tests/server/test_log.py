"""Log lines: one per event, in both forms, whatever is in the values."""

from __future__ import annotations

import gc
import io
import json
import subprocess
import sys

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import Logger, globalLogPublisher
from twisted.python import log as legacy

from uprmc.server.log import LEVELS, Log, LogSink, Throttle, level, set_level

TIME = 1_795_176_000.1234  # 2026-11-20T12:00:00.123Z


def line_of(sink: LogSink, level_name: str = "info", name: str = "a.b", **fields: object) -> str:
    from twisted.logger import LogLevel

    sink.stream = io.StringIO()
    sink(
        {
            "log_time": TIME,
            "log_level": LogLevel.levelWithName(level_name),
            "uprmc_event": name,
            "uprmc_fields": fields,
        }
    )
    return sink.stream.getvalue()


def test_the_text_line_has_time_level_event_and_pairs() -> None:
    line = line_of(LogSink(), name="listener.ready", address="127.0.0.1:11211")
    assert line == "2026-11-20T12:00:00.123Z info  listener.ready address=127.0.0.1:11211\n"


def test_the_json_line_holds_the_same() -> None:
    line = line_of(LogSink(format="json"), name="listener.ready", address="127.0.0.1:11211", n=1)
    assert line.endswith("\n")
    assert json.loads(line) == {
        "time": "2026-11-20T12:00:00.123Z",
        "level": "info",
        "event": "listener.ready",
        "address": "127.0.0.1:11211",
        "n": 1,
    }


def test_a_list_is_a_list_in_json() -> None:
    line = line_of(LogSink(format="json"), keys=[b"a", "b"], more=(1, None))
    assert json.loads(line)["keys"] == ["a", "b"]
    assert json.loads(line)["more"] == [1, None]
    assert 'keys=["a", "b"]' in line_of(LogSink(), keys=[b"a", "b"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ('say "x"', '"say \\"x\\""'),
        ("line\nforged", '"line\\nforged"'),
        ("\x1b[31m\x7f", '"\\u001b[31m\\u007f"'),
        ("\u202e", '"\\u202e"'),
        (b"key\xff", "key\\xff"),
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        (None, "null"),
        (OSError("no"), "no"),
    ],
)
def test_values_stay_on_one_line_and_apart(value: object, text: str) -> None:
    assert line_of(LogSink(), v=value) == f"2026-11-20T12:00:00.123Z info  a.b v={text}\n"


def test_a_field_cannot_overwrite_time_level_or_event_in_json() -> None:
    fields = json.loads(line_of(LogSink(format="json"), event="forged", time="never"))
    assert fields["event"] == "a.b"
    assert fields["time"].startswith("2026")


@pytest.mark.parametrize("shown", LEVELS)
def test_a_level_shows_itself_and_what_is_above(shown: str) -> None:
    seen = [name for name in LEVELS if line_of(LogSink(shown), name)]
    assert seen == list(LEVELS[LEVELS.index(shown) :])


def test_the_level_can_be_changed_at_run_time(lines: io.StringIO) -> None:
    log = Log("x")
    set_level("warn")
    log.debug("hidden")
    set_level("debug")
    log.debug("shown")
    assert level() == "debug"
    assert "hidden" not in lines.getvalue()
    assert "debug x.shown\n" in lines.getvalue()


def test_twisted_is_silent_below_warn_even_at_debug(lines: io.StringIO) -> None:
    legacy.msg("Starting factory")
    Logger(namespace="twisted.x").info("noise")
    Logger(namespace="twisted.x").warn("look\nhere")
    assert lines.getvalue().count("\n") == 1
    assert 'warn  twisted.message source=twisted.x message="look\\nhere"' in lines.getvalue()


def test_failure_puts_the_traceback_on_one_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        Log("x").failure("broke", peer="p")
    line = lines.getvalue()
    assert line.count("\n") == 1
    assert "error x.broke peer=p error=bad traceback=" in line
    assert "test_failure_puts_the_traceback" in line


def test_an_unhandled_deferred_error_is_an_error_line(lines: io.StringIO) -> None:
    deferred: Deferred[None] = Deferred()
    deferred.addCallback(lambda _: 1 / 0)
    deferred.callback(None)
    del deferred
    gc.collect()  # of whatever else is collected now there may be lines, too
    (line,) = [each for each in lines.getvalue().splitlines() if "ZeroDivisionError" in each]
    assert " error twisted.failure source=twisted.internet.defer error=" in line


def test_a_closed_standard_error_does_not_hurt() -> None:
    sink = LogSink()
    line_of(sink)
    sink.stream.close()
    globalLogPublisher.addObserver(sink)
    try:
        Log("x").error("unheard")
    finally:
        globalLogPublisher.removeObserver(sink)


def test_a_throttle_passes_one_per_interval_and_counts_the_rest() -> None:
    now = [0.0]
    throttle = Throttle(10.0, lambda: now[0])
    assert [throttle.passed() for _ in range(4)] == [0, None, None, None]
    now[0] = 9.999
    assert throttle.passed() is None
    now[0] = 10.0
    assert throttle.passed() == 4


def test_a_process_writes_to_standard_error_only_and_can_change_its_form() -> None:
    program = """
from uprmc.config import LogSettings
from uprmc.server.log import Log, start_logging
log = Log("node")
log.info("early")
start_logging(LogSettings(level="info", format="text"))
log.debug("hidden")
start_logging(LogSettings(level="debug", format="json"))
log.debug("shown", n=1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.endswith("info  node.early")
    assert json.loads(second)["event"] == "node.shown"
