"""Every way in which work on many documents fails beside `remote.errors`, each with a code word.

An exception that crosses from a worker into Spark arrives as text inside another exception, so the
text begins with the code word: jobs and operators can look for it.
"""

from __future__ import annotations

from uprmc.errors import ConfigError
from uprmc.remote.errors import ClientError


class BulkError(ClientError):
    """The work failed; the text is one line, beginning with the code word."""

    shows_code = True


class BadOption(BulkError, ConfigError):
    """An option's name or value is wrong; the text names the nearest right one."""

    code = "UPRMC_OPTION"


class MissingPackage(BulkError, ConfigError):
    """pyspark, pyarrow or numpy is not installed."""

    code = "UPRMC_PACKAGES"


class JavaMissing(BulkError, ConfigError):
    """There is no Java, or one that is too old for Spark."""

    code = "UPRMC_JAVA"


class TaskFailed(BulkError):
    """A task failed again and again, or its process was killed each time."""

    code = "UPRMC_TASK"


# --- nodes ----------------------------------------------------------------------------------------


class NoVBucket(BulkError):
    """A vBucket is active on none of the nodes."""

    code = "UPRMC_NO_VBUCKET"


class VBucketsChanged(BulkError):
    """The number of vBuckets differs from the one that an offset, a backup or another node has."""

    code = "UPRMC_VBUCKETS_CHANGED"


class LeaseEnded(BulkError):
    """A snapshot lease ended before what depends on it was read."""

    code = "UPRMC_LEASE_ENDED"


class RolledBack(BulkError):
    """History branched before the place where a reader wants to go on."""

    code = "UPRMC_ROLLBACK"

    def __init__(self, vbucket: int, checkpoint: int, rollback_to: int, advice: str = "") -> None:
        words = f"vb={vbucket} checkpoint={checkpoint} rollback_to={rollback_to}"
        super().__init__(f"{words}: {advice}" if advice else words)
        self.vbucket, self.checkpoint, self.rollback_to = vbucket, checkpoint, rollback_to
        self.advice = advice

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.vbucket, self.checkpoint, self.rollback_to, self.advice)


class DataLost(BulkError):
    """Deletions that a reader has not seen were dropped for good, or its vBucket is gone."""

    code = "UPRMC_DATA_LOSS"


# --- rows -----------------------------------------------------------------------------------------


class KeyNotText(BulkError):
    """A key is not UTF-8 and was to be a string."""

    code = "UPRMC_KEY_NOT_UTF8"


class BadSchema(BulkError):
    """A column is missing, has the wrong type, or a schema was given that cannot be had."""

    code = "UPRMC_SCHEMA"


class BadRow(BulkError):
    """A row cannot be written: no key, a key or value that is too long, a NULL, a refusal."""

    code = "UPRMC_ROW"


class TooManyErrors(BulkError):
    """More rows failed than `maxErrors` allows."""

    code = "UPRMC_TOO_MANY_ERRORS"


class NotRepeatable(BulkError):
    """The write mode gives wrong results when Spark runs a task twice at the same time."""

    code = "UPRMC_SPECULATION"


class OverwriteRefused(BulkError):
    """Save mode overwrite: there is no transaction that empties a bucket and fills it."""

    code = "UPRMC_OVERWRITE"


# --- files ----------------------------------------------------------------------------------------


class BadFile(BulkError):
    """An input, report or checkpoint cannot be read or makes no sense."""

    code = "UPRMC_FILE"


class MissingFile(BadFile, ConfigError):
    """There is no file where the user says that one is."""


class BackupDamaged(BulkError):
    """A manifest or a file of a backup is torn, or its digest differs."""

    code = "UPRMC_BACKUP_DAMAGED"


class BackupForeign(BulkError):
    """The directory, the manifest or the node belongs to something else."""

    code = "UPRMC_BACKUP_FOREIGN"


class BackupIncomplete(BulkError):
    """An increment of the chain is missing, or was never finished."""

    code = "UPRMC_BACKUP_INCOMPLETE"


class BackupBusy(BulkError):
    """Another process writes to the backup directory at this moment."""

    code = "UPRMC_BACKUP_BUSY"


class Differences(BulkError):
    """Two sides that were compared do not hold the same."""

    code = "UPRMC_DIFFERENT"
