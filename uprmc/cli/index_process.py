"""An index process: its reactor, its listener, and the service of designs behind it.

A node that starts it hands over the listening socket: what has connected meanwhile waits in the
socket's queue. Standard input then tells when that node is gone (`index_serve.Lifeline`).
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import gc
import logging
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from OpenSSL import SSL
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.ssl import Certificate, optionsForClientTLS, trustRootFromCertificates
from twisted.python.threadpool import ThreadPool
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.cli.node_access import tls_context
from uprmc.cli.process import Process
from uprmc.client.options import check_place
from uprmc.client.twisted_client import over_tls
from uprmc.config import Settings, unix_mode
from uprmc.engine.stats import Stats
from uprmc.errors import ConfigError
from uprmc.index.http import role_of_views, views_site
from uprmc.index.node_client import NodeClient
from uprmc.index.scatter import Scatter
from uprmc.index.service import InUse, Service
from uprmc.index.source import SourceNodes
from uprmc.login.credentials import Credentials
from uprmc.places import VIEWS_PORT, several
from uprmc.server.http.site import gate, known_hosts
from uprmc.server.log import Events, Log, set_level, start_logging
from uprmc.server.net.access import Audit, UserAccess
from uprmc.server.net.connections import share_of_files
from uprmc.server.net.dialer import dialling_as, trust_root
from uprmc.server.net.listener import Listener, https_options, listen, tls_options
from uprmc.server.net.listener import over_tls as served_over_tls
from uprmc.server.work.index import EventsToNode, chosen

# --- the nodes ------------------------------------------------------------------------------------


_BEGIN = b"-----BEGIN CERTIFICATE-----"


def source_nodes(
    sources: tuple[str, ...],
    tls: bool,
    ca_file: str | None,
    credentials: Credentials | None,
    *,
    verify: bool,
) -> SourceNodes:
    """Return how to reach the nodes.

    Raises:
        ConfigError: a place is none, or the certificates cannot be read.
        MisuseError: likewise.
    """
    places = [check_place(each) for one in sources for each in one.split(",")]
    context: ssl.SSLContext | None = tls_context(tls, ca_file, verify)
    found = tuple(dict.fromkeys(places))
    if context is None:
        return SourceNodes(found, credentials=credentials)
    options = _trusting(ca_file) if verify else _Unverified
    return SourceNodes(found, over_tls(options), context, credentials)


def _trusting(ca_file: str | None) -> Callable[[str], Any]:
    if ca_file is None:
        return optionsForClientTLS
    parts = Path(ca_file).read_bytes().split(_BEGIN)[1:]
    try:
        root = trustRootFromCertificates([Certificate.loadPEM(_BEGIN + part) for part in parts])
    except SSL.Error as error:
        raise ConfigError(f"--tls-ca {ca_file}: {error}") from None
    return lambda name: optionsForClientTLS(name, trustRoot=root)


@implementer(IOpenSSLClientConnectionCreator)
class _Unverified:
    """TLS without a look at the certificate: to the node that has started us."""

    def __init__(self, name: str) -> None:
        self._context = SSL.Context(SSL.TLS_CLIENT_METHOD)

    def clientConnectionForTLS(self, protocol: Any) -> Any:  # noqa: N802  # Twisted's name
        """Return a connection."""
        return SSL.Connection(self._context, None)


# --- the process ----------------------------------------------------------------------------------


_log = Log("index")


#: New objects that Python's cycle collector waits for. Documents and rows are in no cycle; looking
#: through them as often as Python does by default costs a sixth of a first build.
_YOUNG_OBJECTS = 200_000


class IndexProcess:
    """One index and the process's reactor.

    Args:
        reactor: the process's, not running yet.
        read_settings: reads those of ``index``, ``log`` and some of others; called again after a
            SIGHUP.
        nodes: the nodes whose documents are indexed.
        data: directory of designs.
        listen_fd: a listening socket, ``None`` = listen where ``server.views`` says.
        events_fd: a pipe to the node that takes events, ``None`` = they are only logged.
    """

    def __init__(
        self,
        reactor: Any,
        read_settings: Callable[[], Settings],
        nodes: SourceNodes,
        data: Path,
        listen_fd: int | None,
        events_fd: int | None = None,
    ) -> None:
        settings = read_settings()
        self._process = Process(reactor)
        self._process.heed_signals(read_settings, self._reload, _log)
        start_logging(settings.log)
        logging.getLogger("uprmc").addHandler(_ToLog())
        logging.getLogger("uprmc").setLevel(logging.INFO)
        self._reactor, self._settings, self._listen_fd = reactor, settings, listen_fd
        tell = Events(time.time).tell
        if events_fd is not None:
            tell = EventsToNode(events_fd, otherwise=tell).tell
        self._service = Service(reactor, data, nodes, settings.index, tell)
        self._queries = ThreadPool(0, settings.index.query_threads, "uprmc-index-query")
        self._scatter = self._new_scatter(nodes.credentials)
        self._audit = Audit(settings.log.audit, time.time)
        self._access = self._new_access(settings.server.users)
        self._tls = https_options(settings.server, tls_options(settings.server))
        self._listener: Listener | None = None
        self._address = ""

    def _new_scatter(self, credentials: Credentials | None) -> Scatter | None:
        """Return what asks other nodes, too, if the settings name any.

        Args:
            credentials: who logs in there, ``None`` = `upr.dial_user`.
        """
        named = self._settings.index.nodes
        if not named.strip():
            return None
        try:
            nodes = several(named, VIEWS_PORT)
        except ValueError as error:
            raise ConfigError(f"index.nodes: say {error}") from None
        upr = self._settings.upr
        trust = trust_root(upr) if self._settings.server.http_tls else None
        credentials = credentials or dialling_as(upr)
        return Scatter(
            nodes,
            self._service,
            self._settings.index,
            self._reactor,
            self._queries,
            client=NodeClient(self._reactor, trust=trust, credentials=credentials),
            source=lambda: self._address,
        )

    def _new_access(self, path: str) -> UserAccess | None:
        if not path:
            return None
        timeout_s = self._settings.server.login_timeout_s
        return UserAccess(self._reactor, path, Stats(), self._audit, timeout_s)

    def run(self) -> int:
        """Serve until stopped; returns the exit code or raises what went wrong."""
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
        return self._process.run(self._start, self._stop)

    def stop_from_thread(self) -> None:
        """Stop in order; from any thread."""
        self._reactor.callFromThread(self._process.stop)

    def _start(self) -> None:
        ensureDeferred(self._begin()).addErrback(self._process.failed)

    async def _begin(self) -> None:
        self._queries.start()
        try:
            await self._service.start()
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}") from None
        except InUse as error:
            raise ConfigError(str(error)) from None
        index = self._settings.index
        site = views_site(
            self._service,
            replace(index, connections=share_of_files(index.connections, 2)),
            self._reactor,
            self._queries,
            lambda: [self._address],
            self._scatter,
            known_hosts(self._settings.server, *index.nodes.split(",")),
        )
        if self._access is not None:
            gate(site, self._access, "views", role_of_views)
        await self._listen(site)
        sys.stdout.write(f"uprmc index ready views={self._address} pid={os.getpid()}\n")
        sys.stdout.flush()

    async def _listen(self, site: Any) -> None:
        if self._listen_fd is None:
            server = self._settings.server
            self._listener = await listen(
                self._reactor,
                chosen(server.views),
                site,
                setting="server.views",
                backlog=server.listen_backlog,
                tls=self._tls,
                mode=unix_mode(server.unix_mode, "server.unix_mode"),
            )
        else:
            given = socket.socket(fileno=self._listen_fd)
            given.setblocking(False)
            if self._tls is not None:
                site = served_over_tls(self._reactor, self._tls, site)
            port = self._reactor.adoptStreamPort(given.fileno(), given.family, site)
            given.close()
            self._listener = Listener(port)
        self._address = self._listener.address

    def _reload(self, settings: Settings) -> None:
        if self._access is not None:
            self._access.reload(self._settings.server.users)
        if self._tls is not None:
            self._tls.reload(settings.server)
        self._audit.reopen(self._settings.log.audit)
        set_level(settings.log.level)

    def _stop(self) -> Deferred[None]:
        return ensureDeferred(self._end())

    async def _end(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
        if self._scatter is not None:
            await self._scatter.close()
        try:
            await self._service.shutdown()
        except Exception as error:
            self._process.note(error)
        if self._queries.started:
            self._queries.stop()
        if self._access is not None:
            self._access.stop()
        self._audit.close()


class _ToLog(logging.Handler):
    """Has what the client library and the index log written as the node's log is."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        section = record.name.removeprefix("uprmc.")
        text = " ".join(record.getMessage().split())
        if record.levelno >= logging.ERROR:
            _log.error("failed", part=section, text=text)
        elif record.levelno >= logging.WARNING:
            _log.warn("trouble", part=section, text=text)
        else:
            _log.info("event", part=section, text=text)
