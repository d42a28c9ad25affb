"""Health, status and metrics over HTTP, for probes, dashboards and people with curl.

Everything is read only and answers at once from memory. What a stranger can make it do is bounded
by `uprmc.web`: no more than `MAX_BODY_BYTES` of body, `REQUEST_S` seconds for a request, and
`MAX_CLIENTS` connections besides those of readers that stay. What answers wait for their clients is
in the node's account of buffers.
"""

# ruff: noqa: N815  # Twisted's names
# mypy: allow-untyped-calls

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Generator
from contextlib import suppress
from importlib.resources import files
from socket import gethostname
from typing import Any, cast

from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Request

from uprmc.config import HttpSettings, ServerSettings, Settings
from uprmc.errors import ConfigError, InvalidArguments, NotMyVBucket, StreamNotFound
from uprmc.login.credentials import NAME_MAX_BYTES, PASSWORD_MAX_BYTES, Credentials
from uprmc.login.users import Role, User
from uprmc.metrics import Exposition
from uprmc.places import parsed
from uprmc.server.http.endless import EVENT_STREAM, Admit, BadQuestion, Endless
from uprmc.server.log import Log
from uprmc.server.net.access import PUT_OFF_S, UserAccess, stays_here
from uprmc.server.net.adapter import peer_text
from uprmc.server.net.connections import RESERVED_FILES, share_of_files
from uprmc.server.stats.statistics import Statistics
from uprmc.server.work.turns import LongWork
from uprmc.web import Account, KnownHosts, LimitedChannel, LimitedSite

# --- who may ask ----------------------------------------------------------------------------------
# Who may ask for pages over HTTP: basic auth against the node's users, and a role for each page.
#
# A password that was right is remembered for a while (`UserAccess.check_once`), so that a program
# that asks every few seconds costs no key derivation each time.


#: Returns the role that a request needs, ``None`` = none, not even a login.
RoleOf = Callable[[Request], Role | None]

_HEADER_MAX_BYTES = 2 * (NAME_MAX_BYTES + PASSWORD_MAX_BYTES)
_ACTION_MAX = 200
_IN_CLEAR = (
    "a password is not taken over plain HTTP from another machine: use https:// (server.tls_cert), "
    "or ask on the node's own machine"
)
_TOO_MANY = "too many logins at a time; try again later"
_CHALLENGE = b'Basic realm="uprmc", charset="UTF-8"'

#: Pages of a node that probes ask for, and those that show documents; others need `MONITOR`.
OPEN_PATHS = frozenset({b"/healthz", b"/readyz"})
DOCUMENT_PATHS = frozenset({b"/changes"})


def gate(site: LimitedSite, access: UserAccess, listener: str, role_of: RoleOf) -> None:
    """Let only users into a site; see `Gated`. A stranger has a connection for one request."""
    site.resource = Gated(site.resource, access, listener, role_of)
    site.timeOut = min(cast(float, site.timeOut), access.login_timeout_s)


def role_of_page(request: Request) -> Role | None:
    """Return the role that a page of a node needs."""
    if request.path in OPEN_PATHS:
        return None
    return Role.STREAM if request.path in DOCUMENT_PATHS else Role.MONITOR


