"""A browser without a window, driven through its debugging pipe: pages are opened and looked at.

Chromium reads commands from descriptor 3 and writes answers and events to 4, each one JSON value
that ends with a zero byte.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_LIMIT_S = 60.0
_PAUSE_S = 0.05
_READ_BYTES = 1 << 20


def found_browser() -> str | None:
    """Return the path of a browser, ``None`` if there is none here."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Browser:
    """One browser with one page; use it in a ``with`` statement."""

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()

        def connect() -> None:
            # Both may be 3 or 4 themselves, so they are out of the way first.
            far = [fcntl.fcntl(each, fcntl.F_DUPFD, 64) for each in (theirs_in, theirs_out)]
            for number, each in zip((3, 4), far, strict=True):
                os.dup2(each, number)

        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run")
        self._process = subprocess.Popen(
            [
                program,
                *options,
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            preexec_fn=connect,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number = 0
        self._held = b""
        self._session: str | None = None

    def __enter__(self) -> Self:
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        found = self.ask("Target.attachToTarget", targetId=page, flatten=True)
        self._session = found["sessionId"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None and not method.startswith("Target."):
            command["sessionId"] = self._session
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            assert select.select([self._from], [], [], _LIMIT_S)[0], "the browser says nothing"
            piece = os.read(self._from, _READ_BYTES)
            assert piece, "the browser has ended"
            self._held += piece
        text, _, self._held = self._held.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def open(self, address: str, width: int, height: int, *, dark: bool = False) -> None:
        """Open a page on a screen of this size."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=address)

    def open_beside(self, address: str) -> None:
        """Open a page as somebody else would: with a browser's connections of its own."""
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        self.ask("Target.createTarget", url=address, browserContextId=context)

    def value(self, script: str) -> Any:
        """Return what JavaScript gives on the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Return the first true value of a script."""
        deadline = time.monotonic() + _LIMIT_S
        while True:
            found = self.value(script)
            if found:
                return found
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(_PAUSE_S)
