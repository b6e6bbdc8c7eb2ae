"""The broker of a soak, which the service reaches through a proxy: Apache Kafka where it is at hand, else the embedded.

What is produced does not go through the proxy of Apache Kafka, but through that of the embedded broker, whose clients
are all told one address.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Protocol

from bench.soak.proxy import Proxy
from ingest.embedded import EmbeddedBroker

TOPIC, DLQ_TOPIC = "ad-events", "ad-events-dlq"
PARTITIONS = 3
KAFKA = Path(__file__).resolve().parents[3] / "shared" / "kafka" / "kafka"  # beside the checkout
COMMAND_S = 120.0
UNKNOWN_TOPIC_OR_PARTITION = 3  # of the Kafka protocol


class Broker(Protocol):
    name: str
    address: str  # for whoever produces
    service_address: str
    proxy: Proxy

    def dead_letters_writable(self, writable: bool) -> None: ...

    def close(self) -> None: ...


def start_broker(folder: Path, *, embedded: bool) -> Broker:
    if embedded or not KAFKA.exists() or shutil.which("java") is None:
        return Embedded()
    return Apache(folder)


class Embedded:
    """Keeps the newest 5 MiB of each partition only, which is enough from one snapshot to the next."""

    name = "the embedded broker"

    def __init__(self) -> None:
        self._broker = EmbeddedBroker({TOPIC: PARTITIONS, DLQ_TOPIC: 1})
        host, _, port = self._broker.bootstrap_servers.partition(":")
        self.proxy = Proxy(int(port))
        self._broker.advertise(host, self.proxy.port)
        self.address = self.service_address = f"127.0.0.1:{self.proxy.port}"

    def dead_letters_writable(self, writable: bool) -> None:
        self._broker.fail_topic(DLQ_TOPIC, 0 if writable else UNKNOWN_TOPIC_OR_PARTITION)

    def close(self) -> None:
        self._broker.close()
        self.proxy.close()


class Apache:
    """A broker with two listeners, one of them advertised as the proxy."""

    name = "Apache Kafka"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        direct, behind, controller = _free_ports(3)
        self.proxy = Proxy(behind)
        self.address, self.service_address = f"127.0.0.1:{direct}", f"127.0.0.1:{self.proxy.port}"
        folder.mkdir(parents=True)
        (folder / "extra.properties").write_text(
            f"listeners=PLAINTEXT://{self.address},BEHIND://127.0.0.1:{behind},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.address},BEHIND://{self.service_address}\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,BEHIND:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
        )
        _run("start", str(folder))
        for name, partitions in ((TOPIC, PARTITIONS), (DLQ_TOPIC, 1)):
            _run("topics", "--create", "--topic", name, "--partitions", str(partitions),
                 "--bootstrap-server", self.address)  # fmt: skip

    def dead_letters_writable(self, writable: bool) -> None:
        """The topic takes records of a megabyte, or of a byte."""
        _run("configs", "--bootstrap-server", self.address, "--alter", "--entity-type", "topics", "--entity-name",
             DLQ_TOPIC, "--add-config", f"max.message.bytes={1_048_588 if writable else 1}")  # fmt: skip

    def close(self) -> None:
        _run("kill", str(self._folder))
        self.proxy.close()


def _run(*arguments: str) -> None:
    done = subprocess.run(  # noqa: S603
        [str(KAFKA), *arguments], capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    assert done.returncode == 0, (arguments, done.stderr)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
