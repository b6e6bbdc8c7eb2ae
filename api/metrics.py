"""Prometheus metrics, made from snapshots at the moment of a scrape: between scrapes only plain counters move."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE = CONTENT_TYPE_LATEST
LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
ELIGIBLE_BUCKETS = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)

_process = ProcessCollector(registry=CollectorRegistry())


class Histogram:
    """Counts by bucket; `counts[i]` are the observations of at most `bounds[i]`, the last those above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """Upper bounds, the last infinity, and how many were within."""
        within, seen = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            within.append((bound, seen))
        return within


@dataclass(slots=True)
class RequestMetrics:
    """What the HTTP side counts. Touched by the event loop's thread alone."""

    begun: int = 0  # requests whose headers were read
    in_flight: int = 0  # and that are not answered yet
    answered: dict[tuple[str, int], int] = field(default_factory=dict)  # by route and status
    seconds: dict[str, Histogram] = field(default_factory=dict)  # by route
    eligible: Histogram = field(default_factory=lambda: Histogram(ELIGIBLE_BUCKETS))

    @property
    def unanswered(self) -> int:
        return self.begun - sum(self.answered.values())

    def observe(self, route: str, status: int, seconds: float) -> None:
        key = (route, status)
        self.answered[key] = self.answered.get(key, 0) + 1
        histogram = self.seconds.get(route)
        if histogram is None:
            histogram = self.seconds[route] = Histogram(LATENCY_BUCKETS_S)
        histogram.observe(seconds)


