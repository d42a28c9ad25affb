"""The group about the process that answers for `server.views`."""

from __future__ import annotations

from uprmc.kv.services import StatGroup
from uprmc.server.observed import ObservedNode


def index(node: ObservedNode) -> StatGroup:
    """Return where it listens, and how it is; what it has indexed it tells itself."""
    driver = node.index
    return [
        ("views", driver.address),
        ("views_tls", "yes" if driver.https else "no"),
        ("state", driver.state),
        ("pid", str(driver.pid)),
        ("restarts", str(driver.restarts)),
        ("error", driver.error),
    ]


def page(node: ObservedNode) -> dict[str, object]:
    """Return the same for ``/status.json``."""
    driver = node.index
    return {**dict(index(node)), "pid": driver.pid, "restarts": driver.restarts}
