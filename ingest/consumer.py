"""The thread that reads the topic and hands batches of decoded events to the engine.

Partitions are assigned from known offsets; no group decides what is read. A loop receives records into one lane per
partition (merge.py), hands on what the order allows, and pauses the partitions whose lanes are full: when the engine
or the dead-letter topic does not keep up, the lanes fill, and the broker keeps the rest. Nothing is dropped, and the
client is polled all the while.

Offsets that the broker no longer has are a gap. It is reported, and by `on_gap` the partition is held (the service is
not ready) or read on from where it begins now. A partition that ends before the offset to be read, or a topic that
was made again, is held in any case: new events would carry offsets that the index has seen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from gpu_index.events import Batch
from ingest.accounting import Accounting
from ingest.commits import Commits
from ingest.config import IngestConfig
from ingest.dead_letters import DeadLetters
from ingest.decode import Decoder
from ingest.merge import Lane, take
from ingest.statistics import Gap, GapKind, PartitionState, Statistics
from ingest.watch import TopicView, TopicWatcher

CONSUME_MAX = 1000  # records received at once
POLL_S = 0.1  # how long an idle loop waits for a record; also how soon it notices that it shall stop
BLOCKED_POLL_S = 0.02  # the same while a batch waits for the engine or for the dead-letter topic
SINK_S = 0.05
RESUME_SHARE = 0.5  # of a lane's bounds: below it a paused partition is read again
BUFFER_BYTES_MIN = 1 << 20  # of a lane, however many partitions share the bound
RECEIVED_BYTES_MAX = 16 << 20  # at once, on top of a lane's bound: what the client queues, and a fetch

OFFSETS_LOST = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)

_LOG = logging.getLogger("mirach.ingest")

Sink = Callable[[Batch, float], bool]


class Reader:
    def __init__(
        self,
        config: IngestConfig,
        consumer: Consumer,
        watcher: TopicWatcher,
        decoder: Decoder,
        commits: Commits,
        accounting: Accounting,
        dead_letters: DeadLetters,
        statistics: Statistics,
        sink: Sink,
        schema_fingerprint: str,
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        """`sink(batch, timeout_s)` takes a batch and says so, or waits that long and says that it cannot."""
        self._config = config
        self._consumer = consumer
        self._watcher = watcher
        self._decoder = decoder
        self._commits = commits
        self._accounting = accounting
        self._dead_letters = dead_letters
        self._statistics = statistics
        self._sink = sink
        self._schema_fingerprint = schema_fingerprint
        self._start_offsets: Mapping[int, int] = {}
        self._lanes: dict[int, Lane] = {}
        self._arrivals = 0
        self._seen: TopicView | None = None
        self._topic_id: str | None = None
        self._replaced = False
        self._stalled: dict[int, int] = {}  # partition -> offset to read next, below the partition's first one
        self._waiting: Batch | None = None  # decoded, not taken by the engine yet
        self._stopping = threading.Event()
        self._thread = thread(target=self._run, name="mirach-consumer", daemon=True)

    def start(self, start_offsets: Mapping[int, int], topic_id: str | None) -> None:
        """Reads on from these offsets (partition -> next one to read) of the topic with this id; partitions not named
        from their beginning."""
        self._start_offsets = dict(start_offsets)
        self._topic_id = topic_id
        self._thread.start()

    def stop(self) -> None:
        """Hands nothing on any more; what was received and not handed on is read again by the next start."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def identity(self) -> str:
        """Under which topic and schema offsets are committed."""
        return f"{self._topic_id or self._config.topic}:{self._schema_fingerprint}"

    def _run(self) -> None:
        try:
            while self.turn():
                pass
        except Exception as error:
            _LOG.exception("reading of events failed")
            self._statistics.failed(f"{type(error).__name__}: {error}")

    def turn(self) -> bool:
        """One round of the loop; False once it is to end."""
        if self._stopping.is_set() or self._statistics.failure is not None:
            return False
        self._follow_topic()
        self._receive()
        self._hand_on()
        self._pause_and_resume()
        if self._commits.commit_when_due(self._accounting.safe_positions(), self.identity):
            self._statistics.ended(self._ends())
        return True

    def _ends(self) -> dict[int, int]:
        """Where the partitions end, as the last fetches said."""
        ends = {}
        for partition in self._lanes:
            known = self._consumer.get_watermark_offsets(TopicPartition(self._config.topic, partition), cached=True)
            if known is not None and known[1] >= 0:
                ends[partition] = known[1]
        return ends

    def waiting(self) -> tuple[int, int]:
        """Events of the fullest lane, and bytes of all. Any thread may ask."""
        lanes = list(self._lanes.values())
        return max((len(lane.records) for lane in lanes), default=0), sum(lane.bytes for lane in lanes)

    @property
    def bytes_max(self) -> int:
        """Of all lanes: above it partitions are paused."""
        return max(self._config.buffer_bytes_max, BUFFER_BYTES_MIN * len(self._lanes))

    # what the topic looks like

    def _follow_topic(self) -> None:
        """Takes up partitions that are new, and finds out about offsets that are lost, when there was a new look."""
        view = self._watcher.view
        if view is None or view is self._seen or self._replaced:
            return
        first, self._seen = self._seen is None, view
        self._statistics.topic_seen(view.topic_id, view.partitions)
        if self._topic_id is None:
            self._topic_id = view.topic_id
        elif view.topic_id not in (None, self._topic_id):
            self._topic_replaced()
            return
        for lane in list(self._lanes.values()):
            if lane.partition in view.bounds and not lane.held:
                self._check_bounds(lane, view)
        new = sorted(view.bounds.keys() - self._lanes.keys())
        if new:
            self._take_up(new, view, first)

    def _take_up(self, new: list[int], view: TopicView, first: bool) -> None:
        self._dead_letters.already_sent_below(self._commits.ask(new, self.identity, self._stopping))
        for partition in new:
            begins_at, end = view.bounds[partition]
            start = self._start_offsets.get(partition)
            first_offset = begins_at if start is None else start
            # one that comes to a service at work is read as it arrives: nothing waits for its records
            end_at_start = first_offset if self._statistics.caught_up else end
            lane = Lane(partition, first_offset, end_at_start, anchored=start is not None)
            if start is None and begins_at > 0:
                _LOG.warning("partition %d begins at offset %d: events before it are gone", partition, begins_at)
            fresh_from = end if first else lane.read
            state = PartitionState(begins_at, lane.read, end, fresh_from, lane.read, end, lane.read)
            self._statistics.partition_taken_up(partition, state)
            self._accounting.taken_up(partition, lane.read)
            self._lanes[partition] = lane
            _LOG.info("partition %d: reading from offset %d, it ends at %d", partition, lane.read, end)
            self._assign(lane)
            if not begins_at <= lane.read <= end:
                lane.lost_at_look = view.look - 1
                self._check_bounds(lane, view)

    def _assign(self, lane: Lane) -> None:
        self._consumer.incremental_assign([TopicPartition(self._config.topic, lane.partition, lane.read)])

    def _unassign(self, lane: Lane) -> None:
        self._consumer.incremental_unassign([TopicPartition(self._config.topic, lane.partition)])

    def _assign_again(self, lane: Lane) -> None:
        self._unassign(lane)
        self._assign(lane)
        if lane.paused:
            self._consumer.resume([TopicPartition(self._config.topic, lane.partition)])
            lane.paused = False

    # lost offsets

    def _check_bounds(self, lane: Lane, view: TopicView) -> None:
        """Compares the offset to read next with where the partition begins and ends. Only a look that began after the
        offset was found lost can say why; and what retention took may have been received before and be on its way
        here, so that without such a finding nothing must have arrived since the look before."""
        begins_at, end = view.bounds[lane.partition]
        lost = lane.lost_at_look is not None and view.look > lane.lost_at_look
        stalled = self._stalled.pop(lane.partition, None) == lane.read
        if lane.read < begins_at and not lane.paused:
            self._stalled[lane.partition] = lane.read
        if not lost and not (stalled and lane.read < begins_at):
            return
        lane.lost_at_look = None
        if lane.read > end:
            self._gap(lane, "ahead", None)
        elif lane.read < begins_at and lane.anchored:
            self._gap(lane, "removed", begins_at)
        elif lane.read < begins_at:
            lane.read = begins_at  # nothing of it was read yet: it just begins later than it did
        if not lane.held:
            self._assign_again(lane)

    def _gap(self, lane: Lane, kind: GapKind, reads_on: int | None) -> None:
        refused = reads_on is None or self._config.on_gap == "refuse"
        what = {
            "removed": f"offsets {lane.read} to {(reads_on or 0) - 1} of partition {lane.partition} are gone; ads that "
            "expired there would be served",
            "ahead": f"partition {lane.partition} ends before offset {lane.read}, which was to be read next; its log "
            "was cut off or it is another topic",
            "replaced": f"topic {self._config.topic} was deleted and made again",
        }[kind]
        if reads_on is None:
            what += "; start again, without a snapshot, to build the index from the beginning"
        elif refused:
            what += "; MIRACH_ON_GAP=continue accepts that"
        gap = Gap(lane.partition, kind, lane.read, None if refused else reads_on, refused, what)
        self._statistics.gap_found(gap)
        _LOG.log(logging.ERROR if refused else logging.WARNING, "gap: %s", what)
        if refused:
            lane.held = True
            self._unassign(lane)
        elif reads_on is not None:
            lane.read = reads_on

    def _topic_replaced(self) -> None:
        """What was received and not handed on may be of the other topic."""
        self._replaced = True
        if not self._lanes:  # nothing was read yet, so nothing can be held: only another start can find out more
            self._statistics.failed(f"topic {self._config.topic} was deleted and made again during the start")
        self._waiting = None
        for lane in self._lanes.values():
            lane.forget()
            if not lane.held:
                self._gap(lane, "replaced", None)

    # records in, batches out

    def _receive(self) -> None:
        """One poll, so that a single event goes on at once, then whatever else is there already."""
        message = self._consumer.poll(POLL_S if self._waiting is None else BLOCKED_POLL_S)
        if message is None:
            return
        for each in [message, *self._consumer.consume(CONSUME_MAX - 1, 0)]:
            partition = each.partition()
            lane = None if partition is None else self._lanes.get(partition)
            error = each.error()
            if error is not None:
                self._error(error, lane, each)
            elif lane is not None and not lane.held and each.offset() >= lane.read:  # type: ignore[operator]
                self._arrivals += 1
                lane.push(each, self._arrivals)

    def _error(self, error: KafkaError, lane: Lane | None, message: Message) -> None:
        code = error.code()
        if lane is None or lane.held:
            pass
        elif code == KafkaError._PARTITION_EOF:
            lane.read = max(lane.read, message.offset() or 0)  # past markers and aborted transactions
            return
        elif code in OFFSETS_LOST:
            lane.lost_at_look = self._watcher.looks
            self._watcher.look_soon()
            return
        if error.fatal():
            raise KafkaException(error)
        _LOG.warning("Kafka: %s", error.str())

    def _hand_on(self) -> None:
        """Gives the engine all that may go, until it is full. When a look found no topic, nothing goes until one finds
        it again: what comes may be of another topic with its name."""
        if self._seen is None or self._seen.absences != self._watcher.absences:
            return
        while not self._stopping.is_set():
            if self._waiting is None:
                self._waiting = self._next_batch()
            if self._waiting is None or self._accounting.full or not self._sink(self._waiting, SINK_S):
                return
            self._accounting.handed_on(self._waiting)
            self._waiting = None

    def _next_batch(self) -> Batch | None:
        records, positions = take(self._lanes, self._config.batch_events_max, self._config.batch_bytes_max)
        if not records and not positions:
            return None
        decode = self._decoder.decode
        events = []
        size = 0
        for record in records:
            value = record.value()
            size += 0 if value is None else len(value)
            timestamp_ms = record.timestamp()[1]
            events.append(decode(record.key(), value, record.partition(), record.offset(), timestamp_ms))  # type: ignore[arg-type]
        self._statistics.bytes_received(size)
        return self._accounting.batch(records, events, positions)

    def _pause_and_resume(self) -> None:
        """Bounds what is received and not handed on, for each partition by itself."""
        events_max = self._config.buffer_events_max
        bytes_max = max(BUFFER_BYTES_MIN, self._config.buffer_bytes_max // max(1, len(self._lanes)))
        for lane in self._lanes.values():
            filled = max(len(lane.records) / events_max, lane.bytes / bytes_max)
            if lane.held or lane.lost_at_look is not None:
                continue
            if not lane.paused and filled >= 1:
                self._consumer.pause([TopicPartition(self._config.topic, lane.partition)])
                lane.paused = True
            elif lane.paused and filled < RESUME_SHARE:
                self._consumer.resume([TopicPartition(self._config.topic, lane.partition)])
                lane.paused = False
