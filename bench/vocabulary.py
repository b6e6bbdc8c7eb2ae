"""What random ads and requests are made of: values of the default schema's attributes, and how often each is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from numpy.random import Generator


class Choice(NamedTuple):
    """An attribute of a listed vocabulary, or a boolean one."""

    name: str
    vocabulary: Sequence[str] | Sequence[int]  # the frequent ones first
    targeted: float  # share of the targetings that have a leaf on it
    carried: float  # share of the requests that have a value
    values_max: int  # of one leaf
    carried_max: int  # of one request; above 1: a list


class Place(NamedTuple):
    country: str
    region: str
    city: str
    metro: str
    lat: float
    lon: float
    zone: str


INTEREST_NAMES = [f"i{number}" for number in range(5_000)]
AUDIENCE_NAMES = [f"a{number}" for number in range(50_000)]
ADVERTISERS = 5_000

# ISO 3166-1 alpha-2, by the size of the ad market first, 200 of them
COUNTRIES = (
    "US CN GB JP DE FR BR CA IN AU KR IT ES MX NL ID SE CH TW PL BE TR AR AT NO DK FI IE PT GR CZ RO HU IL SG HK NZ ZA "
    "TH MY PH VN CL CO PE AE SA EG NG KE MA PK BD LK UA SK BG HR RS SI LT LV EE IS LU CY MT AL BA MK ME MD BY GE AM AZ "
    "KZ UZ KG TJ TM MN NP BT MM KH LA BN TL PG FJ SB VU WS TO KI FM PW MH NR TV EC VE BO PY UY GY SR CR PA GT HN SV NI "
    "BZ DO CU JM HT TT BB BS AG DM GD KN LC VC DZ TN LY SD SS ET ER DJ SO UG TZ RW BI CD CG GA CM CF TD NE ML BF SN GM "
    "GN GW SL LR CI GH TG BJ MR CV ST GQ AO ZM ZW MW MZ BW NA SZ LS MG MU SC KM JO LB SY IQ IR KW QA BH OM YE AF MV MO "
    "PR GU VI AS MP BM KY TC VG AI"
).split()

PLACES = (
    Place("US", "US-NY", "New York", "501", 40.7128, -74.0060, "America/New_York"),
    Place("US", "US-CA", "Los Angeles", "803", 34.0522, -118.2437, "America/Los_Angeles"),
    Place("US", "US-IL", "Chicago", "602", 41.8781, -87.6298, "America/Chicago"),
    Place("US", "US-TX", "Houston", "618", 29.7604, -95.3698, "America/Chicago"),
    Place("GB", "GB-ENG", "London", "GB1", 51.5074, -0.1278, "Europe/London"),
    Place("DE", "DE-BE", "Berlin", "DE1", 52.5200, 13.4050, "Europe/Berlin"),
    Place("FR", "FR-IDF", "Paris", "FR1", 48.8566, 2.3522, "Europe/Paris"),
    Place("BR", "BR-SP", "São Paulo", "BR1", -23.5505, -46.6333, "America/Sao_Paulo"),
    Place("JP", "JP-13", "Tokyo", "JP1", 35.6762, 139.6503, "Asia/Tokyo"),
    Place("IN", "IN-MH", "Mumbai", "IN1", 19.0760, 72.8777, "Asia/Kolkata"),
    Place("CA", "CA-ON", "Toronto", "CA1", 43.6532, -79.3832, "America/Toronto"),
    Place("AU", "AU-NSW", "Sydney", "AU1", -33.8688, 151.2093, "Australia/Sydney"),
    Place("ES", "ES-MD", "Madrid", "ES1", 40.4168, -3.7038, "Europe/Madrid"),
    Place("MX", "MX-CMX", "Mexico City", "MX1", 19.4326, -99.1332, "America/Mexico_City"),
    Place("US", "US-FL", "Miami", "528", 25.7617, -80.1918, "America/New_York"),
    Place("IT", "IT-25", "Milan", "IT1", 45.4642, 9.1900, "Europe/Rome"),
    Place("US", "US-WA", "Seattle", "819", 47.6062, -122.3321, "America/Los_Angeles"),
    Place("KR", "KR-11", "Seoul", "KR1", 37.5665, 126.9780, "Asia/Seoul"),
    Place("NL", "NL-NH", "Amsterdam", "NL1", 52.3676, 4.9041, "Europe/Amsterdam"),
    Place("ID", "ID-JK", "Jakarta", "ID1", -6.2088, 106.8456, "Asia/Jakarta"),
    Place("TR", "TR-34", "Istanbul", "TR1", 41.0082, 28.9784, "Europe/Istanbul"),
    Place("PL", "PL-14", "Warsaw", "PL1", 52.2297, 21.0122, "Europe/Warsaw"),
    Place("AR", "AR-C", "Buenos Aires", "AR1", -34.6037, -58.3816, "America/Argentina/Buenos_Aires"),
    Place("NZ", "NZ-AUK", "Auckland", "NZ1", -36.8509, 174.7645, "Pacific/Auckland"),
)

LANGUAGES = "en es pt fr de ja zh hi ar ru it ko id nl tr pl sv th vi uk cs ro hu el da fi no he ms bn ta te".split()
VERSION_NAMES = [f"{major}.{minor}" for major in range(9, 19) for minor in (0, 2, 5)]
CATEGORIES = [[f"IAB{first}-{1 + (first * 7) % 12}", f"IAB{first}"] for first in range(1, 27)]
TITLES = ("Autumn sale", "New in store", "Try it free", "Back in stock", "Two for one", "Last days", "Made to last")


def _numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(1, count + 1)]


# the broad ones first, then a long tail that one targeting in twenty or fewer has
CHOICES = (
    Choice("gender", ("female", "male"), 0.15, 1.0, 1, 1),
    Choice("device.type", (4, 2, 5, 3, 7, 6), 0.25, 1.0, 3, 1),
    Choice("language", LANGUAGES, 0.20, 1.0, 3, 1),
    Choice("geo.region", [place.region for place in PLACES], 0.05, 0.0, 3, 1),  # carried with the place
    Choice("geo.city", [place.city for place in PLACES], 0.05, 0.0, 3, 1),
    Choice("geo.metro", [place.metro for place in PLACES], 0.05, 0.0, 3, 1),
    Choice("geo.zip", _numbered("US:9", 3_000), 0.02, 0.5, 20, 1),
    Choice("geo.location_type", ("home", "recent", "travel_in"), 0.05, 0.8, 2, 1),
    Choice("user.relationship_statuses", range(1, 14), 0.05, 0.8, 3, 1),
    Choice("user.education_statuses", range(1, 14), 0.05, 0.8, 3, 1),
    Choice("user.locales", range(1, 60), 0.05, 0.8, 3, 2),
    Choice("user.industries", _numbered("industry", 20), 0.05, 0.8, 3, 1),
    Choice("user.income", _numbered("bracket", 5), 0.05, 0.8, 2, 1),
    Choice("user.family_statuses", _numbered("family", 10), 0.05, 0.8, 3, 1),
    Choice("user.life_events", _numbered("event", 20), 0.05, 0.8, 3, 2),
    Choice("user.behaviors", _numbered("behavior", 200), 0.05, 0.8, 5, 6),
    Choice("user.work_positions", _numbered("position", 2_000), 0.02, 0.8, 10, 1),
    Choice("user.connections", _numbered("page", 10_000), 0.03, 0.8, 3, 20),
    Choice("device.platform", ("mobile", "desktop"), 0.05, 1.0, 1, 1),
    Choice("device.make", _numbered("make", 10), 0.05, 0.8, 3, 1),
    Choice("device.os", ("Android", "iOS", "Windows", "macOS", "Linux"), 0.05, 1.0, 2, 1),
    Choice("device.browser", _numbered("browser", 8), 0.05, 0.8, 3, 1),
    Choice("device.carrier", _numbered("carrier", 40), 0.05, 0.8, 3, 1),
    Choice("device.connection_type", (2, 6, 5, 3, 7, 1), 0.05, 0.8, 2, 1),
    Choice("placement.platform", ("facebook", "instagram", "audience_network", "messenger"), 0.05, 1.0, 3, 1),
    Choice("placement.position", _numbered("feed:", 12), 0.05, 1.0, 4, 1),
    Choice("app.category", _numbered("IAB", 26), 0.05, 0.8, 3, 3),
    Choice("app.bundle", _numbered("com.example.app", 3_000), 0.02, 0.6, 10, 1),
    Choice("site.category", _numbered("IAB", 26), 0.05, 0.4, 3, 3),
    Choice("site.domain", _numbered("site", 3_000), 0.02, 0.4, 10, 1),
    Choice("content.genre", _numbered("genre", 20), 0.05, 0.5, 3, 1),
    Choice("content.language", LANGUAGES, 0.05, 0.5, 2, 1),
    Choice("content.rating", _numbered("rating", 6), 0.05, 0.5, 2, 1),
    Choice("site.mobile", (True, False), 0.03, 0.4, 1, 1),
    Choice("content.live", (True, False), 0.02, 0.4, 1, 1),
    Choice("custom.tier", _numbered("tier", 10), 0.05, 0.8, 3, 1),
    Choice("custom.segment", _numbered("segment", 5_000), 0.03, 0.8, 5, 5),
)


def skewed(rng: Generator, size: int, count: int) -> list[int]:
    """`count` numbers below `size`, the small ones often: the cube of a uniform draw."""
    return (size * rng.random(count) ** 3).astype(int).tolist()  # type: ignore[no-any-return]
