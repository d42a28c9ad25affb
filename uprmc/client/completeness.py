"""What "everything up to now" covers, what of it is lacking, and when it is no use to wait on.

Source: contracts reference 1.
"""

from __future__ import annotations

from uprmc.client.barriers import Barriers
from uprmc.client.errors import ClientError, not_active
from uprmc.client.nodes import Nodes
from uprmc.client.options import Options
from uprmc.client.position import Place
from uprmc.client.route_table import RouteTable


class Completeness:
    """Compares what has come with what there was.

    Attributes:
        began: when the consumer began to run, 0 = it has not.
    """

    def __init__(
        self, nodes: Nodes, table: RouteTable, barriers: Barriers, options: Options
    ) -> None:
        self.began = 0.0
        self._nodes = nodes
        self._table = table
        self._barriers = barriers
        self._options = options

    @property
    def finished(self) -> bool:
        """Whether everything has come that was there, if that is the end."""
        routes = self._table.routes
        return (
            self._options.until_now
            and bool(routes)
            and self._nodes.all_asked()
            and bool(self._nodes.sessions())
            and all(route.done for route in routes.values())
        )

    def hopeless(self, now: float, patience_s: float) -> ClientError | None:
        """Return why what was there will not come, if it is to be waited for no longer.

        Only a consumer that is to end asks too much of a vBucket that can be had nowhere: for
        others a node may be promoted one day.
        """
        table = self._table
        ends = self._options.until_now or not self._options.redial
        if not ends or not self._nodes.all_asked():
            return None
        if not table.routes and self.began and self.began + patience_s < now:
            return self._not_active([])
        late = [n for n in table.waiting if table.routes[n].off_at + patience_s < now]
        found = [number for number in sorted(late) if self._why_absent(number) is not None]
        return self._not_active(found) if found else None

    def give_up_barriers(self, now: float, patience_s: float) -> None:
        """Break the barriers that wait for vBuckets which can be had nowhere."""
        late = [each for each in self._barriers.unsent() if each.since + patience_s < now]
        if late and self._nodes.all_asked():
            found = [number for number in self.lacking() if self._why_absent(number) is not None]
            for barrier in late if found else ():
                self._barriers.give_up(barrier, self._not_active(found))

    def lacking(self) -> list[int]:
        """Return the vBuckets that are wanted and neither stream nor are done."""
        routes = self._table.routes
        named = self._options.vbuckets
        wanted = self._nodes.numbers() if named is None else named
        lacking = {n for n, route in routes.items() if not (route.streaming or route.done)}
        return sorted(lacking | (wanted - routes.keys()))

    def _why_absent(self, vbucket: int) -> str | None:
        """Return why a vBucket is not streamed, ``""`` = it is nowhere; ``None`` = it soon is."""
        route = self._table.routes.get(vbucket)
        place = route.place if route is not None else Place(vbucket)
        choice = self._nodes.choice(place)
        if route is not None and route.refusal:
            return route.refusal
        if choice.place or self._nodes.replica(vbucket) is not None:
            return None
        return choice.why if choice.claimed else ""

    def _not_active(self, vbuckets: list[int]) -> ClientError:
        why = {number: self._why_absent(number) for number in vbuckets}
        return not_active(
            [number for number, each in why.items() if not each],
            {number: each for number, each in why.items() if each},
            [node.place for node in self._nodes.all()],
            self._nodes.why_silent(),
        )
