"""The table of Meta's targeting fields: what each becomes, or why it is refused. docs/adapters.md shows it.

Sources: Meta's Marketing API reference (basic, advanced, flexible and placement targeting, Advantage+ audience) and the
field lists of its SDKs. A refused field is accepted where it says nothing (null, an empty list), and a switch where it
is off: there is then nothing to honour.
"""

from __future__ import annotations

from typing import NamedTuple


class Segment(NamedTuple):
    """A kind of detailed targeting, which stands at the top level, in an element of flexible_spec or in exclusions."""

    attribute: str
    is_number: bool = False

    def value(self, kind: str, key: str) -> str:
        return f"{kind}:{key}" if self.attribute == DEMOGRAPHICS else key


DEMOGRAPHICS = "user.demographics"

# Kinds that are ORed where they stand together.
SEGMENTS = {
    "interests": Segment("user.interests"),
    "behaviors": Segment("user.behaviors"),
    "college_years": Segment("user.college_years", is_number=True),
    "education_majors": Segment("user.education_majors"),
    "education_schools": Segment("user.education_schools"),
    "education_statuses": Segment("user.education_statuses", is_number=True),
    "family_statuses": Segment("user.family_statuses"),
    "income": Segment("user.income"),
    "industries": Segment("user.industries"),
    "interested_in": Segment("user.interested_in", is_number=True),
    "life_events": Segment("user.life_events"),
    "relationship_statuses": Segment("user.relationship_statuses", is_number=True),
    "work_employers": Segment("user.work_employers"),
    "work_positions": Segment("user.work_positions"),
    "ethnic_affinity": Segment(DEMOGRAPHICS),
    "generation": Segment(DEMOGRAPHICS),
    "home_ownership": Segment(DEMOGRAPHICS),
    "home_type": Segment(DEMOGRAPHICS),
    "home_value": Segment(DEMOGRAPHICS),
    "household_composition": Segment(DEMOGRAPHICS),
    "moms": Segment(DEMOGRAPHICS),
    "net_worth": Segment(DEMOGRAPHICS),
    "office_type": Segment(DEMOGRAPHICS),
    "politics": Segment(DEMOGRAPHICS),
    "user_adclusters": Segment(DEMOGRAPHICS),
}
# Kinds that flexible_spec and exclusions take too, but that are ANDed at the top level.
AUDIENCES = {
    "custom_audiences": Segment("audience"),
    "connections": Segment("user.connections"),
    "friends_of_connections": Segment("user.friends_of_connections"),
}
FLEXIBLE = SEGMENTS | AUDIENCES


class Honoured(NamedTuple):
    attributes: str
    meaning: str


_POSITIONS = "positions of that platform; absent: all of them"
_EFFECTIVE = "what Meta made of the placement fields: a second condition of the same form, ANDed"
_SEGMENT = "one of the ids; all such kinds at the top level are ORed, and ANDed with the rest"

HONOURED = {
    "age_min": Honoured("age", "lowest age, 13 to 65; absent: 18"),
    "age_max": Honoured("age", "highest age, 13 to 65; 65, or absent: open"),
    "age_range": Honoured("age", "lowest and highest age; together with age_min or age_max both hold"),
    "genders": Honoured("gender", "1 is male, 2 is female; absent: all, users of unknown gender too"),
    "geo_locations": Honoured("geo.*", "one of the places (next table)"),
    "excluded_geo_locations": Honoured("geo.*", "none of the places"),
    "locales": Honoured("user.locales", "one of Meta's numbers, as they are: groups are not unfolded"),
    **{kind: Honoured(segment.attribute, _SEGMENT) for kind, segment in SEGMENTS.items()},
    "custom_audiences": Honoured("audience", "in one of the audiences"),
    "excluded_custom_audiences": Honoured("audience", "in none of the audiences"),
    "connections": Honoured("user.connections", "connected to one of them"),
    "excluded_connections": Honoured("user.connections", "connected to none of them"),
    "friends_of_connections": Honoured("user.friends_of_connections", "a friend of somebody connected to one of them"),
    "flexible_spec": Honoured(
        "as its kinds", "every element holds; an element holds if one id of one of its kinds does"
    ),
    "exclusions": Honoured("as its kinds", "no id of any of its kinds"),
    "publisher_platforms": Honoured("placement.platform", "one of the platforms; absent: all six"),
    "facebook_positions": Honoured("placement.position", _POSITIONS),
    "instagram_positions": Honoured("placement.position", _POSITIONS),
    "audience_network_positions": Honoured("placement.position", _POSITIONS),
    "messenger_positions": Honoured("placement.position", _POSITIONS),
    "threads_positions": Honoured("placement.position", _POSITIONS),
    "whatsapp_positions": Honoured("placement.position", _POSITIONS),
    "device_platforms": Honoured("device.platform", "mobile, desktop, connected_tv; absent: all"),
    "effective_publisher_platforms": Honoured("placement.platform", _EFFECTIVE),
    "effective_facebook_positions": Honoured("placement.position", _EFFECTIVE),
    "effective_instagram_positions": Honoured("placement.position", _EFFECTIVE),
    "effective_audience_network_positions": Honoured("placement.position", _EFFECTIVE),
    "effective_messenger_positions": Honoured("placement.position", _EFFECTIVE),
    "effective_threads_positions": Honoured("placement.position", _EFFECTIVE),
    "effective_whatsapp_positions": Honoured("placement.position", _EFFECTIVE),
    "effective_device_platforms": Honoured("device.platform", _EFFECTIVE),
    "user_os": Honoured(
        "device.os, device.os_version", "one of the systems (lower case); _and_above and _to_ are inclusive bounds"
    ),
    "user_device": Honoured("device.model", "one of the models"),
    "excluded_user_device": Honoured("device.model", "none of the models"),
    "wireless_carrier": Honoured("device.connection_type", "Wifi is 2, AdCOM's Wi-Fi; no other value is documented"),
}

