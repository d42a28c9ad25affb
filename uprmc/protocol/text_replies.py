"""Every line that the text protocol answers with, in one place, line ends included."""

from __future__ import annotations

# --- outcomes -----------------------------------------------------------------------------------

STORED = b"STORED\r\n"
NOT_STORED = b"NOT_STORED\r\n"
EXISTS = b"EXISTS\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"
DELETED = b"DELETED\r\n"
TOUCHED = b"TOUCHED\r\n"
OK = b"OK\r\n"
END = b"END\r\n"
RESET = b"RESET\r\n"

ERROR = b"ERROR\r\n"
NOT_AUTHENTICATED = b"CLIENT_ERROR unauthenticated\r\n"
WRONG_PASSWORD = b"CLIENT_ERROR authentication failure\r\n"
NOT_IN_CLEAR = b"CLIENT_ERROR a password in clear needs TLS here\r\n"
SHUTDOWN_NOT_ENABLED = b"ERROR: shutdown not enabled\r\n"
MEMLIMIT_IN_BYTES = b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n"
MEMLIMIT_TOO_SMALL = b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"

BAD_LINE_FORMAT = b"CLIENT_ERROR bad command line format\r\n"
BAD_LINE = b"CLIENT_ERROR bad command line\r\n"
BAD_DELETE_FORMAT = (
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"  # two spaces
)
BAD_DATA_CHUNK = b"CLIENT_ERROR bad data chunk\r\n"
BAD_EXPTIME = b"CLIENT_ERROR invalid exptime argument\r\n"
BAD_DELTA = b"CLIENT_ERROR invalid numeric delta argument\r\n"
NOT_A_NUMBER = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
BAD_CLASS = b"BADCLASS invalid class id\r\n"
CRAWLER_DISABLED = b"CLIENT_ERROR lru crawler disabled\r\n"
CRAWLER_STARTED = b"ERROR failed to start lru crawler thread\r\n"
SLEEP_TOO_LONG = b"CLIENT_ERROR sleep must be one second or less\r\n"
CRAWLER_BUSY = b"BUSY currently processing crawler request\r\n"
STATS_DETAIL_USAGE = b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"

TOO_LARGE = b"SERVER_ERROR object too large for cache\r\n"
OUT_OF_MEMORY = b"SERVER_ERROR out of memory storing object\r\n"
TEMPORARY_FAILURE = b"SERVER_ERROR temporary failure\r\n"

# --- meta commands ------------------------------------------------------------------------------

INVALID_FLAG = b"CLIENT_ERROR invalid flag\r\n"
DUPLICATE_FLAG = b"CLIENT_ERROR duplicate flag\r\n"
INVALID_OR_DUPLICATE_FLAG = b"CLIENT_ERROR invalid or duplicate flag\r\n"
TOO_MANY_FLAGS = b"CLIENT_ERROR options flags too long\r\n"
TOO_MANY_FLAGS_OF_MG = b"CLIENT_ERROR options flags are too long\r\n"
BAD_TOKEN = b"CLIENT_ERROR bad token in command line format\r\n"
BAD_KEY_ENCODING = b"CLIENT_ERROR error decoding key\r\n"
BAD_MODE_LENGTH = b"CLIENT_ERROR incorrect length for M token\r\n"
BAD_STORE_MODE = b"CLIENT_ERROR invalid mode for ms M token\r\n"
BAD_ARITHMETIC_MODE = b"CLIENT_ERROR invalid mode for ma M token\r\n"
BAD_META_INITIAL = b"CLIENT_ERROR invalid numeric initial value\r\n"
BAD_META_DELTA = b"CLIENT_ERROR invalid numeric delta value\r\n"
OPAQUE_TOO_LONG = b"CLIENT_ERROR opaque token too long\r\n"

META_NOOP = b"MN\r\n"
META_MISS = b"EN\r\n"

# --- lines with contents ------------------------------------------------------------------------


def value_line(key: bytes, flags: int, length: int) -> bytes:
    """Return the line above a document's data in the answer to ``get`` and ``gat``."""
    return b"VALUE %b %d %d\r\n" % (key, flags, length)


def value_line_with_cas(key: bytes, flags: int, length: int, cas: int) -> bytes:
    """Return the line above a document's data in the answer to ``gets`` and ``gats``."""
    return b"VALUE %b %d %d %d\r\n" % (key, flags, length, cas)


def stat_line(name: bytes, value: bytes) -> bytes:
    """Return one line of the answer to ``stats``; the last is `END`."""
    return b"STAT %b %b\r\n" % (name, value)


def number_line(number: int) -> bytes:
    """Return the answer to ``incr`` and ``decr``."""
    return b"%d\r\n" % number


def not_authorized(why: str) -> bytes:
    """Return the line for a command whose role the user does not have."""
    return b"CLIENT_ERROR not authorized: %b\r\n" % why.encode()


def version_line(version: bytes) -> bytes:
    """Return the answer to ``version``."""
    return b"VERSION %b\r\n" % version
