"""Bad events end in the dead-letter topic, and nothing passes one that is not there yet."""

from __future__ import annotations

import pytest

from gpu_index.events import Outcome
from tests.ingest.engine import Engine, bad, config, create, headers, running
from tests.kafka import ApacheKafka, Broker, EmbeddedKafka, Record, until

UNKNOWN_TOPIC_OR_PARTITION = 3


def test_a_dead_letter_has_the_original_and_says_what_is_wrong(any_kafka: Broker) -> None:
    topic = any_kafka.topic(2)
    any_kafka.topic(name=f"{topic}-dlq")
    any_kafka.send(topic, [create("good", 1), bad("wrong", 1), Record(b"\xff", None, 1), Record(None, b"\xfe", 1)])
    with running(config(any_kafka, topic), Engine()) as ingest:
        letters = any_kafka.records(f"{topic}-dlq", 3)
        until(lambda: ingest.safe_positions() == {0: 0, 1: 4})
        snapshot = ingest.statistics.snapshot(0)
    assert [(letter.key(), letter.value()) for letter in letters] == [
        (b"wrong", bad("wrong").value),
        (b"\xff", None),
        (None, b"\xfe"),
    ]
    assert headers(letters[0]) == {
        "mirach-error": "out_of_range",
        "mirach-detail": "ad.bid: a bid is a finite number above 0, not -1.0",
        "mirach-topic": topic,
        "mirach-partition": "1",
        "mirach-offset": "1",
    }
    assert [headers(letter)["mirach-offset"] for letter in letters] == ["1", "2", "3"]
    assert snapshot["faults"] == {"not_utf8": 2, "out_of_range": 1}
    assert snapshot["outcomes"]["bad"] == 3
    assert snapshot["dead_letters"] == {"sent": 3, "pending": 0, "already_sent": 0}


def test_faults_found_while_applying_are_dead_letters_and_stale_ones_are_not(any_kafka: Broker) -> None:
    topic = any_kafka.topic()
    any_kafka.topic(name=f"{topic}-dlq")
    outcomes = {
        "unknown": Outcome.UNKNOWN_AD,
        "full": Outcome.INDEX_FULL,
        "stale": Outcome.STALE,
        "good": Outcome.APPLIED,
        "gone": Outcome.EXPIRE_UNKNOWN,
        "twice": Outcome.DUPLICATE,
    }
    any_kafka.send(
        topic, [bad("stale"), create("good"), create("unknown"), create("gone"), create("twice"), create("full")]
    )
    with running(config(any_kafka, topic), Engine(lambda event: outcomes[event.ad_id or ""])) as ingest:
        until(lambda: ingest.safe_positions() == {0: 6})
        letters = any_kafka.records(f"{topic}-dlq", 2)
        assert any_kafka.end(f"{topic}-dlq") == 2
    assert [(letter.key(), headers(letter)["mirach-error"]) for letter in letters] == [
        (b"unknown", "unknown_ad"),
        (b"full", "index_full"),
    ]


