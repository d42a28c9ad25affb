"""Every option of the source and the sink: name, meaning, default, limits. The one list of them.

`options` reads what a user gave by these tables, the command line and ``docs/spark.md`` show them.
Names are Spark's way of writing them; case, ``_`` and ``-`` make no difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uprmc import places, units
from uprmc.columnar.write_options import WINDOW_BYTES_MAX, WINDOW_MAX
from uprmc.consume import ranges

#: Where an option has a meaning.
BATCH, STREAM = "batch", "stream"


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: as documentation writes it.
        read: turns the text into the value; `ValueError` says what was expected.
        default: the text that stands for it when nobody gives it; empty = it has none.
        help: one line.
        least, most: of a number, both allowed.
        secret: its text is never shown.
        only: ``batch`` or ``stream``, if it has no meaning in the other one.
        aliases: other names.
    """

    name: str
    read: Callable[[str], Any]
    default: str
    help: str
    least: float = -math.inf
    most: float = math.inf
    secret: bool = False
    only: str = ""
    aliases: tuple[str, ...] = ()

    def known_as(self) -> tuple[str, ...]:
        """Return its names as they are looked up."""
        return tuple(plain(each) for each in (self.name, *self.aliases))


def plain(name: str) -> str:
    """Return a name without what makes no difference."""
    return name.lower().replace("_", "").replace("-", "")


_GIB = 2**30

ACCESS = (
    Option(
        "servers",
        places.several,
        "",
        "HOST:PORT of one or several nodes' upr listeners; the others are learnt from them.",
        aliases=("server", "path"),
    ),
    Option("bucket", units.text, "", "Bucket to select on each connection."),
    Option("username", units.text, "", "User name (SASL PLAIN).", aliases=("user",)),
    Option(
        "password",
        units.text,
        "",
        "Password; options can be seen in Spark's plans, so prefer the next two.",
        secret=True,
    ),
    Option("passwordFile", units.text, "", "File whose first line is the password."),
    Option("passwordEnv", units.text, "", "Environment variable that holds the password."),
    Option("tls", units.switch, "", "Speak TLS; without it, when a TLS file is given."),
    Option("tlsCaFile", units.text, "", "Certificates to trust (PEM) in place of the system's."),
    Option("tlsCertFile", units.text, "", "Certificate of ours (PEM)."),
    Option("tlsKeyFile", units.text, "", "Its private key (PEM)."),
    Option("tlsVerify", units.switch, "true", "Check the node's certificate and host name."),
    Option(
        "connectTimeout",
        units.seconds,
        "5",
        "Seconds until an attempt to connect is given up.",
        0.01,
        3600,
    ),
    Option(
        "readTimeout", units.seconds, "60", "Seconds of silence after which a node is gone.", 0.1
    ),
    Option("flowControlBytes", units.size, "10m", "What a node may send ahead.", 65_536, _GIB),
    Option("clientId", units.text, "", "Name of this reader in the nodes' statistics."),
)

_CONNECTING = (
    Option(
        "retries", units.whole, "5", "How often a lost connection is tried again.", 0, 1_000_000
    ),
    Option(
        "retryBackoff",
        units.seconds,
        "0.1",
        "Seconds before the first retry, doubling to 5.",
        0,
        60,
    ),
)

