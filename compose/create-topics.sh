#!/bin/bash
# Makes the topic of ad events and the dead-letter topic, where they do not exist yet.
set -euo pipefail

make_topic() { # NAME PARTITIONS CONFIG...
    local name="$1" partitions="$2"
    shift 2
    /opt/kafka/bin/kafka-topics.sh --bootstrap-server "$BOOTSTRAP_SERVERS" --create --if-not-exists \
        --topic "$name" --partitions "$partitions" --replication-factor 1 "${@/#/--config=}"
}

# An ad lives until it expires, so the topic is kept for ever: without a snapshot the index is built from its beginning.
make_topic "$TOPIC" "$PARTITIONS" retention.ms=-1
make_topic "$DLQ_TOPIC" 1 retention.ms=1209600000 # two weeks to look at what was bad
