"""A source that takes fewer names of histories than a replica has."""

from __future__ import annotations

from tests.contents import table_of
from tests.upr.link_rig import Pair, Script, replica_rig
from tests.upr.peer import STREAM_REQUEST, fill, upr_rig
from uprmc.model import Item, VBucketState

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


# --- what is damaged at the source ----------------------------------------------------------------


def test_a_source_asks_its_replica_for_what_is_damaged_on_its_disk() -> None:
    source, target = upr_rig(), replica_rig()
    fill(source, 0, 3)
    large = source.bucket.vbuckets[0].store(b"large", bytes(200_000), 7, 0)
    told: list[Item | None] = []
    ask = source.services.upr.ask_version
    assert not ask(0, b"large", told.append), "nobody is there"
    pair = Pair(source, target)
    pair.run()
    pair.link.follow([0])
    pair.run()
    for key in (b"large", b"nobody"):
        assert ask(0, key, told.append)
    assert not ask(1, b"large", told.append), "it has no stream of that"
    pair.run()
    assert told == [large, None]
    target.bucket.vbuckets[0].eject(b"large")
    assert ask(0, b"large", told.append)
    pair.run()
    while fetch := target.bucket.fetcher.begin():
        target.bucket.fetcher.commit(fetch)
        target.bucket.fetcher.finish(fetch)
    pair.run()
    assert told[2:] == [large]
    assert pair.link.error == ""
    pair.lose()
    assert not ask(0, b"large", told.append)


def test_a_consumer_that_does_not_offer_it_is_not_asked() -> None:
    source = upr_rig()
    fill(source, 0, 3)
    script = Pair(source, replica_rig())
    script.run()
    script.link.follow([0])
    script.run()
    (producer,) = source.services.upr.producers.values()
    producer.options.heals = False
    assert not source.services.upr.ask_version(0, b"k", lambda _: None)
