"""The page at ``/`` in a real browser: live, escaped, narrow and dark; it notices a lost node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pymemcache.client.base import Client

from interop.browser import Browser, found_browser
from interop.server_process import start_uprmc
from uprmc.client import UprClient
from uprmc.client.handler import Handler

_HOSTILE = "<img src=x onerror=alert(1)>"
_PANELS = "document.querySelectorAll('section').length"
_TEXT = "document.body.textContent"
_SETS = "document.querySelector('#panel-operations tr:nth-child(3) td:nth-child(2)').textContent"
_SUMMARY = "document.getElementById('summary').textContent"
_STREAMS = "document.getElementById('panel-streams').textContent"
_SEEN = """Object.defineProperty(document, "hidden", {value: %s, configurable: true});
document.dispatchEvent(new Event("visibilitychange"));"""
_VBUCKET = "document.getElementById('vbucket').textContent"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = found_browser()
    if program is None:
        pytest.skip("no browser: apt-get install chromium")
    with Browser(program, tmp_path / "profile") as found:
        yield found


class _Nothing(Handler):
    """Takes changes and forgets them."""


def test_the_page_follows_a_node_and_says_when_it_is_lost(browser: Browser, tmp_path: Path) -> None:
    with start_uprmc(tmp_path / "data", "--vbuckets", "16") as server:
        assert server.upr is not None
        consumer = UprClient(str(server.upr), _Nothing(), name=_HOSTILE)
        with consumer, closing(Client(str(server.memcached))) as client:
            consumer.start()
            browser.open(f"http://{server.http}/", 1400, 900)
            browser.wait_for(f"{_PANELS} >= 13")
            assert browser.value("document.querySelectorAll('.map button').length") == 16
            client.set("k", "v")
            browser.wait_for(f"{_SETS} === '1'")
            browser.wait_for(f"{_TEXT}.includes('onerror=alert(1)')")
            assert browser.value("document.images.length") == 0
            assert browser.value(_SUMMARY).startswith("All is well.")
            browser.value("document.querySelector('[data-consumer]').click()")
            browser.wait_for(f"{_STREAMS}.includes('16 streams')")
            assert browser.value("document.querySelectorAll('.detail tbody tr').length") == 16
            browser.value("document.querySelector('[data-consumer]').click()")
            assert browser.value("document.querySelector('.detail')") is None
            browser.value("document.querySelector('.map button').click()")
            browser.wait_for(
                "document.getElementById('vbucket').textContent.includes('high seqno')"
            )
            assert browser.value("document.getElementById('contact').dataset.state") == "live"
            for hidden, state in (("true", "waiting"), ("false", "live")):
                browser.value(_SEEN % hidden)
                browser.wait_for(f"document.getElementById('contact').dataset.state === '{state}'")
            consumer.stop()
        server.kill()
        browser.wait_for("document.getElementById('contact').dataset.state === 'lost'")
        assert "has not been heard since" in browser.value(_SUMMARY)


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_on_a_phone_in_light_and_dark(
    browser: Browser, tmp_path: Path, dark: bool
) -> None:
    source = ("--source", "127.0.0.1:1")
    with start_uprmc(tmp_path / "data", "--vbuckets", "1024", *source) as server:
        browser.open(f"http://{server.http}/", 390, 844, dark=dark)
        browser.wait_for(f"{_PANELS} >= 13")
        browser.wait_for(f"{_SUMMARY}.startsWith('The node at 127.0.0.1:1 is not followed')")
        assert browser.value("document.documentElement.scrollWidth") <= 390
        ground = browser.value("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 200) is dark
        server.stop()
