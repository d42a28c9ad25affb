"""A source that takes fewer names of histories than a replica has."""

from __future__ import annotations

from tests.contents import table_of
from tests.upr.link_rig import Pair, Script, replica_rig
from tests.upr.peer import STREAM_REQUEST, fill, upr_rig
from uprmc.model import VBucketState

INVALID = 4


def test_a_replica_with_more_histories_than_its_source_takes_follows_all_the_same() -> None:
    source, target = upr_rig(upr__known_versions=2), replica_rig()
    vbucket = source.bucket.vbuckets[0]
    for _ in range(4):
        fill(source, 0, 3)
        source.bucket.set_state(0, VBucketState.REPLICA)
        source.bucket.set_state(0, VBucketState.ACTIVE)
    pair = Pair(source, target)
    pair.run()
    pair.link.follow([0])
    assert pair.run() == [("began", 0)]
    again = Pair(source, target)
    again.run()
    again.link.follow([0])
    assert again.run() == [("began", 0)]
    assert table_of(target.bucket.vbuckets[0]) == table_of(vbucket)


def test_a_source_that_finds_even_a_bare_request_invalid_is_asked_no_more() -> None:
    script = Script(replica_rig())
    script.link.follow([0])
    (asked,) = script.sent()
    (again,) = script.answer(asked, INVALID)
    assert (again.opcode, again.value) == (STREAM_REQUEST, b"")
    assert script.answer(again, INVALID) == []
    assert script.owner.take()[-1] == (
        "ended",
        0,
        "the source refuses: Invalid arguments (0004)",
        False,
    )
