"""What those raise who ask nodes: programs, verbs, Spark jobs, backups.

Every text is one line that says what happened and what to do. Each kind has a code word that stays
the same: jobs and operators look for it. Where an error leaves us as text (a worker of Spark, a
verb for many documents), the text begins with the code word: `shows_code`.
The page of errors in the reference is made from these classes: their first paragraph is for users.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from uprmc.errors import UprmcError


class ClientError(UprmcError):
    """Root of what the asking side raises by itself."""

    code: ClassVar[str] = "UPRMC_FAILED"
    shows_code = False

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"{self.code} {self.text}" if self.shows_code else self.text


class NodeError(ClientError):
    """A node cannot be reached, refuses, or its answer makes no sense."""


# --- it cannot be asked ---------------------------------------------------------------------------


class NodeUnavailable(NodeError):
    """No node can be used."""


class NodeUnreachable(NodeUnavailable):
    """No node answers there, or the connection to it was lost: asking again may help."""

    code = "UPRMC_UNREACHABLE"


class Silent(NodeUnreachable):
    """A node took the connection and then said nothing for the whole time limit."""


class TlsFailed(NodeUnavailable):
    """One side speaks TLS and the other does not, or the certificate is not trusted."""

    code = "UPRMC_TLS"


class TlsCut(TlsFailed, NodeUnreachable):
    """The connection was lost while the two ends agreed on TLS: one of them may not speak it, or
    the node goes down at this moment.
    """


class LoginFailed(NodeUnavailable):
    """The node does not let the user in."""

    code = "UPRMC_AUTH"


class LoginWanted(LoginFailed):
    """The node serves users only, and no user has logged in; it hangs up."""


# --- it answers -----------------------------------------------------------------------------------


class Refused(NodeError):
    """A node answered with a status that trying again does not change."""

    code = "UPRMC_REFUSED"


class Busy(Refused):
    """A node warms up, or has too much to do: trying again helps."""


class StatisticsRefused(Refused):
    """The node does not tell a group of statistics."""


class NoSuchGroup(StatisticsRefused):
    """The node has no group of statistics with this name."""


class NotForgotten(Refused):
    """A node did not remove rows of a registered client, for example because it still runs.

    Attributes:
        vbuckets: in which.
    """

    def __init__(self, text: str, vbuckets: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.vbuckets = tuple(vbuckets)


class LeaseRefused(NodeError):
    """A lease is not granted, because the node has none, or too many are held; or it has ended.

    Attributes:
        status: what the node has answered, 0 = nothing.
    """

    code = "UPRMC_LEASE_REFUSED"

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class NodeNonsense(NodeError):
    """What a node sent is no memcached, no UPR, or contradicts itself."""

    code = "UPRMC_PROTOCOL"
