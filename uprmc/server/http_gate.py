"""Who may ask for pages over HTTP: basic auth against the node's users, and a role for each page.

A password that was right is remembered for a while (`Access.check_once`), so that a program that
asks every few seconds costs no key derivation each time.
"""

# ruff: noqa: N815  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable
from typing import Any, cast

from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Request

from uprmc.errors import ConfigError
from uprmc.login.credentials import NAME_MAX_BYTES, PASSWORD_MAX_BYTES, Credentials
from uprmc.login.users import Role, User
from uprmc.server.access import PUT_OFF_S, Access, stays_here
from uprmc.server.adapter import peer_text
from uprmc.web import LimitedChannel, LimitedSite

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


def gate(site: LimitedSite, access: Access, listener: str, role_of: RoleOf) -> None:
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

    def __init__(self, root: IResource, access: Access, listener: str, role_of: RoleOf) -> None:
        super().__init__()
        self._root: Any = root
        self._access, self._listener = access, listener
        self._role_of = role_of
        self._open: dict[Request, User] = {}
        access.on_reload.append(self._look_again)

    def _look_again(self) -> None:
        """Cut off the answers to users who are gone or have changed; some have no end."""
        for request, user in list(self._open.items()):
            if self._access.find(user.name) != user:
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
        user = self._access.find(name)
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
