"""A client of Spark Connect, in a process of its own: one process has one kind of Spark.

Arguments: the Connect server's place, a node. Run by `test_connect`.
"""

import json
import sys

import uprmc.spark
from uprmc.spark.session import session


def main(remote: str, servers: str) -> None:
    spark = session(remote=remote)
    rows = uprmc.spark.read(spark, servers, columns="key,value")
    read = {row["key"]: bytes(row["value"]).decode() for row in rows.collect()}
    made = spark.range(100).selectExpr("concat('c-', id) as key", "concat('', id) as value")
    made.write.format("uprmc").mode("append").option("servers", servers).save()
    report = uprmc.spark.write(made.limit(10), servers, "insert")
    print(json.dumps({"read": read, "report": report.to_dict()}))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