class Gated(Resource):
    """Lets requests through to a resource.

    Args:
        root: answers every path.
        access: the users.
        listener: its name, for the audit log.
        role_of: tells what a request needs.
    """

    isLeaf = True

    def __init__(self, root: IResource, access: UserAccess, listener: str, role_of: RoleOf) -> None:
        super().__init__()
        self._root: Any = root
        self._access, self._listener = access, listener
        self._role_of = role_of
        self._open: dict[Request, User] = {}
        access.on_reload.append(self._look_again)

    def _look_again(self) -> None:
        """Cut off the answers to users who are gone or have changed; some have no end."""
        for request, user in list(self._open.items()):
            if self._access.users.find(user.name) != user:
                cast(Any, request.transport).abortConnection()

    def render(self, request: Request) -> Any:
        """Answer, now or when the password has been checked."""
        role = self._role_of(request)
        if role is None:
            return self._root.render(request)
        peer = peer_text(request.getClientAddress())
        if not (request.isSecure() or stays_here(peer)):
            return self._refuse_in_clear(request, peer)
        given = _given(request)
        if given is None:
            self._note(request, "", _action(request), "refused")
            return _refusal(request, http.UNAUTHORIZED, "log in with the name of a user")
        credentials = given
        gone: list[Failure] = []
        request.notifyFinish().addErrback(lambda failure: gone.append(failure))
        name = credentials.username
        known = self._access.remembers(credentials) and not self._access.is_slowed(peer, name)

        def checked(right: bool | None) -> None:
            if gone:
                return
            if right and not known:
                self._admit(request, peer, credentials.username, role, gone)
            elif right:
                self._let_through(request, credentials.username, role)
            elif right is None:
                _finish(request, _refusal(request, http.SERVICE_UNAVAILABLE, _TOO_MANY))
            else:
                self._refuse(request, credentials.username, gone)

        cast(LimitedChannel, request.channel).works(False)  # who only tries may be dropped
        self._access.check_once(peer, credentials, checked)
        return NOT_DONE_YET

    def _admit(
        self, request: Request, peer: str, name: str, role: Role, gone: list[Failure]
    ) -> None:
        """Let a user through who has logged in, at once or later."""
        self._access.stats.auth_cmds += 1

        def answer() -> None:
            if not gone:
                self._let_through(request, name, role)

        delay_s = self._access.admit(peer, self._listener, name)
        if delay_s is None:
            self._put_off(request, gone)
            return
        self._note(request, name, "login", "allowed")
        if delay_s:
            self._access.later(delay_s, answer)
        else:
            answer()

    def _refuse_in_clear(self, request: Request, peer: str) -> bytes:
        """Refuse without asking for a password: anyone on the way could read it."""
        if request.getHeader("authorization") is not None:
            self._access.stats.auth_errors += 1
            self._access.audit.note(peer, self._listener, "", "login", "refused")
        return _refusal(request, http.FORBIDDEN, _IN_CLEAR)

    def _let_through(self, request: Request, name: str, role: Role) -> None:
        user = self._access.users.find(name)
        answer: Any
        try:
            if user is None or role not in user.roles:
                self._access.stats.auth_denied += 1
                self._note(request, name, _action(request), "refused")
                answer = _refusal(request, http.FORBIDDEN, f"not authorized: needs {role}")
            else:
                if role is Role.MANAGE:
                    self._note(request, name, _action(request), "allowed")
                self._open[request] = user
                cast(LimitedChannel, request.channel).works(True)
                request.notifyFinish().addBoth(lambda _: self._open.pop(request, None))
                answer = self._root.render(request)
            if answer is not NOT_DONE_YET:
                _finish(request, answer)
        except Exception:
            request.processingFailed(Failure())

    def _refuse(self, request: Request, name: str, gone: list[Failure]) -> None:
        stats = self._access.stats
        stats.auth_cmds += 1
        stats.auth_errors += 1

        def answer() -> None:
            if not gone:
                reason = "wrong name or password"
                _finish(request, _refusal(request, http.UNAUTHORIZED, reason))

        peer = peer_text(request.getClientAddress())
        delay_s = self._access.refuse(peer, self._listener, name, "wrong name or password")
        if delay_s is None:
            self._put_off(request, gone)
        else:
            self._access.later(delay_s, answer)

    def _put_off(self, request: Request, gone: list[Failure]) -> None:
        """Answer later that too many try to log in, whatever the password was."""

        def answer() -> None:
            if not gone:
                _finish(request, _refusal(request, http.SERVICE_UNAVAILABLE, _TOO_MANY))

        self._access.later(PUT_OFF_S, answer)

    def _note(self, request: Request, name: str, action: str, outcome: str) -> None:
        peer = peer_text(request.getClientAddress())
        self._access.audit.note(peer, self._listener, name, action, outcome)


def _action(request: Request) -> str:
    """Return what a request wants, for the audit log."""
    text = f"{request.method.decode('latin-1')} {request.path.decode('latin-1')}"
    return text[:_ACTION_MAX]


def _given(request: Request) -> Credentials | None:
    """Return the name and password of a request, ``None`` if it has none."""
    kind, _, encoded = cast(str, request.getHeader("authorization") or "").partition(" ")
    if kind.lower() != "basic" or len(encoded) > _HEADER_MAX_BYTES:
        return None
    try:
        name, colon, password = b64decode(encoded.strip(), validate=True).decode().partition(":")
        return Credentials(name, password) if colon else None
    except (Base64Error, ValueError, ConfigError):
        return None


def _refusal(request: Request, code: int, reason: str) -> bytes:
    body = json.dumps({"error": reason, "reason": reason}).encode() + b"\n"
    request.setResponseCode(code)
    if code == http.UNAUTHORIZED:
        request.setHeader(b"WWW-Authenticate", _CHALLENGE)
        request.setHeader(b"Connection", b"close")
        cast(Any, request.channel).persistent = False
    request.setHeader(b"Content-Type", b"application/json")
    request.setHeader(b"Content-Length", b"%d" % len(body))
    request.setHeader(b"Cache-Control", b"no-store")
    return b"" if request.method == b"HEAD" else body