# Honoured where they are off. What each would do where it is on:
SWITCHES = {
    "targeting_automation": "Meta would show the ad beyond its targeting (1); 0 is honoured, absent is read as 0",
    "targeting_optimization": "Meta would expand detailed targeting (expansion_all); none is honoured",
    "targeting_relaxation_types": "Meta would expand custom and lookalike audiences (1); 0 is honoured",
    "direct_install_devices": "no attribute says whether a device installs apps directly",
    "instream_video_skippable_excluded": "no attribute says whether the video around the ad can be skipped",
    "is_whatsapp_destination_ad": "it speaks of the ad, not of the user, and Meta does not document whom it leaves out",
    "user_age_unknown": "Meta does not document how it goes with age_min and age_max",
}

_LEGACY = "a field of old API versions, at the top level; write it inside geo_locations"
_UNDOCUMENTED = "Meta does not document what it means"
_BRAND_SAFETY = "it is about the content beside the ad, as rated by Meta"
_PRODUCTS = "it is about events with products, which Meta evaluates"
_ENGAGEMENT = "it is about engagement with other ads, which Meta evaluates"
_PUBLISHERS = "it is about publishers, by lists and categories that Meta keeps"

REFUSED = {
    "adgroup_id": "it names an ad set, not users",
    "alternate_auto_targeting_option": _UNDOCUMENTED,
    "app_install_state": "no attribute says which apps a user has installed",
    "brand_safety_content_filter_levels": _BRAND_SAFETY,
    "catalog_based_targeting": _PRODUCTS,
    "cities": _LEGACY,
    "contextual_targeting_categories": _UNDOCUMENTED,
    "countries": _LEGACY,
    "country": _LEGACY,
    "country_groups": _LEGACY,
    "dynamic_audience_ids": _PRODUCTS,
    "engagement_specs": _ENGAGEMENT,
    "exclude_reached_since": "it is about who has seen the ad, which Meta keeps",
    "excluded_brand_safety_content_types": _BRAND_SAFETY,
    "excluded_dynamic_audience_ids": _PRODUCTS,
    "excluded_engagement_specs": _ENGAGEMENT,
    "excluded_mobile_device_model": f"{_UNDOCUMENTED}; excluded_user_device is honoured",
    "excluded_product_audience_specs": _PRODUCTS,
    "excluded_publisher_categories": _PUBLISHERS,
    "excluded_publisher_list_ids": _PUBLISHERS,
    "fb_deal_id": "it names a deal, not users",
    "install_state_application": "no attribute says which apps a user has installed",
    "keywords": "a field of old API versions; write interests",
    "place_page_set_ids": "it is about visits to places, which Meta evaluates",
    "political_views": f"{_UNDOCUMENTED}; politics is honoured",
    "product_audience_specs": _PRODUCTS,
    "prospecting_audience": _PRODUCTS,
    "radius": _LEGACY,
    "regions": _LEGACY,
    "site_category": _UNDOCUMENTED,
    "user_event": _UNDOCUMENTED,
    "zips": _LEGACY,
}

FIELDS = (*HONOURED, *SWITCHES, *REFUSED)
