"""For orchestrators and Prometheus: whether the process lives, whether the index has caught up, and the metrics."""

from __future__ import annotations

import time

from fastapi import APIRouter, Response

from api.metrics import CONTENT_TYPE, Snapshot
from api.problems import NOT_READY, Problem
from api.replies import json_response
from api.service import Service
from api.version import VERSION


def probe_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz")
    async def health() -> Response:
        return json_response({"status": "alive"})

    @router.get("/readyz")
    async def readiness() -> Response:
        if service.stopping:
            raise Problem(NOT_READY, "the service is stopping")
        progress = service.progress()
        if not progress.ready:
            raise Problem(NOT_READY, progress.detail, more={"progress": progress.partitions})
        return json_response({"status": "ready", "progress": progress.partitions})

    @router.get("/metrics")
    async def metrics() -> Response:
        towers = service.towers.statistics
        histograms = service.statistics.histograms()
        snapshot = Snapshot(
            requests=service.metrics,
            index=await service.index_figures(),
            ingest=service.statistics.snapshot(time.time_ns() // 1000),
            freshness={name: (held.cumulative(), held.sum_s) for name, held in histograms.items()},
            snapshots=service.snapshots.figures(),
            model=service.model_figures(),
            towers={"seconds": towers.seconds, "batch_users": towers.batch_users},
            ready=service.progress().ready and not service.stopping,
            build={"version": VERSION, **service.backend.figures(), "precision": service.loaded.settings.precision},
        )
        return Response(snapshot.exposition(), media_type=CONTENT_TYPE)

    return router
