"""What an exchange forbids: which ads pass the filters that a BidRequest becomes."""

from __future__ import annotations

import pytest

from api.openrtb import map_request
from gpu_index.schema import Schema
from gpu_index.values import InvalidInput
from tests.api.bid_requests import BANNER, NOW_US, SETTINGS, Json, body_of, fits, refusal, request


def test_a_blocked_category_blocks_what_is_below_it() -> None:
    asked = request(bcat=["IAB25", "IAB7-39", "IAB24"])
    for category in ("IAB25", "IAB25-3", "IAB25-7", "IAB7-39", "IAB24"):
        assert not fits(asked, format="banner", categories=[category])
        assert not fits(asked, format="banner", categories=["IAB1", category])
    for category in ("IAB7", "IAB7-3", "IAB7-38", "IAB2-5", "IAB26"):
        assert fits(asked, format="banner", categories=[category])
    assert fits(asked, format="banner")


def test_categories_of_another_taxonomy_are_compared_as_text() -> None:
    asked = request(bcat=["IAB25", "53"], cattax=6)
    assert not fits(asked, format="banner", categories=["53"])
    assert fits(asked, format="banner", categories=["IAB25-3"])
    assert refusal(request(bcat=["IAB25"], cattax="1")).path == "cattax"


def test_only_allowed_categories_fit() -> None:
    asked = request(acat=["IAB1"])
    assert fits(asked, format="banner", categories=["IAB1-6"])
    assert not fits(asked, format="banner", categories=["IAB2"])
    assert not fits(asked, format="banner")


def test_blocked_domains_and_apps() -> None:
    asked = request(badv=["Apple.com", "ford.com"], bapp=["com.foo.game", "628677149"])
    assert not fits(asked, format="banner", advertiser_domain="apple.com")
    assert not fits(asked, format="banner", advertiser_domain=["ford.com", "fine.com"])
    assert not fits(asked, format="banner", app_bundle="628677149")
    assert fits(asked, format="banner", advertiser_domain="www.fordham.edu", app_bundle="com.foo")


def test_only_allowed_languages_fit() -> None:
    asked = request(wlang=["en", "FR"])
    assert fits(asked, format="banner", language="fr")
    assert not fits(asked, format="banner", language="de")
    assert not fits(asked, format="banner")
    assert fits(request(wlangb=["zh-Hant"]), format="banner", language="zh-Hant")


def test_the_floor() -> None:
    asked = request(imp=[BANNER | {"bidfloor": 0.5}])
    assert fits(asked, bid=0.5, format="banner")
    assert not fits(asked, bid=0.49, format="banner")
    assert fits(request(imp=[BANNER | {"bidfloor": 0, "bidfloorcur": "EUR"}]), bid=0.01, format="banner")


def test_a_floor_of_another_currency_is_an_error_that_says_so() -> None:
    fault = refusal(request(imp=[BANNER | {"bidfloor": 0.5, "bidfloorcur": "EUR"}]))
    assert (fault.path, fault.code) == ("imp[0].bidfloorcur", "other_currency")
    assert "EUR" in fault.detail
    assert "USD" in fault.detail
    assert body_of(request(imp=[BANNER | {"bidfloor": 0.5, "bidfloorcur": "eur"}]), currency="EUR")
    assert "USD" in refusal(request(imp=[BANNER | {"bidfloor": 0.5}]), currency="EUR").detail  # OpenRTB's default


def test_floors_of_deals_are_the_bidders() -> None:
    deals = {"private_auction": 1, "deals": [{"id": "d", "bidfloor": 99, "bidfloorcur": "JPY"}]}
    assert fits(request(imp=[BANNER | {"bidfloor": 0.03, "pmp": deals}]), bid=0.03, format="banner")


def test_sizes_of_a_banner() -> None:
    asked = request(imp=[{"id": "1", "banner": {"w": 300, "h": 300, "format": [{"w": 300, "h": 250}, None]}}])
    assert fits(asked, format="banner", size="300x250")
    assert fits(asked, format="banner", size=["728x90", "300x300"])
    assert not fits(asked, format="banner", size="728x90")
    assert not fits(asked, format="banner")
    assert not fits(asked, size="300x250")
    assert not fits(asked, format="video", size="300x250")


@pytest.mark.parametrize(
    "banner", [{}, {"w": 300}, {"w": 0, "h": 0}, {"format": []}, {"format": [{"wratio": 16, "hratio": 9}]}]
)
def test_a_banner_without_sizes_takes_any(banner: Json) -> None:
    assert fits(request(imp=[{"id": "1", "banner": banner}]), format="banner")


def test_the_size_of_a_video_player_is_not_that_of_an_ad() -> None:
    asked = request(imp=[{"id": "1", "video": {"w": 640, "h": 480, "mimes": None}}])
    assert fits(asked, format="video")
    assert not fits(asked, format="banner")


def test_blocked_creative_attributes_count_for_their_own_object() -> None:
    imp = {"id": "1", "banner": {"battr": [6, 7]}, "video": {"battr": [13]}, "audio": {}, "native": {"battr": []}}
    asked = request(imp=[imp])
    assert not fits(asked, format="banner", creative_attributes=[7])
    assert fits(asked, format="banner", creative_attributes=[13])
    assert not fits(asked, format="video", creative_attributes=[13, 16])
    assert fits(asked, format="video", creative_attributes=[6])
    assert fits(asked, format=["banner", "video"], creative_attributes=[6])  # as a video
    assert not fits(asked, format=["banner", "video"], creative_attributes=[6, 13])
    for name in ("audio", "native"):
        assert fits(asked, format=name, creative_attributes=[6, 7, 13])
    assert fits(asked, format="banner")


def test_each_imp_is_a_pathway_with_its_own_filter() -> None:
    imps = [{"id": "top", "banner": {}, "bidfloor": 2}, {"id": "side", "native": {"request": "{}"}}]
    asked = request(imp=imps, bcat=["IAB1"])
    assert [pathway["name"] for pathway in body_of(asked)["pathways"]] == ["top", "side"]
    assert fits(asked, pathway="top", bid=2, format="banner")
    assert not fits(asked, pathway="top", bid=1, format="banner")
    assert fits(asked, pathway="side", bid=1, format="native")
    assert not fits(asked, pathway="side", format="native", categories="IAB1-1")


def test_a_schema_that_cannot_tell_what_is_forbidden_says_so() -> None:
    schema = Schema.parse('[fields.format]\ntype = "category"\n[fields.size]\ntype = "integer"\n')
    for asked, path in (
        (request(bcat=["IAB1"]), "bcat"),
        (request(badv=["a.com"]), "badv"),
        (request(imp=[{"id": "1", "banner": {"w": 1, "h": 1}}]), "imp[0].banner"),
        (request(imp=[{"id": "1", "banner": {"battr": [1]}}]), "imp[0].banner.battr"),
    ):
        with pytest.raises(InvalidInput) as caught:
            map_request(asked, schema, SETTINGS, NOW_US)
        assert (caught.value.path, caught.value.code) == (path, "unknown_field")
