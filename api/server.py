"""The process: everything wired together, served, and brought to an orderly end.

Four parties: the event loop on the main thread answers HTTP, the engine's thread owns the index, ingest's threads
read Kafka, another writes snapshots. The start listens, looks at the topic, restores a snapshot of it and reads on from
there. At SIGTERM: not ready at once; for `drain_s` everything goes on as before, so that load balancers can notice;
then no new connections, every answer closes its connection, and when all is answered ingest commits, the engine ends, a
last snapshot is written and the process exits 0. A second signal exits at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import uvicorn
from fastapi import FastAPI

from api.ad_stage import AdStage
from api.app import create_app
from api.backend import CPU, Backend, choose_backend
from api.config import ConfigError, Loaded, Settings
from api.engine import Engine, Stopped
from api.http_protocol import BoundedProtocol
from api.logs import set_up_logs
from api.models import Models
from api.parties import Parties
from api.requests import RequestParser
from api.service import Service
from api.shared_model import SharedModel, with_model
from api.snapshots import Snapshots
from api.towers import UserTowers
from api.user_errors import as_user_errors
from api.warm_up import compile_apart, warm_up
from gpu_index.disk import Folder
from gpu_index.index import Index, Limits
from gpu_index.manifest import Identity
from gpu_index.schema import Schema
from gpu_index.snapshot import DoesNotFit
from ingest.config import IngestConfig
from ingest.decode import Decoder
from ingest.meta import compile_meta
from ingest.places import Places
from ingest.source import Ingest
from ingest.watch import TopicView
from kernels.precision import Precision

LINGER_S = 1.0  # for clients that hold a connection open between requests: their next answer closes it
BEGIN_STOP_S = 10.0  # for a start that is not over
TOWERS_STOP_S = 5.0
LOOK_S = 0.5  # between checks for a stop while the topic is waited for
WATCH_S = 0.5
KEEP_ALIVE_S = 75
BACKLOG = 2048

log = logging.getLogger("mirach.server")


@dataclass(slots=True)
class Process:
    """What one process is made of."""

    service: Service
    parties: Parties
    app: FastAPI
    listener: socket.socket

    @property
    def address(self) -> str:
        host, port = self.listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def wire(loaded: Loaded) -> Process:
    """Everything put together and listening, nothing running yet.

    Raises UserError: the port is taken, or a file, a Kafka property or the capacity cannot be used.
    """
    listener = listen(loaded.settings.host, loaded.settings.port)
    try:
        with as_user_errors():
            return wire_parts(loaded, listener)
    except BaseException:
        listener.close()
        raise


def wire_parts(loaded: Loaded, listener: socket.socket) -> Process:
    loaded, model = with_model(loaded)
    settings = loaded.settings
    schema = Schema.load(settings.schema)
    places = None if settings.places is None else Places.load(settings.places)
    backend = choose_backend(settings.backend)
    engine = Engine(
        new_index(settings, schema, model, backend), clock_us=clock_us, requests_max=settings.request_queue_max,
        answered_max=backend.answered_max, attach=backend.attach,
    )  # fmt: skip
    stage = AdStage(engine)
    decoder = Decoder(
        schema,
        dim=settings.dim,
        gate_dim=settings.gate_dim,
        compile_meta=partial(compile_meta, places=places),
        event_bytes_max=settings.event_bytes_max,
    )
    ingest = Ingest(ingest_config(settings), schema, decoder, stage.offer)
    snapshots = Snapshots(
        Folder(settings.data_dir),
        engine,
        ingest.wait_safe,
        interval_s=settings.snapshot_interval_s,
        kept=settings.snapshots_kept,
        clock_us=clock_us,
    )
    models = Models(
        engine, stage, schema, model, settings.model, bytes_max=settings.model_switch_bytes_max, clock_us=clock_us
    )
    service = Service(
        loaded, schema, RequestParser.of(schema, settings, model), engine, ingest.statistics, snapshots,
        ingest.look_again, UserTowers(settings.request_queue_max), models,
        backend,
    )  # fmt: skip
    models.on_switch, models.set_widths = service.take_model, decoder.set_widths
    return Process(service, Parties(engine, ingest, snapshots, stage), create_app(service), listener)


def new_index(settings: Settings, schema: Schema, model: SharedModel | None, backend: Backend = CPU) -> Index:
    """An empty one, without its copy on a GPU. Raises AddressSpaceError."""
    return Index(
        schema,
        dim=settings.dim,
        gate_dim=settings.gate_dim,
        precision=Precision(settings.precision),
        limits=Limits(ads=settings.ads_max, targetings=settings.targetings_max, held_bytes=settings.index_bytes_max),
        expired_versions_s=settings.expired_versions_s,
        model=None if model is None else model.title,
        touched_max=backend.touched_max,
    )


def identity_of(settings: Settings, schema: Schema, model: SharedModel | None, view: TopicView) -> Identity:
    """What a snapshot must be of to be restored here."""
    return Identity(
        topic=settings.topic,
        topic_id=view.topic_id,
        cluster_id=view.cluster_id,
        schema_fingerprint=schema.fingerprint,
        model_fingerprint=None if model is None else model.fingerprint,
        dim=settings.dim,
        gate_dim=settings.gate_dim,
        precision=settings.precision,
    )


def ingest_config(settings: Settings) -> IngestConfig:
    return IngestConfig(
        bootstrap_servers=settings.kafka_bootstrap_servers,
        topic=settings.topic,
        dlq_topic=settings.dlq_topic,
        properties=settings.kafka,
        group_id=settings.group_id,
        on_gap=settings.on_gap,
        buffer_events_max=settings.buffer_events_max,
        dead_letters_max=settings.dead_letters_max,
    )


def clock_us() -> int:
    return time.time_ns() // 1000


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, before anything else is done: a port that is taken is said at once. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on host {host}: {error.strerror}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


class HttpServer(uvicorn.Server):
    """Uvicorn without its signal handlers: ours stop the whole process in order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.wait_ms_max // 1000 + 5,
    )


