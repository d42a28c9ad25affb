"""Lets Spark find ``format("uprmc")`` by itself.

Spark imports every installed top-level module whose name begins with ``pyspark_`` at the first
lookup of any format, and registers its `DefaultSource`. So this must be quick and must not fail.
"""

from uprmc.spark.source import UprmcDataSource as DefaultSource

__all__ = ["DefaultSource"]
