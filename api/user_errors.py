"""What the other rooms raise when the user can mend it, as the one error that the command line prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from api.config import UserError, nearest_name
from gpu_index.invalid_input import InvalidInput
from gpu_index.schema import SchemaError
from gpu_index.snapshot import DoesNotFit
from ingest.config import IngestConfigError
from ingest.embedded import EmbeddedBrokerError
from ingest.places import PlacesError
from ingest.produce import ProduceError
from kernels.memory import AddressSpaceError
from scoring.model.served import ModelError

USERS = (
    SchemaError, PlacesError, IngestConfigError, EmbeddedBrokerError, ProduceError, AddressSpaceError, DoesNotFit,
    InvalidInput, ModelError,
)  # fmt: skip
UNKNOWN_PROPERTY = re.compile(r'No such configuration property: "([^"]+)"')
# librdkafka knows some two hundred; these are what is set in practice, to name the nearest to a misspelt one.
KAFKA_PROPERTIES = (
    "security.protocol", "sasl.mechanisms", "sasl.username", "sasl.password", "sasl.oauthbearer.config",
    "sasl.oauthbearer.method", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope", "sasl.oauthbearer.token.endpoint.url", "sasl.kerberos.service.name",
    "sasl.kerberos.principal", "sasl.kerberos.keytab", "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location",
    "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem", "ssl.key.password", "ssl.keystore.location",
    "ssl.keystore.password", "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification",
    "client.id", "client.rack", "client.dns.lookup", "debug", "socket.keepalive.enable", "socket.timeout.ms",
    "socket.connection.setup.timeout.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms",
    "connections.max.idle.ms", "broker.address.family", "broker.address.ttl", "metadata.max.age.ms",
    "topic.metadata.refresh.interval.ms", "session.timeout.ms", "heartbeat.interval.ms", "fetch.min.bytes",
    "fetch.max.bytes", "fetch.wait.max.ms", "fetch.message.max.bytes", "fetch.queue.backoff.ms",
    "max.partition.fetch.bytes", "queued.min.messages", "queued.max.messages.kbytes", "receive.message.max.bytes",
    "message.max.bytes", "check.crcs", "compression.type", "linger.ms", "batch.size", "batch.num.messages",
    "message.timeout.ms", "request.timeout.ms", "statistics.interval.ms", "log_level",
)  # fmt: skip


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Turns what the user can mend into UserError."""
    try:
        yield
    except USERS as error:
        text = str(error)
        unknown = UNKNOWN_PROPERTY.search(text)
        if unknown:
            text += f"; the nearest of the usual ones is {nearest_name(unknown[1], KAFKA_PROPERTIES)}"
        raise UserError(text) from error
