"""A views listener in a thread, over an index in memory, for verbs that block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from twisted.python.threadpool import ThreadPool

from tests.index.fake_index import FakeService
from tests.server.support import Loop
from uprmc.config import IndexSettings
from uprmc.index.http import views_site

_LIMIT_S = 60.0


@contextmanager
def listening(service: FakeService) -> Iterator[str]:
    """Serve designs; yields HOST:PORT."""
    loop, pool = Loop(), ThreadPool(1, 2, "queries")
    site = views_site(service, IndexSettings(), loop.reactor, pool, lambda: ["127.0.0.1:8092"])
    port = loop.reactor.listenTCP(0, site, interface="127.0.0.1")
    stopped: list[bool] = []
    pool.start()
    thread = Thread(target=lambda: loop.until(lambda: stopped, _LIMIT_S))
    thread.start()
    try:
        yield f"127.0.0.1:{port.getHost().port}"
    finally:
        stopped.append(True)
        thread.join()
        pool.stop()
        loop.close()
