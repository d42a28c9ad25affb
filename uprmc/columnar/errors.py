"""Every way in which the Spark side fails, each with a code word that stays the same.

An exception that crosses from a worker into Spark arrives as text inside another exception, so the
text begins with the code word: jobs and operators can look for it. ``docs/spark-reference.md``
lists them.
"""

from __future__ import annotations

from typing import ClassVar

from uprmc.errors import ConfigError, UprmcError


class SparkError(UprmcError):
    """The work failed; the text is one line, beginning with the code word."""

    code: ClassVar[str] = "UPRMC_FAILED"

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"{self.code} {self.text}"


class BadOption(SparkError, ConfigError):
    """An option's name or value is wrong; the text names the nearest right one."""

    code = "UPRMC_OPTION"


class MissingPackage(SparkError, ConfigError):
    """pyspark, pyarrow or numpy is not installed."""

    code = "UPRMC_PACKAGES"


class JavaMissing(SparkError, ConfigError):
    """There is no Java, or one that is too old for Spark."""

    code = "UPRMC_JAVA"


class TaskFailed(SparkError):
    """A task failed again and again, or its process was killed each time."""

    code = "UPRMC_TASK"


def why(error: Exception) -> str:
    """Return what an error of the system, of TLS or of a library says, as one line."""
    found = getattr(error, "verify_message", None) or getattr(error, "strerror", None)
    return " ".join(str(found or error or type(error).__name__).split())


# --- nodes ----------------------------------------------------------------------------------------


class Unreachable(SparkError):
    """No node answers, or the connection was lost more often than `retries` allow."""

    code = "UPRMC_UNREACHABLE"


class Refused(SparkError):
    """A node answered with a status that trying again does not change."""

    code = "UPRMC_REFUSED"


class LoginRefused(SparkError):
    """A node does not accept the user name and password."""

    code = "UPRMC_AUTH"


class TlsFailed(SparkError):
    """The two ends do not agree on TLS."""

    code = "UPRMC_TLS"


class ProtocolError(SparkError):
    """What a node sent is no memcached, no UPR, or contradicts itself."""

    code = "UPRMC_PROTOCOL"


class NoVBucket(SparkError):
    """A vBucket is active on none of the nodes."""

    code = "UPRMC_NO_VBUCKET"


class VBucketsChanged(SparkError):
    """The number of vBuckets differs from the one that an offset, a backup or another node has."""

    code = "UPRMC_VBUCKETS_CHANGED"


class LeaseRefused(SparkError):
    """A node grants no snapshot lease: it has none, or too many are held."""

    code = "UPRMC_LEASE_REFUSED"


class LeaseEnded(SparkError):
    """A snapshot lease ended before what depends on it was read."""

    code = "UPRMC_LEASE_ENDED"


class RolledBack(SparkError):
    """History branched before the place where a reader wants to go on."""

    code = "UPRMC_ROLLBACK"

    def __init__(self, vbucket: int, checkpoint: int, rollback_to: int, advice: str = "") -> None:
        words = f"vb={vbucket} checkpoint={checkpoint} rollback_to={rollback_to}"
        super().__init__(f"{words}: {advice}" if advice else words)
        self.vbucket, self.checkpoint, self.rollback_to = vbucket, checkpoint, rollback_to
        self.advice = advice

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.vbucket, self.checkpoint, self.rollback_to, self.advice)


class DataLost(SparkError):
    """Deletions that a reader has not seen were dropped for good, or its vBucket is gone."""

    code = "UPRMC_DATA_LOSS"


# --- rows -----------------------------------------------------------------------------------------


class KeyNotText(SparkError):
    """A key is not UTF-8 and was to be a string."""

    code = "UPRMC_KEY_NOT_UTF8"


class BadSchema(SparkError):
    """A column is missing, has the wrong type, or a schema was given that cannot be had."""

    code = "UPRMC_SCHEMA"


class BadRow(SparkError):
    """A row cannot be written: no key, a key or value that is too long, a NULL, a refusal."""

    code = "UPRMC_ROW"


class TooManyErrors(SparkError):
    """More rows failed than `maxErrors` allows."""

    code = "UPRMC_TOO_MANY_ERRORS"


class NotRepeatable(SparkError):
    """The write mode gives wrong results when Spark runs a task twice at the same time."""

    code = "UPRMC_SPECULATION"


class OverwriteRefused(SparkError):
    """Save mode overwrite: there is no transaction that empties a bucket and fills it."""

    code = "UPRMC_OVERWRITE"


# --- files ----------------------------------------------------------------------------------------


class BadFile(SparkError):
    """An input, report or checkpoint cannot be read or makes no sense."""

    code = "UPRMC_FILE"


class MissingFile(BadFile, ConfigError):
    """There is no file where the user says that one is."""


class BackupDamaged(SparkError):
    """A manifest or a file of a backup is torn, or its digest differs."""

    code = "UPRMC_BACKUP_DAMAGED"


class BackupForeign(SparkError):
    """The directory, the manifest or the node belongs to something else."""

    code = "UPRMC_BACKUP_FOREIGN"


class BackupIncomplete(SparkError):
    """An increment of the chain is missing, or was never finished."""

    code = "UPRMC_BACKUP_INCOMPLETE"


class BackupBusy(SparkError):
    """Another process writes to the backup directory at this moment."""

    code = "UPRMC_BACKUP_BUSY"


class Differences(SparkError):
    """Two sides that were compared do not hold the same."""

    code = "UPRMC_DIFFERENT"
