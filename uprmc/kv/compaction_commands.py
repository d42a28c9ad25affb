"""COMPACT_DB: drop tombstones of a vBucket for good, and answer when they are gone from disk.

Source: UPR reference, section 6.
"""

from __future__ import annotations

from uprmc.engine.compaction import PurgeRule
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.protocol.management import COMPACT_EXTRAS
from uprmc.protocol.opcodes import Opcode, Status


def compact(session: BinaryConversation, request: Request) -> None:
    """Drop what the request names; temporary failure if that was cancelled."""
    session.services.control.check_token(request.cas)
    before_s, upto_seqno, drop_deletes, _ = COMPACT_EXTRAS.unpack(request.extras)

    def answer(ok: bool) -> None:
        session.reply(request, Status.SUCCESS if ok else Status.TEMPORARY_FAILURE)
        resume()

    rule = PurgeRule(before_s, upto_seqno, bool(drop_deletes))
    session.bucket.compact(request.number, rule, answer)
    resume = session.suspend()


COMPACTION_COMMANDS: dict[int, Handler] = {Opcode.COMPACT_DB: compact}
