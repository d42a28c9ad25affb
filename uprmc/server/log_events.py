"""What each event of the log means: the table behind the reference page about the log.

An event's name is the section of its `server.log.Log` and the word after it. A test compares the
table with the calls in the code.
"""

from __future__ import annotations

from typing import NamedTuple


class EventInfo(NamedTuple):
    """An event's level, and what it means to an operator."""

    level: str
    meaning: str


def _debug(meaning: str) -> EventInfo:
    return EventInfo("debug", meaning)


def _info(meaning: str) -> EventInfo:
    return EventInfo("info", meaning)


def _warn(meaning: str) -> EventInfo:
    return EventInfo("warn", meaning)


def _error(meaning: str) -> EventInfo:
    return EventInfo("error", meaning)


_BUG = _error("A defect of uprmc, logged with a traceback. Please report it.")
_RATE = " At most one a second is logged; `unlogged` counts the others."

EVENTS = {
    "storage.upgrade_began": _info(
        "The data directory has an older format and is rewritten: how many entries it has."
    ),
    "storage.upgrade_progress": _info("Entries rewritten so far; every 5 seconds."),
    "storage.upgraded": _info("The data directory has the present format: seconds it took."),
    "storage.new_history": _warn(
        "The data directory is a copy, or an older state that was put back: the reason, and the "
        "new uuid of the bucket. Each active vBucket begins a new branch."
    ),
    "node.core_interpreted": _warn(
        "The compiled core cannot be used: the reason. The node works, and is slower."
    ),
    "warmup.progress": _info("Warm-up is running: its state, and the keys loaded so far."),
    "node.warmed_up": _info(
        "The node serves clients: keys and values loaded, seconds it took, and whether the last "
        "stop was clean."
    ),
    "node.misuse": _warn("A peer broke the protocol and was disconnected: the reason." + _RATE),
    "node.vbucket_deposed": _warn(
        "An active vBucket was made dead because another node was promoted: the vBucket, its term, "
        "and the highest known term."
    ),
    "node.reloaded": _info(
        "After SIGHUP, the log level, the TLS files and the users were read again, and the audit "
        "log was opened again."
    ),
    "access.login_refused": _warn("A login failed: the name and the reason." + _RATE),
    "access.login_timeout": _debug(
        "A connection was closed that had not logged in within `server.login_timeout_s`."
    ),
    "audit.failed": _error(
        "The audit log cannot be written; lines are lost until it can be. Said once."
    ),
    "audit.works_again": _info("The audit log is written again; how many lines were lost so far."),
    "node.reload_failed": _warn(
        "After SIGHUP, the new settings could not be used: the reason. The node keeps the old ones."
    ),
    "buffers.shed": _warn(
        "All connections together used more than `server.buffer_bytes`, and the oldest were "
        "closed. At most one in ten seconds is logged."
    ),
    "connection.shed": _debug("Which connection was closed because of `server.buffer_bytes`."),
    "connection.idle": _debug("A connection was closed after `server.idle_timeout_s`."),
    "connection.session_failed": _BUG,
    "connections.rejected": _warn(
        "A connection above `server.max_connections` was refused. At most one in ten seconds is "
        "logged."
    ),
    "connections.file_limit_low": _warn(
        "The limit of open files allows fewer connections than `server.max_connections`."
    ),
    "flush.failed": _error(
        "A commit failed: the reason. Changes are refused until a commit succeeds."
    ),
    "flush.works_again": _info("A commit succeeded after earlier ones had failed."),
    "flush.commit_broke": _BUG,
    "flush.waiter_broke": _BUG,
    "flush.map_grown": _info("The address space reserved for the store was doubled."),
    "fetch.unread": _error(
        "The value of one document could not be read, for example because its record is damaged: "
        "vBucket, key, reason. Its readers got a temporary failure." + _RATE
    ),
    "fetch.failed": _error(
        "Evicted values could not be read from disk; their readers got a temporary failure."
    ),
    "fetch.waiter_broke": _BUG,
    "compaction.failed": _error(
        "Deletions could not be read from disk; the compaction was answered temporary failure."
    ),
    "compaction.waiter_broke": _BUG,
    "event.damaged_record": _error(
        "A record on disk is not what was written: vBucket, seqno, key. It is never served: its "
        "readers get an error, and streams end there, until it is healed or the document is "
        "written again."
    ),
    "event.healed_record": _info(
        "A damaged record was written again, as memory or another node had it: vBucket, seqno, key."
    ),
    "event.source_lost_history": _error(
        "A source has nothing of the history that this replica holds, as if it had lost its data, "
        "and is not followed: vBucket, source, and up to which seqno the replica holds changes. "
        "Fail over to the replica, or let it give up what it holds by `uprmc replicate --demote`."
    ),
    "event.watermark_expired": _warn(
        "A registered client was forgotten because it had not reported for too long or, with `why` "
        "`max_pinned_bytes`, because it kept too much: the first of the vBuckets and all of them, "
        "id, kind, its lowest watermark, how many deletions only it has kept, and their bytes. "
        "These may be purged now."
    ),
    "event.watermark_outpaced": _warn(
        "A client must begin at zero because deletions were purged that it had not seen: vBucket, "
        "id, its seqno, the purge seqno, how many deletions it missed (`exact`: whether more are "
        "unknown), and the newest 100 of their keys."
    ),
    "event.watermark_managed": _info(
        "A registered client was set or removed by `uprmc watermarks`: the first of the vBuckets "
        "and all of them, id, what was done."
    ),
    "event.clock_set": _warn(
        "The wall clock of this machine was set, and by how many seconds: documents keep the rest "
        "of the time that they were given, and what is stored from then on has the new time."
    ),
    "event.purge": _info(
        "Deletions of a vBucket were purged: its purge seqno before and after that, how many were "
        "dropped, and what keeps the others: the id of a watermark, `disk`, `source`, or nothing."
    ),
    "event.purge_forced": _warn(
        "`uprmc compact --force` dropped deletions that registered clients may have to see: the "
        "vBucket, its purge seqno before and after that, and the ids of those that must start over."
    ),
    "event.xdcr_branch": _warn(
        "Changes that a link had sent are lost at this node: the link, the vBucket, and the first "
        "and last seqno. The target still has them."
    ),
    "event.xdcr_needs_reconcile": _warn(
        "A link has stopped sending a vBucket: deletions were purged that the target may not have "
        "got, and documents may come back from there. The link, the vBucket, up to where it had "
        "arrived, and the purge seqno. Run `uprmc xdcr reconcile`."
    ),
    "event.xdcr_reconciled": _info(
        "`uprmc xdcr reconcile` has repaired a vBucket: the link, the vBucket, how many documents "
        "were deleted at the target, and how many it has that were changed elsewhere."
    ),
    "event.index_failed": _error(
        "An index cannot go on, for example because its disk is full: the design and the reason. "
        "It is opened again after a pause, until it works; what it had indexed is shown meanwhile."
    ),
    "event.index_works_again": _info("An index that had failed has written its file: the design."),
    "event.index_damaged": _error(
        "The file of an index could not be read time and again, and the index is built from the "
        "beginning: the design and the reason."
    ),
    "event.index_built": _info(
        "The first build of an index is over: the design, and how many documents have rows in it."
    ),
    "event.index_rolled_back": _warn(
        "An index has taken back changes that its source has lost: the design, how (`kind`: "
        "`header` or `old_file`, all of it fell back to an older header; `vbucket`, the rows of a "
        "vBucket were dropped; `build`, the first build started over), and how often."
    ),
    "event.index_compacted": _info(
        "The file of an index was compacted: the design, and how long its files are now."
    ),
    "event.design_added": _info("A design was put, and its index is being built: its name."),
    "event.design_changed": _info(
        "The new definition of a design has caught up, and answers in place of the former one: its "
        "name."
    ),
    "event.design_removed": _info("A design was deleted with its index: its name."),
    "event.design_unusable": _error(
        "A design cannot be opened, and is not indexed until it is put again: its name and the "
        "reason."
    ),
    "housekeeping.tick_failed": _BUG,
    "preread.failed": _error(
        "The next pages of a stream could not be read ahead in a worker thread; the stream reads "
        "them itself."
    ),
    "slices.failed": _error(
        "A defect of uprmc in expiry, eviction or the check of connections, logged with a "
        "traceback; the task starts over. Please report it."
    ),
    "replication.connected": _info("A connection to a source is open."),
    "replication.changed": _info(
        "Replication changed: which vBuckets follow which source, takeovers, failovers."
    ),
    "replication.trouble": _warn(
        "A source cannot be reached, or refuses what it is asked for: the reason." + _RATE
    ),
    "replication.tick_failed": _BUG,
    "tap.refused": _warn("A TAP CONNECT was refused: name and reason." + _RATE),
    "tap.closed": _info(
        "The stream of a TAP client ended: name, reason, and whether it was complete (a dump, a "
        "takeover)." + _RATE
    ),
    "tap.damaged": _warn(
        "At the start, the stored position of a registered TAP client, or the list of these "
        "clients, could not be read. What was lost starts from the beginning."
    ),
    "tap.tick_failed": _BUG,
    "index.event": _info("The index process has done what `text` says."),
    "index.trouble": _warn(
        "Something failed in the index process, and it goes on: `text` says what and why; it tries "
        "again."
    ),
    "index.failed": _error(
        "An index, or a design, cannot go on: `text` says which and why. It is opened again after "
        "a pause."
    ),
    "tap_adapter.upstream_reached": _info("`uprmc tap-adapter` has reached its upstream."),
    "tap_adapter.upstream_unreachable": _warn(
        "`uprmc tap-adapter` could not reach its upstream at the start: the reason. It tries again "
        "for each client."
    ),
    "tap_adapter.misuse": _warn(
        "A TAP peer of `uprmc tap-adapter` broke the protocol and was disconnected." + _RATE
    ),
    "tap_adapter.state_failed": _error(
        "The file of `--state` cannot be written: the reason. Registered clients get no data until "
        "it can."
    ),
    "tap_adapter.keeper_failed": _BUG,
    "xdcr.trouble": _warn(
        "A link cannot reach its target, or the target refuses something: the link and the reason."
        + _RATE
    ),
    "xdcr.tick_failed": _BUG,
    "index.no_listener": _warn(
        "The node has no views, because another process listens at the default address of "
        "`server.views`: the address, the process if it is known, and what to say."
    ),
    "index.started": _info("The process that answers for `server.views` was started: its pid."),
    "index.ended": _error(
        "That process has ended by itself, or could not be started: its pid, the reason, and in "
        "how many seconds it is started again. Its own lines above say more."
    ),
    "index.stopped": _info("That process has ended with the node: its pid, and how."),
    "http.changes_ended": _warn(
        "The stream behind a reader of `/changes` failed, and its answer was ended: the reason."
    ),
    "http.page_failed": _BUG,
    "twisted.message": _warn("A warning or an error of a library."),
    "twisted.failure": _error("An exception in a library, logged with a traceback."),
}
