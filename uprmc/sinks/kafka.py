"""Changes as records of a Kafka topic. At least once. Needs ``uprmc[kafka]``.

A record has the document's key and value; a deletion is a tombstone (no value), as compacted topics
want it. Headers tell ``op``, ``vbucket``, ``seqno``, ``vb_uuid``, ``cas``, ``rev``, ``flags`` and
``expiry``. Partitions are chosen by key, as Java's producer does: what happens to a key comes in
order.

A rollback puts the right document, or a tombstone, behind what was lost, with the header ``undo``.
One to zero is a record with an empty key and the header ``op`` = ``rollback`` in each partition:
drop what you have of this ``vbucket`` from there; everything comes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from uprmc.client.handler import Document
from uprmc.remote.batch import Batch
from uprmc.sinks.sink import PATIENCE_S, Sink, SinkError, SinkRefused, SinkStopped

_TOPIC_S = 10.0
_LOOK_S = 0.1

#: Fields of a change that become headers.
_HEADERS = ("op", "vbucket", "seqno", "vb_uuid", "cas", "rev", "flags", "expiry")


class Kafka(Sink):
    """Produces records to a topic, see the module docstring.

    Args:
        topic: which must exist, or be made by the brokers on demand.
        brokers: HOST:PORT,...
        settings: more of librdkafka's settings, such as ``security.protocol``.
        patience_s: how long a record may take to be acknowledged by all replicas.

    Raises:
        SinkRefused: librdkafka is not installed, or refuses a setting.
        SinkError: no broker answers, or there is no such topic.
    """

    def __init__(
        self,
        topic: str,
        brokers: str,
        *,
        settings: Mapping[str, Any] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__()
        self._where = f"topic {topic} at {brokers}"
        try:
            import confluent_kafka
        except ImportError:
            raise SinkRefused("Kafka needs a client: pip install 'uprmc[kafka]'") from None
        self._topic = topic
        self._error: str | None = None
        self._errors: tuple[type[Exception], ...] = (confluent_kafka.KafkaException,)
        given = {
            "bootstrap.servers": brokers,
            "client.id": "uprmc",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "message.timeout.ms": int(patience_s * 1000),
            "log_level": 0,
            **(settings or {}),
        }
        try:
            self._producer = confluent_kafka.Producer(given)
        except self._errors as error:
            raise SinkRefused(f"{self._where}: {_words(error)}") from None
        try:
            found = self._producer.list_topics(topic, timeout=_TOPIC_S).topics[topic]
        except self._errors as error:
            raise SinkError(f"{self._where}: {_words(error)}") from None
        if found.error is not None:
            raise SinkError(f"{self._where}: {found.error.str()}")
        self._partitions = sorted(found.partitions)

    def changes(self, batch: Batch) -> None:
        for change in batch:
            facts = [(name, getattr(change, name)) for name in _HEADERS]
            fields = [(name, str(value).encode()) for name, value in facts if value is not None]
            self._produce(change.key, change.value, fields)

    def rollback(self, vbucket: int, seqno: int) -> None:
        fields = [("op", b"rollback"), ("vbucket", b"%d" % vbucket)]
        for partition in self._partitions if seqno == 0 else ():
            self._produce(b"", b"", fields, partition=partition)

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> None:
        fields = [
            ("op", b"delete" if document is None else b"set"),
            ("vbucket", b"%d" % vbucket),
            ("undo", b"1"),
        ]
        self._produce(key, None if document is None else document.value, fields)

    def durable(self) -> None:
        """Return when the brokers have acknowledged everything.

        Raises:
            SinkError: a record was not taken.
            SinkStopped: the sink was stopped meanwhile.
        """
        while len(self._producer):
            self._look()
        self._check()

    def close(self) -> None:
        with suppress(*self._errors):
            self._producer.purge()
            self._producer.flush(_LOOK_S)

    def _produce(
        self, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]], **more: int
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, headers=headers, on_delivery=self._delivered, **more
                )
            except BufferError:  # the queue is full; acknowledgements make room
                self._look()
            except self._errors as error:
                raise SinkError(f"{self._where}: {_words(error)}") from None
            else:
                return

    def _look(self) -> None:
        """Take in acknowledgements for a moment."""
        self._producer.poll(_LOOK_S)
        self._check()
        if self.stopping.is_set():
            raise SinkStopped("stopped while the brokers were waited for")

    def _check(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise SinkError(f"{self._where}: {error}; nothing after the position is lost")

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None and self._error is None:
            self._error = error.str()


def _words(error: Exception) -> str:
    found = error.args[0] if error.args else error
    return str(found.str()) if hasattr(found, "str") else str(found)
