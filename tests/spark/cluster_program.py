"""What a user submits to a cluster where nobody installed uprmc: ``--py-files uprmc_spark.zip``.

Arguments: servers, file for what came of it. Run by `test_cluster`.
"""

import json
import sys

from pyspark.sql import SparkSession

import uprmc.spark


def seen(_):  # type: ignore[no-untyped-def]
    """Tell where a worker has uprmc from, and what it has that it should not need."""
    import importlib.util

    import uprmc

    names = ("twisted", "sortedcontainers", "pandas", "uprmc.engine")
    others = [name for name in names if importlib.util.find_spec(name) is not None]
    return uprmc.__file__, others


def main(servers: str, out: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    uprmc.spark.register(spark)
    rows = spark.read.format("uprmc").option("servers", servers).option("numPartitions", 2).load()
    workers = spark.sparkContext.parallelize(range(4), 4).map(seen).collect()
    read = {row["key"]: bytes(row["value"]).decode() for row in rows.collect()}
    made = spark.range(0, 300, 1, 2).selectExpr("concat('w-', id) as key", "concat('', id) value")
    made.write.format("uprmc").mode("append").option("servers", servers).save()
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"workers": workers, "read": read}, file)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
