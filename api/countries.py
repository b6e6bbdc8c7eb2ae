"""Countries: ISO 3166-1 codes of three letters to those of two, and the one clock of a country that has only one.

The codes are those of ISO 3166-1 (249 countries) and, since exchanges send it, the user-assigned code of Kosovo.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

# Each word is a code of three letters and the code of two letters that it stands for.
_CODES = """
ABWAW AFGAF AGOAO AIAAI ALAAX ALBAL ANDAD AREAE ARGAR ARMAM ASMAS ATAAQ ATFTF ATGAG AUSAU AUTAT AZEAZ BDIBI
BELBE BENBJ BESBQ BFABF BGDBD BGRBG BHRBH BHSBS BIHBA BLMBL BLRBY BLZBZ BMUBM BOLBO BRABR BRBBB BRNBN BTNBT
BVTBV BWABW CAFCF CANCA CCKCC CHECH CHLCL CHNCN CIVCI CMRCM CODCD COGCG COKCK COLCO COMKM CPVCV CRICR CUBCU
CUWCW CXRCX CYMKY CYPCY CZECZ DEUDE DJIDJ DMADM DNKDK DOMDO DZADZ ECUEC EGYEG ERIER ESHEH ESPES ESTEE ETHET
FINFI FJIFJ FLKFK FRAFR FROFO FSMFM GABGA GBRGB GEOGE GGYGG GHAGH GIBGI GINGN GLPGP GMBGM GNBGW GNQGQ GRCGR
GRDGD GRLGL GTMGT GUFGF GUMGU GUYGY HKGHK HMDHM HNDHN HRVHR HTIHT HUNHU IDNID IMNIM INDIN IOTIO IRLIE IRNIR
IRQIQ ISLIS ISRIL ITAIT JAMJM JEYJE JORJO JPNJP KAZKZ KENKE KGZKG KHMKH KIRKI KNAKN KORKR KWTKW LAOLA LBNLB
LBRLR LBYLY LCALC LIELI LKALK LSOLS LTULT LUXLU LVALV MACMO MAFMF MARMA MCOMC MDAMD MDGMG MDVMV MEXMX MHLMH
MKDMK MLIML MLTMT MMRMM MNEME MNGMN MNPMP MOZMZ MRTMR MSRMS MTQMQ MUSMU MWIMW MYSMY MYTYT NAMNA NCLNC NERNE
NFKNF NGANG NICNI NIUNU NLDNL NORNO NPLNP NRUNR NZLNZ OMNOM PAKPK PANPA PCNPN PERPE PHLPH PLWPW PNGPG POLPL
PRIPR PRKKP PRTPT PRYPY PSEPS PYFPF QATQA REURE ROURO RUSRU RWARW SAUSA SDNSD SENSN SGPSG SGSGS SHNSH SJMSJ
SLBSB SLESL SLVSV SMRSM SOMSO SPMPM SRBRS SSDSS STPST SURSR SVKSK SVNSI SWESE SWZSZ SXMSX SYCSC SYRSY TCATC
TCDTD TGOTG THATH TJKTJ TKLTK TKMTM TLSTL TONTO TTOTT TUNTN TURTR TUVTV TWNTW TZATZ UGAUG UKRUA UMIUM URYUY
USAUS UZBUZ VATVA VCTVC VENVE VGBVG VIRVI VNMVN VUTVU WLFWF WSMWS YEMYE ZAFZA ZMBZM ZWEZW
XKXXK
"""

ALPHA_2_BY_ALPHA_3 = {word[:3]: word[3:] for word in _CODES.split()}
ALPHA_2 = frozenset(ALPHA_2_BY_ALPHA_3.values())

# Zones of a fixed offset in minutes that is not of whole hours; no daylight saving time. Whole hours have Etc/GMT±h.
_ZONE_BY_PART_HOUR_OFFSET = {
    -570: "Pacific/Marquesas",
    210: "Asia/Tehran",
    270: "Asia/Kabul",
    330: "Asia/Kolkata",
    345: "Asia/Kathmandu",
    390: "Asia/Yangon",
    525: "Australia/Eucla",
    570: "Australia/Darwin",
}
_WHOLE_HOURS_MIN, _WHOLE_HOURS_MAX = -12, 14  # Etc/GMT+12 … Etc/GMT-14: the signs are those of POSIX, not of ISO 8601


def alpha_2(code: str) -> str | None:
    """The code of two letters for one of two or three letters, in any case; None if there is no such country."""
    code = code.upper()
    return code if code in ALPHA_2 else ALPHA_2_BY_ALPHA_3.get(code)


def zone_of_offset(minutes: int) -> str | None:
    """A zone whose clocks are always `minutes` ahead of UTC; None if IANA has none."""
    hours, rest = divmod(minutes, 60)
    if rest:
        return _ZONE_BY_PART_HOUR_OFFSET.get(minutes)
    if not _WHOLE_HOURS_MIN <= hours <= _WHOLE_HOURS_MAX:
        return None
    return f"Etc/GMT{-hours:+d}" if hours else "Etc/UTC"


def zone_of_country(country: str) -> str | None:
    """The zone of a country (two letters) all of whose clocks agree from now on; None if they differ."""
    return _zones_by_country().get(country)


@lru_cache(maxsize=1)
def _zones_by_country() -> dict[str, str]:
    """From tzdata: the first zone of each country in zone.tab, where all of the country's zones follow one rule. The
    rule from now on is the POSIX text that ends a zone's TZif file (RFC 9636)."""
    folder = resources.files("tzdata").joinpath("zoneinfo")
    zones: dict[str, list[str]] = {}
    for line in folder.joinpath("zone.tab").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            country, _, zone = line.split("\t")[:3]
            zones.setdefault(country, []).append(zone)

    def rule(name: str) -> bytes:
        return folder.joinpath(*name.split("/")).read_bytes().rstrip().rsplit(b"\n", 1)[-1]

    return {country: names[0] for country, names in zones.items() if names[1:] == [] or len(set(map(rule, names))) == 1}
