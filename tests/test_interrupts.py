"""Tests pass in the background, too."""

from __future__ import annotations

import signal
import subprocess


def test_a_process_that_a_test_starts_can_be_interrupted() -> None:
    """It fails where this very run was started with SIGINT ignored and nothing was done."""
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
