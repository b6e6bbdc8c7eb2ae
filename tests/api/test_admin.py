"""The operator's routes, their token, the probes and the metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.openapi import document
from tests.api.running import SCHEMA, Running
from tests.api.test_http import US, problem

Start = Callable[..., Running]

ADMIN = ["/v1/admin/index", "/v1/admin/ads/1", "/v1/admin/ingest", "/v1/admin/config"]


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_index_tells_counts_capacity_and_memory(service: Running) -> None:
    figures = service.get("/v1/admin/index").json()
    assert (figures["ads"], figures["targetings"], figures["zero_embeddings"]) == (6, 2, 6)
    assert (figures["precision"], figures["backend"]) == ("int8", "cpu")
    assert figures["capacity"]["ads"] >= 6
    assert sum(figures["memory_bytes"].values()) > 0


def test_an_ad_is_shown_as_indexed(service: Running) -> None:
    found = service.get("/v1/admin/ads/3").json()
    assert found["ad"]["bid"] == 4
    assert found["ad"]["targeting"] == {"attr": "geo.country", "in": ["US", "DE"]}
    assert (found["version"], found["partition"], found["offset"]) == (1, 0, 3)
    assert found["eligibility"]["eligible"] is True
    problem(service.get("/v1/admin/ads/77"), 404, "unknown-ad")


def test_an_ad_id_may_have_any_character(start: Start) -> None:
    running = start()
    for ad_id, address in [("a/b", "a/b"), ("a b%", "a%20b%25"), ("é?", "%C3%A9%3F")]:
        running.take({"type": "create", "ad_id": ad_id, "ad": {"bid": 1}})
        assert running.get(f"/v1/admin/ads/{address}").json()["ad_id"] == ad_id


def test_a_line_break_in_an_ad_id_does_not_show_another_ad(start: Start) -> None:
    running = start()
    for ad_id in ("a", "a\n", "a\nb", "\n"):
        running.take({"type": "create", "ad_id": ad_id, "ad": {"bid": 1}})
    for ad_id, address in [("a", "a"), ("a\n", "a%0A"), ("a\nb", "a%0Ab"), ("\n", "%0A")]:
        assert running.get(f"/v1/admin/ads/{address}").json()["ad_id"] == ad_id
    problem(running.get("/v1/admin/ads/a%0A%0A"), 404, "unknown-ad")


def test_explain_says_which_part_is_false(service: Running) -> None:
    body = {"ad_id": "2", "request": {"attributes": {"geo.country": "DE"}}}
    explained = service.post("/v1/admin/explain", body).json()
    assert explained["eligible"] is False
    assert explained["targeting"] == {"attr": "geo.country", "in": ["US"], "value": "DE", "result": False}
    assert service.post("/v1/admin/explain", {"ad_id": "2", "request": US}).json()["pathways"][0]["rank"] == 4
    problem(service.post("/v1/admin/explain", {"ad_id": "77", "request": US}), 404, "unknown-ad")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "ad_id"), ({"ad_id": "1"}, "request"), ({"ad_id": 1, "request": {}}, "ad_id"), ({"request": {}}, "ad_id"),
        ({"ad_id": "1", "request": {"k": 0}}, "request.k"), ({"ad_id": "1", "request": []}, "request"),
        ({"ad_id": "1", "request": {}, "requst": {}}, "requst"), ({"ad_id": "1", "request": None}, "request"),
    ],
)  # fmt: skip
def test_a_bad_body_of_explain_is_placed(service: Running, body: Any, path: str) -> None:
    assert problem(service.post("/v1/admin/explain", body), 422, "invalid-request")["path"] == path


def test_ingest_and_config_tell_how_it_stands(start: Start) -> None:
    running = start(admin_token="hush", kafka={"sasl.password": "hush"})
    ingest = running.get("/v1/admin/ingest", headers=bearer("hush")).json()
    assert ingest["partitions"]["0"]["position"] == 0
    config = running.get("/v1/admin/config", headers=bearer("hush"))
    assert config.json()["settings"]["port"] == {"value": 8080, "source": "default"}
    assert "hush" not in config.text


def test_admin_asks_for_the_token_and_nothing_else_does(start: Start) -> None:
    running = start(admin_token="s3cret")
    for address in ADMIN:
        wrong = ("Bearer wrong", "Bearer ", "Bearer s3cret2", "Basic s3cret", "s3cret")
        for headers in ({}, *({"authorization": text} for text in wrong)):
            response = running.get(address, headers=headers)
            problem(response, 401, "unauthorized")
            assert response.headers["www-authenticate"].startswith("Bearer")
        assert running.get(address, headers=bearer("s3cret")).status_code in (200, 404)
        assert running.get(address, headers={"authorization": "bearer s3cret"}).status_code in (200, 404)
    problem(running.post("/v1/admin/explain", b"{"), 401, "unauthorized")
    assert running.get(ADMIN[0], headers={"authorization": "Bearer \xe9".encode("latin-1")}).status_code == 401
    for address in ("/healthz", "/readyz", "/metrics", "/console", "/docs", "/openapi.json"):
        assert running.get(address).status_code == 200, address


def test_metrics_are_prometheus_text_with_what_happened(start: Start) -> None:
    running = start()
    running.take(
        {"type": "create", "ad_id": "1", "ad": {"bid": 1}},
        {"type": "create", "ad_id": "2", "ad": {"bid": -1}},
        {"type": "modify", "ad_id": "3", "ad": {"bid": 1}},
    )
    running.post("/v1/retrieve", US)
    running.post("/v1/retrieve", b"{")
    running.get("/no/such/address")
    response = running.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    assert samples["mirach_http_requests_total", (("route", "/v1/retrieve"), ("status", "200"))] == 1
    assert samples["mirach_http_requests_total", (("route", "/v1/retrieve"), ("status", "400"))] == 1
    assert samples["mirach_http_requests_total", (("route", "other"), ("status", "404"))] == 1
    assert samples["mirach_http_request_seconds_count", (("route", "/v1/retrieve"),)] == 2
    assert samples["mirach_eligible_ads_count", ()] == 1
    assert samples["mirach_index_ads", ()] == 1
    assert samples["mirach_events_total", (("outcome", "applied"),)] == 1
    assert samples["mirach_events_total", (("outcome", "unknown_ad"),)] == 1
    assert samples["mirach_bad_events_total", (("code", "out_of_range"),)] == 1
    assert samples["mirach_freshness_seconds_count", (("since", "produce_time"),)] == 1
    assert samples["mirach_ready", ()] == 1
    assert samples["mirach_partition_position", (("partition", "0"),)] == 3


def test_the_document_has_every_route_and_no_other(service: Running) -> None:
    pages = {"/openapi.json", "/console", "/docs"}
    app = service.app
    routes = {
        (route.path_format, method.lower())
        for route in app.routes
        for method in route.methods
        if route.path_format not in pages and not route.path_format.startswith("/pages/")
    }
    paths = document(SCHEMA, service.loaded.settings)["paths"]
    assert {(path, method) for path, methods in paths.items() for method in methods} == routes


def test_pages_come_from_the_package_and_reach_for_nothing_outside(service: Running) -> None:
    for address in ("/console", "/docs"):
        page = service.get(address)
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http://" not in page.text.replace("http://www.w3.org/", "")
        assert "https://" not in page.text
        for name in [part.split('"')[0] for part in page.text.split('"/pages/')[1:]]:
            assert service.get(f"/pages/{name}").status_code == 200, name


def test_the_console_reads_what_the_routes_answer(start: Start) -> None:
    """Its scripts import each other from the package, and name nothing of an answer that is not in it."""
    running = start()
    scripts = {name: running.get(f"/pages/{name}").text for name in ("console.js", "figures.js", "panels.js")}
    for script in scripts.values():
        for name in re.findall(r'from "\./([^"]+)"', script):
            assert running.get(f"/pages/{name}").status_code == 200, name
    for route in ("index", "ingest", "model", "snapshots"):
        read = set(re.findall(rf"(?<![.\w]){route}\.(\w+)", scripts["figures.js"] + scripts["panels.js"]))
        assert read
        assert read <= running.get(f"/v1/admin/{route}").json().keys()


def test_pages_can_be_switched_off(start: Start) -> None:
    running = start(console=False)
    problem(running.get("/console"), 404, "not-found")
    problem(running.get("/docs"), 404, "not-found")
    assert running.get("/openapi.json").status_code == 200
