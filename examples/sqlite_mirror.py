"""Mirror the documents of a node into a table of a SQLite database.

    python examples/sqlite_mirror.py HOST:PORT[,HOST:PORT...] mirror.db

The table and the position in the streams are written in the same transactions. So each change takes
effect exactly once, whatever is killed at whatever moment. Others may read the database meanwhile.
"""

import signal
import sqlite3
import sys

from uprmc.client import Handler, SqliteState, UprClient
from uprmc.client.errors import ClientError

TABLE = """CREATE TABLE IF NOT EXISTS documents
    (vbucket INTEGER, key BLOB, value BLOB, PRIMARY KEY (vbucket, key))"""


class Mirror(Handler):
    def __init__(self, database):
        self.database = database
        database.execute(TABLE)

    def put(self, vbucket, key, value):
        self.database.execute("REPLACE INTO documents VALUES (?, ?, ?)", (vbucket, key, value))

    def drop(self, vbucket, key):
        row = (vbucket, key)
        self.database.execute("DELETE FROM documents WHERE vbucket = ? AND key = ?", row)

    def mutation(self, change):
        self.put(change.vbucket, change.key, change.value)

    def deletion(self, change):
        self.drop(change.vbucket, change.key)

    def undo(self, vbucket, key, document):
        if document:
            self.put(vbucket, key, document.value)
        else:
            self.drop(vbucket, key)

    def rollback(self, vbucket, seqno):
        if seqno == 0:
            self.database.execute("DELETE FROM documents WHERE vbucket = ?", (vbucket,))


def main(nodes, path):
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")  # who reads does not keep us waiting
    state = SqliteState(database, name="sqlite-mirror")
    client = UprClient(nodes.split(","), Mirror(database), state=state, name="sqlite-mirror")
    signal.signal(signal.SIGINT, lambda *_: client.stop())
    client.run()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ClientError as error:
        sys.exit(str(error))