@dataclass(frozen=True, slots=True)
class Snapshot(Collector):
    """All that a scrape shows, each part as its admin route shows it."""

    requests: RequestMetrics
    index: Mapping[str, Any]  # Service.index_figures
    ingest: Mapping[str, Any]  # Statistics.snapshot
    freshness: Mapping[str, tuple[list[tuple[float, int]], float]]  # by kind: cumulative buckets, sum in seconds
    snapshots: Mapping[str, Any]  # Snapshots.figures
    model: Mapping[str, Any]  # Service.model_figures
    towers: Mapping[str, Histogram]  # of a batch of users: seconds, batch_users
    ready: bool
    build: Mapping[str, str]

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        yield gauge("mirach_build", "This build and what it runs on.", {(): 1.0}, labels=self.build)
        yield gauge("mirach_ready", "1 once the index has caught up with where the topic ended at start.",
                    {(): float(self.ready)})  # fmt: skip
        yield from self.request_families()
        yield from self.engine_families(self.index["engine"])
        yield from self.index_families()
        yield from self.limit_families()
        yield from self.ingest_families()
        yield from self.snapshot_families()
        yield from self.model_families()
        yield from _process.collect()

    def request_families(self) -> Iterator[Metric]:
        answered = {(route, str(status)): count for (route, status), count in self.requests.answered.items()}
        yield counter("mirach_http_requests", "Requests answered.", answered, ("route", "status"))
        seconds = HistogramMetricFamily("mirach_http_request_seconds", "From request to answer.", labels=["route"])
        for route, histogram in self.requests.seconds.items():
            seconds.add_metric([route], buckets(histogram.cumulative()), histogram.total)
        yield seconds
        eligible = self.requests.eligible
        family = HistogramMetricFamily("mirach_eligible_ads", "Ads that matched a request.")
        family.add_metric([], buckets(eligible.cumulative()), eligible.total)
        yield family

    def engine_families(self, engine: Mapping[str, Any]) -> Iterator[Metric]:
        yield gauge("mirach_engine_queued_requests", "Requests waiting for the engine.", {(): engine["queued"]})
        for name, description in (
            ("requests", "Requests answered by the engine; over passes it is the batch size."),
            ("passes", "Passes over the index, each answering a batch of requests."),
            ("requests_behind", "Requests given up because their offsets were not reached in time."),
            ("events", "Events given to the index."),
            ("batches", "Batches of events given to the index."),
        ):
            yield counter(f"mirach_engine_{name}", description, {(): engine[name]})
        busy = {("apply",): engine["apply_s"], ("answer",): engine["answer_s"]}
        yield counter("mirach_engine_busy_seconds", "What the engine's thread spent its time on.", busy, ("work",))

    def index_families(self) -> Iterator[Metric]:
        for name, description in (
            ("ads", "Ads in the index, paused ones too."),
            ("paused", "Paused ads."),
            ("live_now", "Ads that are active and within their start and end."),
            ("zero_embeddings", "Ads without a vector, ranked by their bid."),
            ("targetings", "Distinct targetings."),
            ("targetings_with_program", "Targetings that rows alone do not decide."),
            ("terms", "Distinct attribute values in use."),
            ("field_terms", "Distinct field values in use."),
            ("rows", "Values with a row of bits."),
            ("lists", "Values with a posting list."),
            ("expired_versions", "Versions remembered of expired ads."),
        ):
            yield gauge(f"mirach_index_{name}", description, {(): self.index[name]})
        evicted = {(): self.index["evicted_versions"]}
        yield counter("mirach_index_evicted_versions", "Versions of expired ads forgotten early for room.", evicted)
        yield gauge("mirach_index_held_bytes", "What the contents of the index take.", {(): self.index["held_bytes"]})
        capacity = {(part,): size for part, size in self.index["capacity"].items()}
        yield gauge("mirach_index_capacity", "How many the index may hold; 0 of held_bytes: any.", capacity, ("of",))
        memory = {(part,): size for part, size in self.index["memory_bytes"].items()}
        yield gauge("mirach_index_memory_bytes", "Memory by part of the index.", memory, ("part",))

    def limit_families(self) -> Iterator[Metric]:
        limits = self.index["limits"]
        for name, part, description in (
            ("mirach_limit", "limit", "Bounds of queues, caches and tables; docs/operations.md says what each is."),
            ("mirach_limit_in_use", "in_use", "What is in use of each."),
        ):
            yield gauge(name, description, {(of,): each[part] for of, each in limits.items()}, ("of",))

    def ingest_families(self) -> Iterator[Metric]:
        ingest = self.ingest
        outcomes = {(outcome,): count for outcome, count in ingest["outcomes"].items()}
        yield counter("mirach_events", "Events by what became of them.", outcomes, ("outcome",))
        faults = {(code,): count for code, count in ingest["faults"].items()}
        yield counter("mirach_bad_events", "Bad events by the code of their dead letter.", faults, ("code",))
        yield counter("mirach_event_bytes", "Bytes of events received.", {(): ingest["bytes"]})
        partitions = ingest["partitions"]
        for name, description in (("position", "Next offset to apply."), ("end", "End of the partition."),
                                  ("lag", "Offsets not applied yet.")):  # fmt: skip
            by_partition = {(partition,): state[name] for partition, state in partitions.items()}
            yield gauge(f"mirach_partition_{name}", description, by_partition, ("partition",))
        letters = ingest["dead_letters"]
        yield counter("mirach_dead_letters_sent", "Dead letters that are in their topic.", {(): letters["sent"]})
        yield gauge("mirach_dead_letters_pending", "Dead letters not yet in their topic.", {(): letters["pending"]})
        yield gauge("mirach_gaps", "Gaps of lost offsets found.", {(): ingest["gap_count"]})
        problems = {(problem,): 1.0 for problem in ingest["problems"]}
        yield gauge("mirach_ingest_problem", "1 for each part of ingest that has a problem.", problems, ("problem",))
        description = "From event or produce time to searchable."
        family = HistogramMetricFamily("mirach_freshness_seconds", description, labels=["since"])
        for since, (within, total) in self.freshness.items():
            family.add_metric([since], buckets(within), total)
        yield family

    def snapshot_families(self) -> Iterator[Metric]:
        tries = {(outcome,): self.snapshots[outcome] for outcome in ("written", "failed", "skipped")}
        yield counter("mirach_snapshots", "Snapshots tried, by what came of it.", tries, ("outcome",))
        yield counter("mirach_snapshot_written_bytes", "Bytes of chunks written for snapshots.",
                      {(): self.snapshots["bytes_written"]})  # fmt: skip
        if self.snapshots["age_s"] is not None:
            yield gauge("mirach_snapshot_age_seconds", "Since the newest good snapshot.",
                        {(): self.snapshots["age_s"]})  # fmt: skip
        last = self.snapshots["last"]
        if last is None:
            return
        yield gauge("mirach_snapshot_bytes", "Size of the newest snapshot.", {(): last["bytes"]})
        yield gauge("mirach_snapshot_seconds", "What writing the newest one took.", {(): last["seconds"]})
        yield gauge("mirach_snapshot_pause_seconds", "What the engine waited for it.", {(): last["pause_ms"] / 1e3})


    def model_families(self) -> Iterator[Metric]:
        model, ads = self.model, self.model["ad_tower"]
        if model["active"] is not None:
            labels = {name: model["active"][name] for name in ("name", "fingerprint")}
            yield gauge("mirach_model", "The model in use.", {(): 1.0}, labels=labels)
        switches = {(outcome,): model[outcome] for outcome in ("switched", "failed", "refused")}
        yield counter("mirach_model_switches", "Switches of the model, by what came of it.", switches, ("outcome",))
        yield counter("mirach_ads_embedded", "Ads that the model made vectors of.", {(): ads["ads"]})
        yield counter("mirach_ads_embedding_failed", "Ads that the model failed on.", {(): ads["failed"]})
        yield counter("mirach_ad_tower_batches", "Batches of ads given to the model.", {(): ads["batches"]})
        yield counter("mirach_ad_tower_busy_seconds", "What the model took for ads.", {(): ads["seconds"]})
        yield gauge("mirach_user_towers_waiting", "Users waiting for the model.",
                    {(): model["user_towers"]["waiting"]})  # fmt: skip
        understood = {
            (part, kind): count
            for part, counts in model["user_towers"]["understood"].items()
            for kind, count in counts.items()
        }
        yield counter("mirach_user_feature_values", "Values told of users and contexts, known to the model or unknown.",
                      understood, ("part", "kind"))  # fmt: skip
        for name, of, description in (
            ("mirach_user_towers_seconds", "seconds", "What the model took for a batch of users."),
            ("mirach_user_towers_batch_users", "batch_users", "Users that the model was given at once."),
        ):
            histogram = self.towers[of]
            family = HistogramMetricFamily(name, description)
            family.add_metric([], buckets(histogram.cumulative()), histogram.total)
            yield family


def buckets(cumulative: Sequence[tuple[float, int]]) -> list[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else str(bound), float(count)) for bound, count in cumulative]


def counter(name: str, description: str, values: Mapping[Any, float], names: Sequence[str] = ()) -> Metric:
    """A counter of values by their labels, a tuple of texts in the order of `names`."""
    family = CounterMetricFamily(name, description, labels=names)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def gauge(
    name: str,
    description: str,
    values: Mapping[Any, float],
    names: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> Metric:
    """A gauge of values by their labels; `names` are the labels' names. `labels`: fixed ones, of a gauge that only says
    them."""
    family = GaugeMetricFamily(name, description, labels=list(labels) if labels else list(names))
    for given, value in values.items():
        family.add_metric(list(labels.values()) if labels else given, value)
    return family
