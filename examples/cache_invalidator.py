"""Drop keys from a memcached cache as soon as their documents change on a node.

    python examples/cache_invalidator.py HOST:PORT[,HOST:PORT...] CACHE:PORT invalidator.db

Keys are dropped, and the cache has said so, before the position in the streams is saved: after a
crash some are dropped again, and none is forgotten. What was changed while this program was down is
dropped when it is back. What it cannot know of is who reads a document and puts it into the cache
too late, after it has changed again or the node has lost it: give what you cache a lifetime.
"""

import os
import signal
import sys

from pymemcache import Client, MemcacheError

from uprmc.client import Handler, UprClient
from uprmc.client.errors import ClientError

AT_ONCE = 1000


class Invalidator(Handler):
    def __init__(self, cache):
        self.cache = cache
        self.keys = []

    def drop(self, key):
        if all(33 <= byte != 127 for byte in key):  # others cannot be named to a cache
            self.keys.append(key)
        if len(self.keys) >= AT_ONCE:
            self.finish()

    def finish(self):
        self.cache.delete_many(self.keys, noreply=False)
        self.keys.clear()

    def mutation(self, change):
        self.drop(change.key)

    def deletion(self, change):
        self.drop(change.key)

    def snapshot_end(self, vbucket, end):
        self.finish()

    def undo(self, vbucket, key, document):
        self.drop(key)
        self.finish()

    def rollback(self, vbucket, seqno):
        if seqno == 0:
            self.cache.flush_all(noreply=False)


def main(nodes, place, path):
    cache = Client(place, timeout=10)
    if not os.path.exists(path):
        cache.flush_all(noreply=False)  # nobody knows what is in it
    with UprClient(
        nodes.split(","), Invalidator(cache), state=path, name="invalidator", values=False
    ) as client:
        signal.signal(signal.SIGINT, lambda *_: client.stop())
        client.run()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (ClientError, MemcacheError, OSError) as error:
        sys.exit(str(error))
