"""Parse times that people write, each of which must be one instant."""

from __future__ import annotations

import datetime
import re
import zoneinfo

from labcore.errors import LabError

EXAMPLES = "2026-01-31 12:00 UTC, 2026-01-31T12:00+01:00 or 2026-01-31 12:00 Europe/Berlin"


def parse_time(text: str, what: str) -> datetime.datetime:
    """Return an instant in UTC.

    Args:
        text: what the person wrote.
        what: the flag or the column, for the message.

    Raises LabError for a time without a zone, or in an hour that daylight saving time skips or
    repeats, because it would be a guess.
    """
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)"
                         r" ?(Z|UTC|[+-]\d\d:?\d\d|[A-Z][A-Za-z_]+(?:/[A-Za-z0-9_+-]+)+)?",
                         text.strip())
    try:
        if match is None:
            raise ValueError
        time = datetime.datetime.fromisoformat(f"{match[1]}T{match[2]}")
    except ValueError:
        raise LabError(f"{what} {text!r} is not a time; write one as {EXAMPLES}") from None
    if match[3] is None:
        raise LabError(f"{what} {text!r} names no time zone; write {EXAMPLES}")
    return in_zone(time, match[3], f"{what} {text!r}")


def in_zone(time: datetime.datetime, zone: str, what: str) -> datetime.datetime:
    """Return the instant, in UTC, at which the clocks of a zone show a time.

    Args:
        time: the time, without a zone.
        zone: UTC, an offset, or a name such as Europe/Berlin.
        what: where both come from, for the message.

    Raises LabError for an unknown zone, and for a time that does not exist or occurs twice.
    """
    if zone in ("Z", "UTC"):
        return time.replace(tzinfo=datetime.UTC)
    if zone[:1] in ("+", "-"):
        try:
            return datetime.datetime.fromisoformat(time.isoformat() + zone).astimezone(datetime.UTC)
        except (ValueError, OverflowError):
            raise LabError(f"{what}: unknown time zone {zone}") from None
    try:
        place = zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise LabError(f"{what}: unknown time zone {zone}; nearest: an offset such as +01:00"
                       ) from None
    early, late = (time.replace(tzinfo=place, fold=fold) for fold in (0, 1))
    if early.utcoffset() != late.utcoffset():
        raise LabError(f"{what}: the clocks of {zone} change then, so this time does not exist "
                       "or occurs twice; write the offset, for example "
                       f"{late.isoformat(' ', 'minutes')}")
    return early.astimezone(datetime.UTC)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
