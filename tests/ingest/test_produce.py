"""Events from lines to the topic."""

from __future__ import annotations

import json

import pytest

from ingest.config import IngestConfig
from ingest.produce import ProduceError, produce
from tests.kafka import ApacheKafka, Broker


def line(ad_id: str, **more: object) -> str:
    return json.dumps({"type": "create", "ad_id": ad_id, "ad": {"bid": 1}} | more)


def config(broker: Broker, topic: str) -> IngestConfig:
    return IngestConfig(bootstrap_servers=broker.address, topic=topic)


def test_lines_are_keyed_by_ad_and_the_last_offsets_come_back(any_kafka: Broker) -> None:
    topic = any_kafka.topic(2)
    told: list[int] = []
    lines = [line(f"ad-{i % 10}", version=i) for i in range(1000)]
    last = produce(iter(lines), config(any_kafka, topic), told.append)
    assert sum(offset + 1 for offset in last.values()) == 1000
    assert told == list(range(1, 1001))
    versions: dict[bytes, list[int]] = {}
    for partition, offset in last.items():
        for message in any_kafka.records(topic, offset + 1, partition):
            event = json.loads(message.value())
            assert message.key() == event["ad_id"].encode()
            versions.setdefault(message.key(), []).append(event["version"])
    assert versions == {f"ad-{i}".encode(): list(range(i, 1000, 10)) for i in range(10)}, "one partition, in order"


def test_an_ad_goes_where_the_java_clients_send_it(any_kafka: Broker) -> None:
    """Partitions of 4 by Kafka's own murmur2: Utils.toPositive(Utils.murmur2(key)) % 4."""
    topic = any_kafka.topic(4)
    assert produce([line("21")], config(any_kafka, topic)) == {murmur2(b"21") % 4: 0}
    assert produce([line("foobar")], config(any_kafka, topic)) == {murmur2(b"foobar") % 4: 0}


def murmur2(data: bytes) -> int:
    """As org.apache.kafka.common.utils.Utils has it, made positive."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    for i in range(0, len(data) // 4 * 4, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    rest = data[len(data) // 4 * 4 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_the_murmur2_of_this_test_is_kafkas() -> None:
    """Values from Kafka's UtilsTest."""
    assert murmur2(b"21") == -973932308 & 0x7FFFFFFF
    assert murmur2(b"foobar") == -790332482 & 0x7FFFFFFF
    assert murmur2(b"a-little-bit-long-string") == -985981536 & 0x7FFFFFFF


def test_blank_lines_are_passed_and_nothing_is_nothing(any_kafka: Broker) -> None:
    topic = any_kafka.topic()
    assert produce([], config(any_kafka, topic)) == {}
    assert produce([b"\n", line("ad").encode() + b"\r\n", "  "], config(any_kafka, topic)) == {0: 0}
    assert json.loads(any_kafka.records(topic, 1)[0].value()) == json.loads(line("ad"))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: an event is a JSON object"),
        ('{"type":"create"}', "line 2: ad_id: an event needs"),
        ('{"type":"make","ad_id":"a"}', "line 2: type: "),
        (json.dumps({"type": "expire", "ad_id": "x" * 65}), "line 2: ad_id: ad_id is 1 to 64 bytes"),
    ],
)
def test_a_line_that_is_no_event_stops_it(any_kafka: Broker, bad: str, says: str) -> None:
    topic = any_kafka.topic()
    with pytest.raises(ProduceError, match=says):
        produce([line("first"), bad, line("third")], config(any_kafka, topic))
    assert any_kafka.end(topic) == 1, "what went before is delivered"


def test_a_topic_that_is_not_there_is_said(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.new_name()
    with pytest.raises(ProduceError, match=f"topic {topic}: .*[Uu]nknown topic"):
        produce([line("ad")] * 3, config(apache_kafka, topic))


def test_an_event_that_the_topic_does_not_take_is_said(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.topic(config={"max.message.bytes": "1000"})
    with pytest.raises(ProduceError, match="too large"):
        produce([line("ad", filler="".join(map(str, range(2000))))], config(apache_kafka, topic))