class Run:
    """One run of a process, from start to exit code."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.settings = process.service.loaded.settings
        self.exit_code = 0
        self._stopping: asyncio.Task[None] | None = None
        self._raised: Exception | None = None
        self._http = HttpServer(http_config(process.app, self.settings))

    async def serve(self, beside: Callable[[Run], Awaitable[None]] | None = None) -> int:
        """Serves until a signal or a failure. `beside` runs along: what it raises ends the service and is raised, its
        plain end changes nothing. -> exit code"""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.on_signal, number)
        process = self.process
        await asyncio.to_thread(process.parties.snapshots.lock)
        process.service.loading = True
        process.parties.start()
        process.service.towers.start()
        process.parties.engine.call(partial(timed_warm_up, process.service)).add_done_callback(self._loaded)
        backend = process.service.backend
        log.info("backend %s: %s", backend.name, backend.why)
        log.info("listening on %s, backend %s, precision %s", process.address, backend.name, self.settings.precision)
        begin = asyncio.create_task(self._begin())
        watch = asyncio.create_task(self._watch())
        companion = asyncio.create_task(self._accompany(beside))
        try:
            await self._http.serve(sockets=[process.listener])
        finally:
            watch.cancel()
            companion.cancel()
            await asyncio.wait([begin], timeout=BEGIN_STOP_S)
            await asyncio.to_thread(process.service.models.stop)
            await asyncio.to_thread(process.service.towers.stop, TOWERS_STOP_S)
            await asyncio.to_thread(process.parties.end)
        if self._raised is not None:
            raise self._raised
        counts = process.service.metrics
        log.info(
            "stopped: %d requests answered, %d not, exit code %d",
            counts.begun - counts.unanswered, counts.unanswered, self.exit_code,
        )  # fmt: skip
        return self.exit_code

    async def _begin(self) -> None:
        """Once the topic is there: restores a snapshot of it, and reads on from where it stands."""
        try:
            view = None
            while view is None:
                if self._stopping is not None:
                    return
                view = await asyncio.to_thread(self.process.parties.ingest.look, LOOK_S)
            await in_daemon(partial(self._restore_and_read, view))
        except Stopped:
            pass
        except Exception as error:
            if not isinstance(error, DoesNotFit):
                log.exception("the start failed")
            log.critical("stopping: %s", error)
            self.stop(exit_code=1)

    def _restore_and_read(self, view: TopicView) -> None:
        process, schema = self.process, self.process.service.schema
        model = process.service.models.active
        process.parties.begin(
            view,
            identity_of(self.settings, schema, model, view),
            lambda: new_index(self.settings, schema, model, process.service.backend),
        )

    def _loaded(self, warmed: Future[None]) -> None:
        """Ready as far as the kernels are concerned, or as good as it gets."""
        if not warmed.cancelled() and (error := warmed.exception()) is not None:
            log.error("the kernels could not be loaded beforehand", exc_info=error)
        self.process.service.loading = False

    async def _accompany(self, beside: Callable[[Run], Awaitable[None]] | None) -> None:
        try:
            if beside is not None:
                await beside(self)
        except Exception as error:
            self._raised = error
            self.stop(exit_code=1)

    def on_signal(self, number: int) -> None:
        if self._stopping is not None:
            os._exit(128 + number)
        log.info("%s: stopping", signal.Signals(number).name)
        self.stop()

    def stop(self, exit_code: int = 0) -> None:
        """Begins an orderly end."""
        if self._stopping is None:
            self.process.service.stopping = True
            self.exit_code = exit_code
            self._stopping = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        """Time for load balancers; then no new connections, and a moment for those between two requests."""
        await asyncio.sleep(self.settings.drain_s)
        for server in self._http.servers:
            server.close()
        deadline = time.monotonic() + LINGER_S
        while self._http.server_state.connections and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self._http.should_exit = True

    async def _watch(self) -> None:
        """Ends the process when one of its parties has ended by itself: a supervisor starts it again."""
        while True:
            parties = self.process.parties
            failure = parties.failure
            if failure is None and not parties.engine.alive and not self.process.service.stopping:
                failure = "the engine's thread has ended"
            if failure is not None:
                log.critical("stopping: %s", failure)
                self.stop(exit_code=1)
                return
            await asyncio.sleep(WATCH_S)


def in_daemon(function: Callable[[], None]) -> asyncio.Future[None]:
    """Runs a function on a thread that the end of the process does not wait for."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            function()
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, name="mirach-start", daemon=True).start()
    return asyncio.wrap_future(done)


def timed_warm_up(service: Service, index: Index) -> None:
    """On the engine's thread, before its first events."""
    began = time.perf_counter()
    if not compile_apart(index.precision, lambda: not service.stopping):
        return
    warm_up(index.schema, index.dim, index.gate_dim, index.precision, service.backend)
    log.info("kernels are loaded after %.1f s", time.perf_counter() - began)


def serve(loaded: Loaded) -> int:
    """`mirach serve`. Raises UserError."""
    set_up_logs(loaded.settings)
    process = wire(loaded)
    with runner() as running:
        return running.run(Run(process).serve())


def runner() -> asyncio.Runner:
    """A runner on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # not for Windows
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