def _finish(request: Request, body: bytes) -> None:
    if body:
        request.setHeader(b"Content-Length", b"%d" % len(body))
        request.write(body)
    request.finish()


# --- the pages ------------------------------------------------------------------------------------


MAX_BODY_BYTES = 16 * 1024

#: A URL, or a header, may have a token of `/changes` for 1,024 vBuckets.
MAX_LINE_BYTES = 48 * 1024
REQUEST_S = 10.0
MAX_CLIENTS = 144

#: No more than one in this many of the node's open files are connections for pages.
FILES_PART = 3

#: When a client that was refused for lack of room may come again.
RETRY_S = 5

SETTING = "server.http"
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"

_FILES = {
    b"/": ("page.html", "text/html; charset=utf-8"),
    b"/page.css": ("page.css", "text/css; charset=utf-8"),
    **{
        b"/%s.js" % name: (f"{name.decode()}.js", "text/javascript; charset=utf-8")
        for name in (b"draw", b"panels", b"summary", b"page")
    },
}

#: The page needs nothing from elsewhere, and no text that is written into it is run.
_POLICY = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:"
)

_WRONG_LISTENER = b"This is the HTTP listener: "

_log = Log("http")

Answer = tuple[int, str, bytes]
#: What a page returns; ``None`` = it is answered bit by bit.
Page = Callable[[Request], Answer | None]


def json_answer(code: int, value: object) -> Answer:
    """Make an answer of anything JSON can say; what it cannot is written as text."""
    return code, _JSON, json.dumps(value, default=str).encode() + b"\n"


_FAILED = json_answer(http.INTERNAL_SERVER_ERROR, {"error": "this page failed; see log"})


class Pages:
    """The pages by path, without HTTP around them."""

    def __init__(
        self, view: Statistics, endless: Endless | None = None, work: LongWork | None = None
    ) -> None:
        self._view = view
        self._work = work
        self._endless = endless or Endless({}, {})
        self._exposition = Exposition(view.metrics)
        self.by_path: dict[bytes, Page] = {
            b"/healthz": self._healthz,
            b"/readyz": self._readyz,
            b"/status.json": self._status,
            b"/events": self._events,
            b"/watermarks.json": self._watermarks,
            b"/vbucket.json": self._vbucket,
            b"/consumer.json": self._consumer,
            b"/metrics": self._metrics,
            **{path: _static(*file) for path, file in _FILES.items()},
        }

    def answer(self, request: Request) -> Answer | None:
        """Answer a request; a page that fails is a 500 here and a traceback in the log.

        ``None`` = the request is answered bit by bit.
        """
        endless = self._endless.find(request)
        page = self.by_path.get(request.path)
        if page is None and endless is None:
            known = [path.decode() for path in (*self.by_path, *self._endless.paths)]
            return json_answer(http.NOT_FOUND, {"error": "no such page", "pages": known})
        if request.method not in (b"GET", b"HEAD"):
            request.setHeader(b"Allow", b"GET, HEAD")
            return json_answer(http.NOT_ALLOWED, {"error": "only GET and HEAD work here"})
        try:
            return page(request) if endless is None and page else _begun(request, endless)
        except BadQuestion as error:
            return json_answer(http.BAD_REQUEST, {"error": str(error)})
        except Exception:
            _log.failure("page_failed", path=request.path)
            return _FAILED

    def listeners(self) -> str:
        """Return where the node listens, in one line."""
        found = cast(dict[str, str], self._view.status().get("listeners") or {})
        return " ".join(f"{name}={place}" for name, place in sorted(found.items()))

    def _healthz(self, request: Request) -> Answer:
        return http.OK, _TEXT, b"ok\n"

    def _readyz(self, request: Request) -> Answer:
        if self._view.ready():
            return json_answer(http.OK, {"ready": True})
        progress = self._view.status().get("warmup")
        return json_answer(http.SERVICE_UNAVAILABLE, {"ready": False, "warmup": progress})

    def _status(self, request: Request) -> Answer:
        return json_answer(http.OK, self._view.status())

    def _events(self, request: Request) -> Answer:
        return json_answer(http.OK, {"events": self._view.events()})

    def _vbucket(self, request: Request) -> Answer:
        return self._of_vbucket(request, self._view.vbucket)

    def _watermarks(self, request: Request) -> Answer:
        return self._of_vbucket(request, self._view.watermarks)

    def _of_vbucket(self, request: Request, facts: Callable[[str], dict[str, object]]) -> Answer:
        given = request.args.get(b"vbucket", [b""])[-1].decode("ascii", "replace")
        try:
            return json_answer(http.OK, facts(given))
        except NotMyVBucket:
            return json_answer(http.NOT_FOUND, {"error": "this node does not have that vBucket"})
        except InvalidArguments:
            return json_answer(http.BAD_REQUEST, {"error": "say ?vbucket= and its number"})

    def _metrics(self, request: Request) -> Answer | None:
        accept = request.getHeader("accept") or ""

        def steps() -> Generator[None, None, Answer]:
            page, content_type = yield from self._exposition.steps(accept)
            return http.OK, content_type, page

        return self._in_steps(request, steps())

    def _consumer(self, request: Request) -> Answer | None:
        name = request.args.get(b"name", [b""])[-1].decode("utf-8", "replace")

        def steps() -> Generator[None, None, Answer]:
            try:
                return json_answer(http.OK, (yield from self._view.consumer(name)))
            except StreamNotFound:
                return json_answer(http.NOT_FOUND, {"error": "no consumer has this name now"})

        return self._in_steps(request, steps())

    def _in_steps(self, request: Request, steps: Generator[None, None, Answer]) -> Answer | None:
        """Answer a request with what is made in steps, a little in each turn."""
        if self._work is None:
            return _at_once(steps)
        gone: list[object] = []
        request.notifyFinish().addErrback(gone.append)

        def answer(made: Answer) -> None:
            if not gone:
                request.write(_put(request, made))
                request.finish()

        def failed(why: Failure) -> Answer:
            _log.error("page_failed", path=request.path, error=why.getErrorMessage())
            return _FAILED

        self._work.do(steps).addErrback(failed).addCallback(answer)
        return None


