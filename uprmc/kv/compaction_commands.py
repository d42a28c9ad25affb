"""COMPACT_DB: drop tombstones of a vBucket for good, and answer when they are gone from disk.

Source: UPR reference, section 6; contracts, section 2 (`uprmc compact`).
"""

from __future__ import annotations

from uprmc.engine.tombstones import PurgeRule, shown
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.protocol.management import COMPACT_EXTRAS, COMPACT_REPLY, CompactFlag
from uprmc.protocol.opcodes import Opcode, Status


def compact(session: BinaryConversation, request: Request) -> None:
    """Drop what the request names; temporary failure if that was cancelled."""
    session.services.control.check_token(request.cas)
    before_s, upto_seqno, drop_deletes, padding = COMPACT_EXTRAS.unpack(request.extras)
    flags = CompactFlag(padding[0])
    forced = bool(flags & CompactFlag.FORCE)
    if flags & CompactFlag.NO_WAIT:
        _begin(session, request, PurgeRule(every=forced, aged=not forced, forced=forced))
        return
    every = bool(drop_deletes) or forced
    aged = bool(flags & CompactFlag.AGED)
    compactor = session.bucket.compactor

    def answer(ok: bool) -> None:
        if ok:
            done = compactor.last
            fixed = COMPACT_REPLY.pack(done.start, done.end, done.dropped)
            told = fixed + (shown(done.limited_by) or "").encode()
            session.reply(request, value=told if flags else b"")
        else:
            session.reply(request, Status.TEMPORARY_FAILURE)
        resume()

    rule = PurgeRule(before_s, upto_seqno, every, aged, forced)
    session.bucket.compact(request.number, rule, answer)
    resume = session.suspend()


def _begin(session: BinaryConversation, request: Request, rule: PurgeRule) -> None:
    """Ask for a compaction that nobody waits for, unless it is asked for already."""
    bucket = session.bucket
    if not bucket.compactor.is_queued(request.number, rule):
        bucket.compact(request.number, rule, lambda _: None)
    session.reply(request)


COMPACTION_COMMANDS: dict[int, Handler] = {Opcode.COMPACT_DB: compact}
