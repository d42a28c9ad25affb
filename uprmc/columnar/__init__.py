"""Nodes to Arrow and back: leases, streams and writes as columns; no pyspark."""