def _at_once(steps: Generator[None, None, Answer]) -> Answer:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(Answer, end.value)


def _begun(request: Request, admit: Admit | None) -> Answer | None:
    """Begin an answer without an end."""
    if request.method == b"HEAD" or admit is None:
        return http.OK, EVENT_STREAM, b""
    if admit(request):
        return None
    request.setHeader(b"Retry-After", b"%d" % RETRY_S)
    return json_answer(http.SERVICE_UNAVAILABLE, {"error": "too many readers; try again later"})


class _Root(Resource):
    """Every path ends here."""

    isLeaf = True

    def __init__(self, pages: Pages) -> None:
        super().__init__()
        self._pages = pages

    def render(self, request: Request) -> bytes:
        answer = self._pages.answer(request)
        if answer is None:
            return cast(bytes, NOT_DONE_YET)
        return _put(request, answer)


def _put(request: Request, answer: Answer) -> bytes:
    """Set the headers of an answer; return what follows them."""
    code, content_type, body = answer
    request.setResponseCode(code)
    request.setHeader(b"Content-Type", content_type.encode())
    request.setHeader(b"Content-Length", b"%d" % len(body))
    request.setHeader(b"Cache-Control", b"no-store")
    request.setHeader(b"Content-Security-Policy", _POLICY)
    request.setHeader(b"X-Content-Type-Options", b"nosniff")
    return b"" if request.method == b"HEAD" else body


def _static(name: str, content_type: str) -> Page:
    body = files("uprmc.server").joinpath("page", name).read_bytes()
    return lambda _: (http.OK, content_type, body)


def _clients_max(settings: HttpSettings) -> int:
    return share_of_files(MAX_CLIENTS + settings.readers, FILES_PART)


def reserved_files(settings: Settings) -> int:
    """Return how many descriptors a node needs beside client connections, by what is on."""
    if settings.server.http == "off":
        return RESERVED_FILES
    return RESERVED_FILES + _clients_max(settings.http) + settings.http.stream_files


def node_site(
    view: Statistics,
    reactor: Any,
    endless: Endless | None = None,
    work: LongWork | None = None,
    settings: HttpSettings | None = None,
    account: Account | None = None,
    hosts: KnownHosts | None = None,
) -> LimitedSite:
    """Return the site of one node."""
    pages = Pages(view, endless, work)
    return LimitedSite(
        cast(IResource, _Root(pages)),
        reactor,
        hint=lambda: _WRONG_LISTENER + pages.listeners().encode(),
        request_s=REQUEST_S,
        clients_max=_clients_max(settings or HttpSettings()),
        body_max=MAX_BODY_BYTES,
        line_max=MAX_LINE_BYTES,
        account=account,
        hosts=hosts,
        open_paths=OPEN_PATHS,
    )


def known_hosts(settings: ServerSettings, *places: str) -> KnownHosts:
    """Return the names by which the listeners for HTTP may be called.

    `places` are others by which this machine is known, as HOST:PORT.
    """
    names = [*settings.http_hosts.split(","), gethostname()]
    for place in (settings.http, settings.views, *places):
        with suppress(ValueError):  # off, or an endpoint
            names.append(parsed(place.strip(), least_port=0).host)
    return KnownHosts(names, "server.http_hosts")
