"""Count the documents of a node by the prefix of their keys: what stands before the first colon.

    python examples/count_by_prefix.py HOST:PORT[,HOST:PORT...] counts.db
    sqlite3 counts.db 'SELECT * FROM counts'

To add one is not harmless when done twice: counts, keys and the position in the streams are written
in the same transactions. So they are right through restarts, crashes and rollbacks.
"""

import signal
import sqlite3
import sys

from uprmc.client import Handler, SqliteState, UprClient
from uprmc.client.errors import ClientError

KEYS = "CREATE TABLE IF NOT EXISTS keys (vbucket INTEGER, key BLOB, PRIMARY KEY (vbucket, key))"
COUNTS = "CREATE TABLE IF NOT EXISTS counts (prefix BLOB PRIMARY KEY, documents INTEGER)"
COUNT = """INSERT INTO counts VALUES (?, ?)
    ON CONFLICT (prefix) DO UPDATE SET documents = documents + excluded.documents"""


class Counter(Handler):
    def __init__(self, database):
        self.ask = database.execute
        self.ask(KEYS)
        self.ask(COUNTS)

    def add(self, vbucket, key):
        new = self.ask("INSERT OR IGNORE INTO keys VALUES (?, ?)", (vbucket, key)).rowcount
        self.ask(COUNT, (key.partition(b":")[0], new))

    def remove(self, vbucket, key):
        gone = self.ask("DELETE FROM keys WHERE vbucket = ? AND key = ?", (vbucket, key)).rowcount
        self.ask(COUNT, (key.partition(b":")[0], -gone))

    def mutation(self, change):
        self.add(change.vbucket, change.key)

    def deletion(self, change):
        self.remove(change.vbucket, change.key)

    def undo(self, vbucket, key, document):
        (self.add if document else self.remove)(vbucket, key)

    def rollback(self, vbucket, seqno):
        if seqno == 0:
            for (key,) in self.ask("SELECT key FROM keys WHERE vbucket = ?", (vbucket,)).fetchall():
                self.remove(vbucket, key)


def main(nodes, path):
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")  # who reads does not keep us waiting
    state = SqliteState(database, name="count-by-prefix")
    options = {"name": "count-by-prefix", "values": False}
    client = UprClient(nodes.split(","), Counter(database), state=state, **options)
    signal.signal(signal.SIGINT, lambda *_: client.stop())
    client.run()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ClientError as error:
        sys.exit(str(error))
