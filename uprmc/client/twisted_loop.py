"""One run of the Twisted client: the coroutine that calls the rules, and its connections.

`Loop.run` is the only one who calls the rules; links put what they hear where it looks. So nothing
of the rules runs within anything else of them, whatever the reactor does meanwhile.

A batch is what the reactor has read until nothing more was there, or until a link is full.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from twisted.internet.defer import Deferred, ensureDeferred, fail

from uprmc.client.ask import Task
from uprmc.client.barriers import Barrier
from uprmc.client.bursts import GATHER_GAP_S
from uprmc.client.core import UprCore
from uprmc.client.errors import ClientError, MisuseError, WaitedTooLong
from uprmc.client.starting import FAREWELL_S, check_patience, connection_ended
from uprmc.client.twisted_link import Link, MakeEndpoint
from uprmc.places import parsed

#: While a handler is busy, keep-alives are looked for so often in their interval.
_LOOKS = 4

#: The time is told to the rules so often, when nothing else happens.
_TURN_S = 0.1


class Loop:
    """One `run`: its connections, and the coroutine that calls the rules.

    Attributes:
        core: the rules.
        held: something that the handler returned has not fired yet.
        heard: counts what has come.
        ended: nothing of it is left.
    """

    def __init__(
        self,
        core: UprCore,
        give_back: Callable[[], None],
        reactor: Any,
        endpoint: MakeEndpoint,
        connect_timeout_s: float,
        patience_s: float | None,
    ) -> None:
        self.core = core
        self.held = self.ended = False
        self.heard = 0
        self._give_back = give_back
        self._reactor = reactor
        self._endpoint = endpoint
        self._connect_timeout_s = connect_timeout_s
        self._patience_s = patience_s
        self._links: list[Link] = []
        self._leaving: set[Link] = set()
        self._stopping = False
        self._period_s = core.options.noop_interval_s / _LOOKS
        self._looking: Any = None
        self._waiting: Deferred[None] | None = None
        self._barriers: list[tuple[Barrier, Deferred[None]]] = []
        self._stopped: list[Deferred[None]] = []

    def cancelled(self, _: object) -> None:
        """Nobody waits for the end any more."""
        self.stop()

    def stop(self) -> Deferred[None]:
        """End; fires when it has ended."""
        self._stopping = True
        stopped: Deferred[None] = Deferred()
        self._stopped.append(stopped)
        self.hear()
        return stopped

    # --- barriers -------------------------------------------------------------------------------

    def barrier(self, text: str | None) -> Deferred[None]:
        """Return what fires when a barrier is reached, or broken."""
        barrier = self.core.barrier(text)
        if barrier.error is not None:
            return fail(barrier.error)
        waiting: Deferred[None] = Deferred(lambda _: self.core.forget_barrier(barrier))
        self._barriers.append((barrier, waiting))
        self.hear()
        return waiting

    def _tell_barriers(self) -> None:
        found, self._barriers = self._barriers, []
        for barrier, waiting in found:
            if waiting.called:  # nobody waits any more
                continue
            if not barrier.done:
                self._barriers.append((barrier, waiting))
            elif barrier.error is None:
                waiting.callback(None)
            else:
                waiting.errback(barrier.error)

    # --- waiting --------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the coroutine look around."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)

    def hear(self) -> None:
        """Something has come, from a connection or the program."""
        self.heard += 1
        self.wake()

    async def _wait(self, limit_s: float) -> None:
        """Wait until something happens, `limit_s` at most."""
        waiting = self._waiting = Deferred()
        timer = self._reactor.callLater(limit_s, self.wake)
        try:
            await waiting
        finally:
            if timer.active():
                timer.cancel()

    async def _gather(self) -> None:
        """Let the reactor read until nothing more is there, or a batch is full."""
        heard = -1
        while heard != self.heard and not any(link.paused for link in self._links):
            heard = self.heard
            turn: Deferred[None] = Deferred()
            self._reactor.callLater(0, turn.callback, None)
            await turn

    # --- the loop -------------------------------------------------------------------------------

    async def run(self, reached: Callable[[], bool] | None, timeout_s: float | None) -> None:
        """Go on until told otherwise, then clean up."""
        self._looking = self._reactor.callLater(self._period_s, self._look)
        try:
            await self._follow(reached, timeout_s)
            await self._drive(self.core.idle())
            with suppress(ClientError):  # all is saved; it is reported when it runs again
                await self._report_rest()
        except BaseException:
            abandon = getattr(self.core.writer.state, "abandon", None)
            if abandon is not None:
                abandon()
            raise
        finally:
            await self._clean_up()

    async def _follow(self, reached: Callable[[], bool] | None, timeout_s: float | None) -> None:
        began = time.monotonic()
        while not self._stopping and not self.core.completeness.finished:
            now = time.monotonic()
            if timeout_s is not None and now - began > timeout_s:
                raise WaitedTooLong(f"the client has run for {timeout_s:g} s")
            check_patience(self.core, self._patience_s, now - began, now)
            await self._drive(self.core.turn(now))
            self._dial(now)
            self._look_after(now)
            if reached is not None and reached():
                break
            await self._wait_and_serve()

    async def _report_rest(self) -> None:
        """Tell the nodes what is saved; wait for their answers if they send nothing else."""
        until = time.monotonic() + FAREWELL_S
        while time.monotonic() < until:
            waits = self.core.report_rest()
            self._look_after(time.monotonic())
            if not waits:
                return
            if not self.core.completeness.finished:
                await self._wait(0)  # a turn, in which what was written leaves
                return
            await self._wait_and_serve()

    async def _wait_and_serve(self) -> None:
        heard = self.heard
        await self._gather()
        if heard == self.heard and not self._stopping:
            await self._drive(self.core.idle(time.monotonic()))
            self._tell_barriers()
            if heard == self.heard:
                await self._wait(GATHER_GAP_S if self.core.is_gathering else _TURN_S)
                await self._gather()
        for link in list(self._links):
            if self._stopping:
                return
            await self._serve(link)
        self._tell_barriers()

    async def _serve(self, link: Link) -> None:
        """Deal with what has come from a connection."""
        try:
            if link.ready and link.session is None:
                link.session = await self._drive(self.core.connected(link.place, time.monotonic()))
            data = link.take()
            if data and link.session is not None:
                await self._drive(self.core.received(link.session, data, time.monotonic()))
            if link.lost is not None:
                raise link.lost
            self._send(link)
        except ClientError as error:
            self._ended(link, error)

    def _look_after(self, now: float) -> None:
        """Send what is to be sent, hang up where need be."""
        for link in list(self._links):
            try:
                link.too_late(now)
                if link.session is not None and link.session.error is not None:
                    raise link.session.error
                self._send(link)
            except ClientError as error:
                self._ended(link, error)

    def _send(self, link: Link) -> None:
        data = link.session.data_to_send() if link.session is not None else b""
        if data:
            cast(Any, link.transport).write(data)

    def _dial(self, now: float) -> None:
        for place in self.core.due(now):
            where = parsed(place)
            endpoint = self._endpoint(self._reactor, where.path or where.host, where.port)
            link = Link(self, place, now + self._connect_timeout_s)
            self._links.append(link)
            link.dial(endpoint)

    def _ended(self, link: Link, error: ClientError) -> None:
        self._hang_up(link)
        connection_ended(self.core, link.place, link.session, error, time.monotonic())

    # --- handlers -------------------------------------------------------------------------------

    async def _drive(self, task: Task) -> Any:
        """Run rules to their end, waiting for what the handler returns."""
        try:
            found = next(task)
            while True:
                try:
                    result = await self._result_of(found)
                except Exception as error:
                    found = task.throw(error)
                else:
                    found = task.send(result)
        except StopIteration as ended:
            return ended.value

    async def _result_of(self, found: Any) -> Any:
        try:
            waited_for = ensureDeferred(found)
        except TypeError:
            raise MisuseError(
                f"the handler returned {type(found).__name__}: its methods return nothing, a "
                "Deferred or a coroutine"
            ) from None
        if any(waited_for is waiting for _, waiting in self._barriers):
            raise MisuseError("a handler cannot wait for a barrier: it is what would have to run")
        self.held = True
        try:
            return await waited_for
        finally:
            self.held = False

    def _look(self) -> None:
        """Answer keep-alives in the place of a coroutine that waits for a handler."""
        self._looking = self._reactor.callLater(self._period_s, self._look)
        for link in self._links if self.held else ():
            link.hear_ahead()

    # --- the end --------------------------------------------------------------------------------

    async def _clean_up(self) -> None:
        """Leave no socket and no delayed call behind."""
        self._stopping = True
        self._looking.cancel()
        self.core.close()
        self._tell_barriers()
        for link in list(self._links):
            self._hang_up(link)
        while self._leaving:
            await self._wait(_TURN_S)
        self.end()
        for stopped in self._stopped:
            stopped.callback(None)

    @property
    def held_bytes(self) -> int:
        """What has come and was not handed over yet."""
        return sum(link.held_bytes for link in self._links)

    def end(self) -> None:
        """Nothing is left of it: another run may have the state."""
        self.ended = True
        self._give_back()

    def _hang_up(self, link: Link) -> None:
        self._links.remove(link)
        if not link.gone:
            self._leaving.add(link)
            link.hang_up()

    def left(self, link: Link) -> None:
        """Nothing of a connection is left in the reactor."""
        self._leaving.discard(link)
        self.hear()
