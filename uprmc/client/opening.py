"""Opening a connection to a node: the login, and the handshake with the features to be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from uprmc.client.ask import Ask, Rest, Task
from uprmc.client.connection import WANTS_LOGIN
from uprmc.client.errors import OpenRefused
from uprmc.connecting import new_nonce
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import LoginRefused
from uprmc.places import parsed
from uprmc.protocol import control
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode, OpenFlag, Status
from uprmc.remote import features
from uprmc.remote.cluster_map import ClusterMap, map_of
from uprmc.remote.login import login_in_turns


class Opened(NamedTuple):
    """What a handshake has found out.

    Attributes:
        granted: CONTROL keys that the node accepted.
        knows_terms: the node tells the terms of vBuckets.
        map: its cluster map; ``None`` = it has none that makes sense.
    """

    granted: set[bytes]
    knows_terms: bool
    map: ClusterMap | None


@dataclass(frozen=True, slots=True)
class Opening:
    """How to open a connection to the node at `place` (HOST:PORT), as the consumer `name`."""

    place: str
    name: str
    wants_values: bool
    buffer_bytes: int
    noop_interval_s: float
    credentials: Credentials | None
    tls: bool

    def log_in(self, *, in_turns: bool = False) -> Task:
        """Log in if there are credentials.

        Args:
            in_turns: others wait for their turn: yield a `Rest` now and then.

        Raises:
            OpenRefused: the node does not let this user in.
        """
        if self.credentials is None:
            return
        safe = self.tls or parsed(self.place).is_local
        steps = login_in_turns(self.credentials, new_nonce(), safe=safe, at_once=not in_turns)
        answer = None
        try:
            while True:
                request = steps.send(answer)
                if request is None:
                    answer = yield Rest()
                else:
                    (answer,) = yield Ask([request])
        except StopIteration:
            return
        except LoginRefused as error:
            raise OpenRefused(f"the node at {self.place} {error}") from None

    def handshake(self, *, registering: bool) -> Task:
        """Send everything at once, after a login if there is one; return what is `Opened`.

        Raises:
            OpenRefused: the node refuses the connection.
        """
        yield from self.log_in()
        name = self.name.encode()
        profile = features.PROGRAM.registering() if registering else features.PROGRAM
        controls = profile.controls(buffer_bytes=self.buffer_bytes, interval_s=self.noop_interval_s)
        greeted, opened, *granted, cluster_map = yield Ask(
            [
                features.PROGRAM.hello(name),
                features.PROGRAM.open(name, 0 if self.wants_values else OpenFlag.NO_VALUE),
                *controls,
                RequestFrame(Opcode.GET_CLUSTER_CONFIG),
            ]
        )
        self._check(opened)
        return _opened(greeted, features.granted(controls, granted), cluster_map)

    def _check(self, opened: ResponseFrame) -> None:
        if opened.status == Status.AUTH_ERROR:
            raise OpenRefused(f"the node at {self.place} {WANTS_LOGIN}")
        if opened.status:
            denied = opened.status == Status.ACCESS_DENIED
            refused = OpenRefused(
                f"the node at {self.place} refuses to open a stream connection: {opened.reason}"
                + ("" if denied else "; see its log and the consumer's name")
            )
            raise refused if self.tls else refused.doubting(self.place)


def _opened(greeted: ResponseFrame, granted: set[bytes], cluster_map: ResponseFrame) -> Opened:
    knows_terms = features.tells_terms(greeted.status, greeted.value)
    if not knows_terms:  # some producers grant every CONTROL
        granted -= {control.STREAM_REQUESTS, control.WATERMARKS, control.REPORTS}
    return Opened(granted, knows_terms, map_of(cluster_map))
