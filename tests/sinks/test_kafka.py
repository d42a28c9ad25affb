"""Changes as records of a Kafka topic, against librdkafka's own mock of a cluster.

It is a listener that speaks the protocol, in the process of the client that made it; the sink and
the reader reach it as they would reach brokers. ``UPRMC_KAFKA_BROKERS=HOST:PORT,...`` names real
ones, which must create topics on demand.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.consumer_world import node, write
from tests.sinks.sink_contract import Documents, SinkContract
from uprmc.sinks.kafka import Kafka
from uprmc.sinks.sink import Sink, SinkError

confluent_kafka = pytest.importorskip("confluent_kafka")

_LIMIT_S = 20.0

_REST_S = 1.0 if os.environ.get("UPRMC_KAFKA_BROKERS") else 0.0

#: Real brokers keep the topics of other runs.
_RUN = uuid.uuid4().hex


@pytest.fixture(scope="module", name="brokers")
def _brokers() -> Iterator[str]:
    given = os.environ.get("UPRMC_KAFKA_BROKERS")
    if given:
        yield given
        return
    owner = confluent_kafka.Producer({"bootstrap.servers": "mock:1", "test.mock.num.brokers": 1})
    found = owner.list_topics(timeout=_LIMIT_S).brokers.values()
    yield ",".join(f"{each.host}:{each.port}" for each in found)
    owner.flush(1)


def records(brokers: str, topic: str) -> list[Any]:
    """Return what a topic has, of each key in order."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": brokers, "group.id": "reader"})
    try:
        parts = consumer.list_topics(topic, timeout=_LIMIT_S).topics[topic].partitions
        places = [confluent_kafka.TopicPartition(topic, number, 0) for number in parts]
        ends = {
            each.partition: consumer.get_watermark_offsets(each, timeout=_LIMIT_S)[1]
            for each in places
        }
        consumer.assign(places)
        found: list[Any] = []
        while True:  # some brokers tell the end of a batch too low: look for more behind it
            more = consumer.consume(1, _LIMIT_S if len(found) < sum(ends.values()) else _REST_S)
            if not more:
                return found
            assert more[0].error() is None
            found += more
    finally:
        consumer.close()


class TestKafka(SinkContract):
    """A reader keeps the newest record of each key."""

    every = 7  # a topic of librdkafka's mock takes a second

    @pytest.fixture(autouse=True)
    def _cluster(self, brokers: str) -> None:
        self.brokers = brokers

    def open(self, place: Path) -> Sink:
        return Kafka(self._topic(place), self.brokers)

    def _topic(self, place: Path) -> str:
        return "-".join([*place.parts[-3:], _RUN]).replace("[", "-").replace("]", "-")

    def documents(self, place: Path) -> Documents:
        found: dict[tuple[int, int], dict[bytes, bytes | None]] = {}
        for row in records(self.brokers, self._topic(place)):
            headers = dict(row.headers())
            here = found.setdefault((row.partition(), int(headers["vbucket"])), {})
            if headers["op"] == b"rollback":
                here.clear()
            elif row.value() is None:
                here.pop(row.key(), None)
            else:
                here[row.key()] = row.value()
        documents: Documents = {}
        for (_, vbucket), part in found.items():
            documents.setdefault(vbucket, {}).update(part)
        return documents


def test_headers_tell_what_a_record_is(brokers: str, tmp_path: Path) -> None:
    contract = TestKafka()
    contract.brokers = brokers
    rig = node()
    write(rig, 0, a="1", b="2")
    write(rig, 0, b="")
    with contract.following(tmp_path, rig) as consumer:
        consumer.go_on()
    found = {row.key(): row for row in records(brokers, contract._topic(tmp_path))}
    assert found[b"a"].value() == b"1"
    assert found[b"b"].value() is None
    headers = dict(found[b"b"].headers())
    assert (headers["op"], headers["vbucket"], headers["seqno"]) == (b"delete", b"0", b"3")


def test_brokers_that_are_not_there_are_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("uprmc.sinks.kafka._TOPIC_S", 0.3)
    with pytest.raises(SinkError, match=r"^topic t at 127\.0\.0\.1:1: [^\n]+$"):
        Kafka("t", "127.0.0.1:1")


def test_a_setting_that_is_none_is_an_error_in_one_line(brokers: str) -> None:
    with pytest.raises(SinkError, match="No such configuration property"):
        Kafka("t", brokers, settings={"nonsense": "1"})


def test_a_record_that_is_too_large_is_an_error(brokers: str, tmp_path: Path) -> None:
    contract = TestKafka()
    contract.brokers = brokers
    rig = node()
    write(rig, 0, a="x" * 2_000_000)
    with (
        contract.following(tmp_path, rig) as consumer,
        pytest.raises(SinkError, match="Message size too large"),
    ):
        consumer.go_on()
