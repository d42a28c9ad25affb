"""What a rollback may take while it waits for its answers."""

from __future__ import annotations

import struct

from tests.contents import table_of
from tests.upr.link_rig import GET_VERSION, Pair, Script, failover_log, replica_rig, restore
from tests.upr.peer import FAILOVER_LOG, STREAM_REQUEST, fill, kinds, marker, mutation, upr_rig
from uprmc.model import VBucketState
from uprmc.remote import features


def test_many_small_documents_that_were_fetched_count_with_their_bookkeeping() -> None:
    tight = {
        "kv__max_item_bytes": 100_000,
        "memory__quota": 8 << 20,
        "memory__low_mark": 0.1,
        "memory__high_mark": 0.11,
    }
    source, target = upr_rig(), replica_rig(memory__mutation_limit=0.12, **tight)
    fill(source, 0, 3_200)
    first = Pair(source, target)
    first.run()
    first.link.follow([0])
    first.run()
    first.lose()
    target.bucket.set_state(0, VBucketState.ACTIVE)
    fill(target, 0, 3_200)
    target.bucket.set_state(0, VBucketState.REPLICA)
    restore(source, target)
    pair = Pair(source, target)
    pair.run()
    pair.link.follow([0])
    pair.run()
    assert pair.link.items == 3_200  # it has started over
    assert table_of(target.bucket.vbuckets[0]) == table_of(source.bucket.vbuckets[0])
    assert pair.link.undos.held_bytes == 0


def sent_back(script: Script) -> list[int]:
    """Have a replica that holds 2 sent back to 1; what it asks for then."""
    opaque = script.follow(log=failover_log((0xA, 0)))
    script.say(marker(0, opaque, 1, 1), mutation(0, opaque, 1, b"a"))
    script.say(marker(0, opaque, 2, 2), mutation(0, opaque, 2, b"b"))
    script.link.leave([0])
    script.link.follow([0])
    (_, asked) = script.sent()
    assert asked.opcode == STREAM_REQUEST
    return kinds(script.answer(asked, 0x23, value=struct.pack(">Q", 1)))


def test_a_source_of_other_make_is_not_asked_what_it_may_hang_up_for() -> None:
    target = replica_rig()
    script = Script(target, grant=False)
    script.greet({key: 4 for key in features.REPLICA.asks if key.startswith(b"uprmc_")})
    assert sent_back(script) == [STREAM_REQUEST]
    assert target.bucket.vbuckets[0].high_seqno == 0
    assert GET_VERSION not in kinds(script.sent())


def test_one_that_knows_any_extension_of_ours_is_asked() -> None:
    target = replica_rig()
    script = Script(target, grant=False)
    script.greet({b"uprmc_versions": 4})
    assert sent_back(script) == [FAILOVER_LOG]
    assert target.bucket.vbuckets[0].high_seqno == 2
