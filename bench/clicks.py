"""A click log over the synthetic ads, from a seed, whose truth is known: for the model of the demo and for tests.

Every impression shows an ad drawn evenly, and is clicked with a probability whose logit is the sum of
  the user's liking of the ad's category (three of 26 are liked, more by some ages and genders),
  what was clicked last (each category makes one other one likelier until the next click),
  what the user looked at in the shop (another surface) before,
  the format in its placement and on its device (the serving context),
  and the ad's own quality (its advertiser's, and its title's).
So each tower has something to find, and the best that any model can reach is what `probability` itself reaches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from bench.ads import ad_id, ads
from bench.vocabulary import CATEGORIES, TITLES

Json = dict[str, Any]

ADS, USERS = 2_000, 4_000
IMPRESSIONS_MIN, IMPRESSIONS_MAX = 20, 80  # of one user
PLACEMENTS, DEVICES = ("feed", "story", "search"), ("mobile", "desktop", "tv")
FORMATS = ("banner", "native", "video", "audio")
AGES = (18, 25, 35, 50)  # where each age group begins
GENDERS = ("female", "male")
BASE = -2.6
LIKED, FOLLOWS, LOOKED = 2.2, 1.6, 1.2
SHOP_VISITS = 0.15  # for each impression
VALIDATION_FROM, TEST_FROM = 0.8, 0.9  # of a user's impressions


class ClickLog(NamedTuple):
    items: list[Json]
    users: list[Json]
    interactions: list[Json]
    probability: NDArray[np.float64]  # [interaction] of a click; NaN for what is on another surface


class _Truth(NamedTuple):
    cohort: NDArray[np.float64]  # [age group, gender, category]
    follows: NDArray[np.int64]  # [category] the one that it makes likelier
    format: NDArray[np.float64]  # [placement, device, format]
    advertiser: dict[str, float]
    title: NDArray[np.float64]  # [title]


def click_log(seed: int, ad_count: int = ADS, user_count: int = USERS) -> ClickLog:
    shown = list(ads(seed, ad_count))
    rng = default_rng(seed + 5)
    names = sorted({ad["advertiser_id"] for ad in shown})
    truth = _Truth(
        rng.normal(0, 0.7, (len(AGES), len(GENDERS), len(CATEGORIES))), rng.permutation(len(CATEGORIES)),
        rng.normal(0, 0.7, (len(PLACEMENTS), len(DEVICES), len(FORMATS))),
        dict(zip(names, rng.normal(0, 0.5, len(names)).tolist(), strict=True)), rng.normal(0, 0.3, len(TITLES)),
    )  # fmt: skip
    category = np.array([CATEGORIES.index(ad["fields"]["categories"]) for ad in shown])
    form = np.array([FORMATS.index(ad["fields"]["format"]) for ad in shown])
    quality = np.array(
        [truth.advertiser[ad["advertiser_id"]] + truth.title[TITLES.index(ad["features"]["title"])] for ad in shown]
    )
    log = ClickLog([_item(number, ad) for number, ad in enumerate(shown)], [], [], np.empty(0))
    chances: list[float] = []
    for u in range(user_count):
        age, gender = int(rng.integers(18, 66)), int(rng.integers(len(GENDERS)))
        log.users.append({"user_id": f"u{u}", "age": age, "gender": GENDERS[gender]})
        base = truth.cohort[np.searchsorted(AGES, age, side="right") - 1, gender].copy()  # [category]
        likes = np.exp(base) / np.exp(base).sum()
        base[rng.choice(len(base), 3, replace=False, p=likes)] += LIKED
        chances += _user(rng, truth, log, u, base, (category, form, quality))
    return log._replace(probability=np.array(chances))


def _user(
    rng: Generator, truth: _Truth, log: ClickLog, user: int, base: NDArray[np.float64],
    of_ads: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]],
) -> list[float]:  # fmt: skip
    """One user's impressions, in order, to the log -> the probabilities"""
    category, form, quality = of_ads
    count = int(rng.integers(IMPRESSIONS_MIN, IMPRESSIONS_MAX + 1))
    picks, luck = rng.integers(len(category), size=count), rng.random((count, 2))
    where = rng.integers((len(PLACEMENTS), len(DEVICES)), size=(count, 2)).tolist()
    followed = looked = -1
    chances = []
    for n, (ad, (placement, device)) in enumerate(zip(picks.tolist(), where, strict=True)):
        split = "train" if n < VALIDATION_FROM * count else "validation" if n < TEST_FROM * count else "test"
        row = {"user_id": f"u{user}", "time": 2 * n + 1, "split": split}
        if luck[n, 0] < SHOP_VISITS:  # just before, and of a category that the user likes
            near = rng.choice(len(base), p=np.exp(base) / np.exp(base).sum())
            visited = int(rng.choice(np.flatnonzero(category == near))) if (category == near).any() else ad
            looked = int(category[visited])
            log.interactions.append(
                row | {"item_id": ad_id(visited), "time": 2 * n, "label": 1, "surface": "shop",
                       "context.placement": None, "context.device": None}
            )  # fmt: skip
            chances.append(np.nan)
        logit = BASE + base[category[ad]] + quality[ad] + truth.format[placement, device, form[ad]]
        logit += FOLLOWS * (category[ad] == followed) + LOOKED * (category[ad] == looked)
        chance = 1 / (1 + np.exp(-logit))
        clicked = bool(luck[n, 1] < chance)
        log.interactions.append(
            row | {"item_id": ad_id(ad), "label": int(clicked), "surface": None,
                   "context.placement": PLACEMENTS[placement], "context.device": DEVICES[device]}
        )  # fmt: skip
        chances.append(chance)
        if clicked:
            followed = int(truth.follows[category[ad]])
    return chances


def _item(number: int, ad: Json) -> Json:
    """The ad as the service's ad tower sees it."""
    fields = ad["fields"]
    return {
        "item_id": ad_id(number), "advertiser_id": ad["advertiser_id"], "categories": fields["categories"],
        "format": fields["format"], "language": fields["language"], "text": ad["features"]["title"],
    }  # fmt: skip
