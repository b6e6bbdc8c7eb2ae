"""An embedded Kafka broker for demos and tests: librdkafka's mock cluster, run inside this process.

confluent-kafka carries librdkafka, and librdkafka carries a broker that speaks the Kafka protocol over loopback TCP.
Its C functions are called through ctypes on the very library that confluent-kafka has loaded. Any Kafka client can
connect to it, also from another process.

It is not Kafka, and its limits are these:

- Memory only: everything is gone when the process ends. One broker, no replication, no authentication, no encryption.
- A partition keeps the newest 5 MiB (as sent: compressed bytes count) and at most 100,000 record batches; what is
  older is dropped in silence, so that a service started later finds a partition that does not begin at offset 0.
  Produce with compression, and spread over several partitions.
- No retention by time, no compaction, no delete-records, no transactions to speak of, no topic deletion and no
  change of a topic's number of partitions.
- A producer that names an unknown topic creates it, with 4 partitions.
- Consumer groups and commits work well enough for tools to show a lag, and are forgotten with the process.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import confluent_kafka
from confluent_kafka import cimpl

BROKERS = 1
PRODUCER_TYPE = 0  # rd_kafka_type_t RD_KAFKA_PRODUCER
LOG_LEVEL_ERROR = b"3"  # the handle that owns the cluster has no brokers of its own, which is no warning here
ERROR_BYTES = 512

_pointer, _text, _integer = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
FUNCTIONS = {  # name -> result, arguments
    "rd_kafka_conf_new": (_pointer, []),
    "rd_kafka_conf_set": (_integer, [_pointer, _text, _text, _text, ctypes.c_size_t]),
    "rd_kafka_new": (_pointer, [_integer, _pointer, _text, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_pointer]),
    "rd_kafka_err2str": (_text, [_integer]),
    "rd_kafka_mock_cluster_new": (_pointer, [_pointer, _integer]),
    "rd_kafka_mock_cluster_destroy": (None, [_pointer]),
    "rd_kafka_mock_cluster_bootstraps": (_text, [_pointer]),
    "rd_kafka_mock_set_controller_id": (_integer, [_pointer, ctypes.c_int32]),
    "rd_kafka_mock_topic_create": (_integer, [_pointer, _text, _integer, _integer]),
    "rd_kafka_mock_topic_set_error": (None, [_pointer, _text, _integer]),
}
FAULTS: dict[str, list[Any]] = {  # arguments after the cluster; older libraries lack some
    "rd_kafka_mock_broker_set_host_port": [ctypes.c_int32, _text, _integer],
    "rd_kafka_mock_broker_set_down": [ctypes.c_int32],
    "rd_kafka_mock_broker_set_up": [ctypes.c_int32],
    "rd_kafka_mock_broker_set_rtt": [ctypes.c_int32, _integer],
    "rd_kafka_mock_partition_set_leader": [_text, ctypes.c_int32, ctypes.c_int32],
}


class EmbeddedBrokerError(Exception):
    """The embedded broker cannot be had, or cannot do what was asked; the message says why and what to do instead."""


class EmbeddedBroker:
    """A running broker with its topics (name -> number of partitions). Close it, or use it as a context manager; the
    clients connected to it see a broker that went away."""

    def __init__(self, topics: Mapping[str, int], brokers: int = BROKERS) -> None:
        """`brokers`: more than one, so that leaders can move, for tests. Raises EmbeddedBrokerError."""
        self._library = _library()
        self._brokers = brokers
        self._handle: int | None = self._new_handle()
        self._cluster: int | None = self._library.rd_kafka_mock_cluster_new(self._handle, brokers)
        if not self._cluster:
            self._library.rd_kafka_destroy(self._handle)
            raise EmbeddedBrokerError("librdkafka could not start its mock cluster; is loopback TCP available?")
        # admin requests wait for a controller, and a mock cluster has none until it is told
        self._library.rd_kafka_mock_set_controller_id(self._cluster, 1)
        self.bootstrap_servers: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        for name, partitions in topics.items():
            self.create_topic(name, partitions)

    def _new_handle(self) -> int:
        """The librdkafka handle that owns the cluster's thread."""
        error = ctypes.create_string_buffer(ERROR_BYTES)
        properties = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(properties, b"log_level", LOG_LEVEL_ERROR, error, ERROR_BYTES)
        handle: int | None = self._library.rd_kafka_new(PRODUCER_TYPE, properties, error, ERROR_BYTES)
        if not handle:
            raise EmbeddedBrokerError(f"librdkafka could not start: {error.value.decode(errors='replace')}")
        return handle

    def create_topic(self, name: str, partitions: int) -> None:
        """Raises EmbeddedBrokerError if the topic exists."""
        assert partitions > 0, partitions
        code = self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, self._brokers)
        self._check(code, name)

    def fail_topic(self, name: str, error: int) -> None:
        """Metadata of the topic gives `error` (a Kafka protocol error code) from now on; 0 ends it. For tests."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, name.encode(), error)

    # What can be wrong with it, for tests and bench/soak. Brokers are numbered from 1. Each raises EmbeddedBrokerError.

    def advertise(self, host: str, port: int, broker: int = 1) -> None:
        """Clients are told that the broker is there: a proxy before it."""
        self._fault("rd_kafka_mock_broker_set_host_port", broker, host.encode(), port)

    def set_down(self, broker: int, down: bool) -> None:
        self._fault(f"rd_kafka_mock_broker_set_{'down' if down else 'up'}", broker)

    def set_round_trip(self, broker: int, milliseconds: int) -> None:
        self._fault("rd_kafka_mock_broker_set_rtt", broker, milliseconds)

    def move_leader(self, topic: str, partition: int, broker: int) -> None:
        self._fault("rd_kafka_mock_partition_set_leader", topic.encode(), partition, broker)

    def _fault(self, name: str, *arguments: bytes | int) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise EmbeddedBrokerError(f"this librdkafka has no {name}: a newer confluent-kafka has") from None
        function.restype, function.argtypes = _integer, [_pointer, *FAULTS[name]]
        self._check(function(self._cluster, *arguments), name)

    def close(self) -> None:
        if self._handle is None:
            return
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)
        self._handle = self._cluster = None

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, code: int, what: str) -> None:
        if code:
            raise EmbeddedBrokerError(f"{what}: {self._library.rd_kafka_err2str(code).decode()}")


@cache
def _library() -> ctypes.CDLL:
    """The librdkafka that confluent-kafka uses, its functions declared."""
    for place in _places():
        try:
            library = ctypes.CDLL(place)
            for name, (result, arguments) in FUNCTIONS.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError):
            continue  # not there, or a librdkafka without a mock cluster
        return library
    raise EmbeddedBrokerError(
        f"no librdkafka with a mock cluster was found beside confluent-kafka {confluent_kafka.version()}: install its "
        "wheel (pip install --force-reinstall confluent-kafka), or name a Kafka of your own in "
        "MIRACH_KAFKA_BOOTSTRAP_SERVERS"
    )


def _places() -> Iterator[str]:
    """Where librdkafka may be: behind the extension module itself (looking a symbol up in it searches the libraries
    that it was linked with, too), bundled in the wheel, or the system's."""
    yield cimpl.__file__
    package = Path(confluent_kafka.__file__).parent
    for folder in (package.parent / "confluent_kafka.libs", package / ".dylibs"):
        yield from map(str, sorted(folder.glob("*rdkafka*")))
    found = ctypes.util.find_library("rdkafka")
    if found:
        yield found
