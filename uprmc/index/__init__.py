"""Incremental map/reduce over a node's documents: design documents, views, queries.

The index is a process of its own, in the node's company or elsewhere. It reads everything from UPR
streams by the client library, keeps one append-only file for each design, and answers over HTTP.

Rows I01 to I30.
"""
