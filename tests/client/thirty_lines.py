"""What a stranger writes: mirror every document of a node into an SQLite table.

Usage: python -m tests.client.thirty_lines HOST:PORT DATABASE
"""

import sqlite3
import sys

from uprmc.client import Handler, SqliteState, UprClient


class Mirror(Handler):
    def __init__(self, database):
        self.database = database
        database.execute(
            "CREATE TABLE IF NOT EXISTS mirror (vb, key, value, PRIMARY KEY (vb, key))"
        )
        database.commit()

    def put(self, vbucket, key, value):
        self.database.execute("REPLACE INTO mirror VALUES (?, ?, ?)", (vbucket, key, value))

    def remove(self, vbucket, key):
        self.database.execute("DELETE FROM mirror WHERE vb = ? AND key = ?", (vbucket, key))

    def mutation(self, change):
        self.put(change.vbucket, change.key, change.value)

    def deletion(self, change):
        self.remove(change.vbucket, change.key)

    def undo(self, vbucket, key, document):
        self.remove(vbucket, key) if document is None else self.put(vbucket, key, document.value)

    def rollback(self, vbucket, seqno):
        if seqno == 0:
            self.database.execute("DELETE FROM mirror WHERE vb = ?", (vbucket,))


if __name__ == "__main__":
    database = sqlite3.connect(sys.argv[2])
    state = SqliteState(database, name="mirror")
    UprClient(sys.argv[1], Mirror(database), state=state, patience_s=None).run()
