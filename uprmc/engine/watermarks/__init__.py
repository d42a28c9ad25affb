"""Watermarks: who consumes a vBucket, how far, and therefore which deletions must be kept.

A client that registers has a **row** for each vBucket that it follows. Its **watermark** says that
every change up to there is durable at the client. No tombstone above the least watermark is dropped
for good, so a registered client never misses a deletion.

``rows`` has the rules of one row and of the limit, ``table`` those of one vBucket, ``registry`` all
tables of a node and when they are written, and ``recent`` what is remembered of what has gone.
"""