READ = (
    *ACCESS,
    *_CONNECTING,
    Option("columns", units.names, "", "The columns to have; others are not made."),
    Option("noValue", units.switch, "false", "Leave the values with the node."),
    Option(
        "numPartitions",
        units.whole,
        "",
        "Tasks at most; else 2 for each processor here, fewer for few documents.",
        1,
        ranges.VBUCKETS_MAX,
        only=BATCH,
        aliases=("parallelism",),
    ),
    Option("vbuckets", ranges.parsed, "", "Only these: 0-511,600."),
    Option(
        "pushdown",
        units.switch,
        "false",
        "Let the source apply filters (needs spark.sql.python.filterPushdown.enabled).",
        only=BATCH,
    ),
    Option(
        "snapshot",
        units.one_of("complete", "held", "bounded"),
        "complete",
        "complete: each task one moment; held: all tasks and retries one moment; bounded: no "
        "change after the planning.",
        only=BATCH,
    ),
    Option("lease", units.text, "", "Token of a lease that is held: read that.", only=BATCH),
    Option("leaseSeconds", units.whole, "600", "Lifetime of leases.", 5, 86_400),
    Option(
        "startingOffsets",
        units.text,
        "earliest",
        "earliest, latest, JSON, or a backup's manifest.",
    ),
    Option(
        "endingOffsets",
        units.text,
        "latest",
        "With snapshot=bounded: latest, JSON, or a backup's manifest.",
        only=BATCH,
    ),
    Option("maxRowsPerTrigger", units.whole, "", "Rows of a micro-batch, about.", 1, only=STREAM),
    Option("maxBytesPerTrigger", units.size, "", "Bytes of a micro-batch, about.", 1, only=STREAM),
    Option(
        "onRollback",
        units.one_of("fail", "rewind", "restart"),
        "fail",
        "When history branched below: stop, go back to there, or read that vBucket anew; a control "
        "row says so.",
        only=STREAM,
    ),
    Option(
        "failOnDataLoss",
        units.switch,
        "true",
        "Stop when deletions were dropped unseen, or a vBucket is on no node.",
    ),
    Option(
        "keyType", units.one_of("string", "binary"), "string", "Type of column key.", aliases=()
    ),
    Option(
        "mode",
        units.one_of("FAILFAST", "PERMISSIVE", "DROPMALFORMED"),
        "FAILFAST",
        "Keys that are not UTF-8: stop, write their bytes as \\xNN, or leave the rows out.",
    ),
    Option(
        "u64",
        units.one_of("signed", "decimal"),
        "signed",
        "Type of unsigned 64-bit numbers: long with sign, or decimal(20,0).",
    ),
    Option("batchRows", units.whole, "10000", "Rows of an Arrow batch at most.", 1, 1_000_000),
    Option("batchBytes", units.size, "8m", "Bytes of an Arrow batch, about.", 1_024, _GIB),
)

WRITE = (
    *ACCESS,
    Option(
        "writeMode",
        units.one_of("upsert", "insert", "append-meta", "delete", aliases={"meta": "append-meta"}),
        "upsert",
        "upsert; insert: only what is not there; append-meta: with _rev and _cas, a replay applies "
        "nothing; delete.",
    ),
    Option("keyColumn", units.text, "key", "Column of the keys, string or binary."),
    Option("valueColumn", units.text, "value", "Column of the values, string or binary."),
    Option("flagsColumn", units.text, "", "Column of the flags (upsert and insert)."),
    Option("ttlColumn", units.text, "", "Column of the seconds to live."),
    Option("expColumn", units.text, "", "Column of the expiry, Unix seconds."),
    Option("window", units.whole, "1000", "Requests before answers are awaited.", 1, WINDOW_MAX),
    Option(
        "windowBytes", units.size, "1m", "Bytes of requests before that.", 1_024, WINDOW_BYTES_MAX
    ),
    Option(
        "retries",
        units.whole,
        "300",
        "Rounds without progress before it is given up.",
        0,
        1_000_000,
    ),
    Option(
        "retryBackoff",
        units.seconds,
        "0.005",
        "Seconds before the first, doubling to 0.5.",
        0,
        60,
    ),
    Option("retryDeadline", units.seconds, "120", "Seconds without progress, likewise.", 0, 86_400),
    Option(
        "onError",
        units.one_of("fail", "skip", "file"),
        "fail",
        "Rows that cannot be written: stop, count, or write them to errorsPath.",
    ),
    Option("errorsPath", units.text, "", "Directory for the rows that were not written."),
    Option("maxErrors", units.whole, "", "Stop over so many such rows.", 0),
    Option(
        "ignoreNullValue",
        units.one_of("fail", "skip", "delete"),
        "fail",
        "Rows without value: an error, left out, or a deletion.",
    ),
    Option(
        "durability",
        units.one_of("none", "persist"),
        "persist",
        "A task ends when its documents are on the nodes' disks; none: when they are accepted.",
    ),
    Option("valueLimit", units.size, "20m", "Larger values are errors.", 0, _GIB),
    Option("rateLimit", units.whole, "", "Rows a second of each task.", 1, aliases=("rate",)),
    Option("dryRun", units.switch, "false", "Check and count, send nothing."),
    Option("force", units.switch, "false", "append-meta without conflict resolution."),
    Option("reportPath", units.text, "", "JSON file for the report, on the driver."),
)

#: What Spark itself puts among the options of a source or sink.
OF_SPARK = frozenset({"checkpointlocation", "queryname", "outputmode", "pathoptionbeforesetcheck"})