def test_while_the_topic_is_absent_nothing_passes_and_reading_goes_on_to_a_bound(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.topic()
    group = f"group-of-{topic}"
    apache_kafka.send(topic, [create("first"), bad("wrong"), create("second")])
    engine = Engine()
    settings = config(apache_kafka, topic, dead_letters_max=20, batch_events_max=5, buffer_events_max=10)
    with running(settings, engine) as ingest:
        assert engine.ad_ids == ["first", "wrong", "second"], "reading went on"
        until(lambda: ingest.statistics.snapshot(0)["dead_letters"]["pending"] == 1)
        assert ingest.safe_positions() == {0: 1}
        assert not ingest.wait_safe({0: 3}, 0.01)
        until(lambda: apache_kafka.committed(topic, group=group).offset == 1)
        apache_kafka.send(topic, [bad(f"wrong-{i}") for i in range(200)])
        until(lambda: ingest._reader._lanes[0].paused, "reading pauses at the bound")
        until(lambda: "dead_letters" in ingest.statistics.snapshot(0)["problems"])
        pending = ingest.statistics.snapshot(0)["dead_letters"]["pending"]
        assert 20 <= pending <= 20 + 5, "the bound, and the batch that reached it"
        assert len(engine.events) == pending + 2
        assert ingest.safe_positions() == {0: 1}
        assert apache_kafka.committed(topic, group=group).offset == 1

        apache_kafka.topic(name=f"{topic}-dlq")
        until(lambda: ingest.safe_positions() == {0: 203}, "all is sent and read")
        assert ingest.wait_safe({0: 203}, 10)
        assert "dead_letters" not in ingest.statistics.snapshot(0)["problems"]
        letters = apache_kafka.records(f"{topic}-dlq", 201)
        assert {headers(letter)["mirach-offset"] for letter in letters} == {"1", *map(str, range(3, 203))}


def test_while_the_embedded_topic_fails_nothing_passes(embedded_kafka: EmbeddedKafka) -> None:
    topic = embedded_kafka.topic()
    dlq = embedded_kafka.topic(name=f"{topic}-dlq")
    embedded_kafka.broker.fail_topic(dlq, UNKNOWN_TOPIC_OR_PARTITION)
    embedded_kafka.send(topic, [create("first"), bad("wrong"), create("second")])
    with running(config(embedded_kafka, topic), Engine()) as ingest:
        until(lambda: "dead_letters" in ingest.statistics.snapshot(0)["problems"])
        assert ingest.safe_positions() == {0: 1}
        embedded_kafka.broker.fail_topic(dlq, 0)
        until(lambda: ingest.safe_positions() == {0: 3})


def test_what_was_not_sent_at_a_stop_is_sent_by_the_next_start(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.topic()
    apache_kafka.send(topic, [bad("wrong"), create("good")])
    with running(config(apache_kafka, topic), Engine(), stop_s=0.1) as ingest:
        until(lambda: ingest.statistics.snapshot(0)["dead_letters"]["pending"] == 1)
    assert apache_kafka.committed(topic, group=f"group-of-{topic}").offset <= 0
    apache_kafka.topic(name=f"{topic}-dlq")
    with running(config(apache_kafka, topic), Engine()) as ingest:
        until(lambda: ingest.safe_positions() == {0: 2})
    assert apache_kafka.end(f"{topic}-dlq") == 1


def test_a_replay_does_not_send_again_what_was_committed(any_kafka: Broker) -> None:
    topic = any_kafka.topic()
    any_kafka.topic(name=f"{topic}-dlq")
    any_kafka.send(topic, [bad("wrong-1"), create("good"), bad("wrong-2")])
    with running(config(any_kafka, topic), Engine()) as ingest:
        until(lambda: ingest.safe_positions() == {0: 3})
    any_kafka.send(topic, [bad("wrong-3")])
    with running(config(any_kafka, topic), Engine()) as ingest:
        until(lambda: ingest.safe_positions() == {0: 4})
        assert ingest.statistics.snapshot(0)["dead_letters"] == {"sent": 1, "pending": 0, "already_sent": 2}
        assert ingest.statistics.snapshot(0)["outcomes"]["bad"] == 3
    letters = any_kafka.records(f"{topic}-dlq", 3)
    assert [letter.key() for letter in letters] == [b"wrong-1", b"wrong-2", b"wrong-3"]
    assert any_kafka.end(f"{topic}-dlq") == 3


def test_commits_of_another_schema_do_not_count(any_kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = any_kafka.topic()
    any_kafka.topic(name=f"{topic}-dlq")
    any_kafka.send(topic, [bad("wrong")])
    with running(config(any_kafka, topic), Engine()) as ingest:
        until(lambda: ingest.safe_positions() == {0: 1})
        ingest._reader._schema_fingerprint = "another"
        any_kafka.send(topic, [create("good")])
        until(lambda: ingest.safe_positions() == {0: 2})
    assert any_kafka.committed(topic, group=f"group-of-{topic}").metadata.endswith(":another")
    with running(config(any_kafka, topic), Engine()) as ingest:
        until(lambda: ingest.safe_positions() == {0: 2})
    assert any_kafka.end(f"{topic}-dlq") == 2


def test_a_large_event_is_a_dead_letter_too(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.topic()
    apache_kafka.topic(name=f"{topic}-dlq")
    large = create("large", filler="x" * 1_040_000)  # near what a broker takes by default
    apache_kafka.send(topic, [large, create("good")], **{"message.max.bytes": 2_000_000})
    engine = Engine(lambda event: Outcome.INDEX_FULL if event.ad_id == "large" else Outcome.APPLIED)
    with running(config(apache_kafka, topic), engine) as ingest:
        until(lambda: ingest.safe_positions() == {0: 2})
    assert apache_kafka.records(f"{topic}-dlq", 1)[0].value() == large.value
