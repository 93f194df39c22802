"""The verdicts of cancels and moves, and the results of calls for many tasks or runs."""

import enum
from datetime import datetime
from typing import NamedTuple, Optional

from .topics import time_of


class Extensible(str, enum.Enum):
    """An enum whose member ``OTHER`` stands for the values that this client does not know."""

    @classmethod
    def _missing_(cls, value):
        return cls.OTHER


class Verdict(Extensible):
    """The result of a cancel."""

    CANCELLED = "cancelled"
    TOO_LATE = "too_late"
    REPLACED = "replaced"
    NOT_FOUND = "not_found"
    #: One that this client does not know.
    OTHER = "other"


class Cancelled(NamedTuple):
    verdict: Verdict
    #: The task as the API shows it, or None if there is none.
    task: Optional[dict]


class MoveVerdict(Extensible):
    """The result of a move."""

    #: The task is due at the new time.
    MOVED = "moved"
    #: The task is on its way, or has ended: nothing was changed.
    TOO_LATE = "too_late"
    #: Another task has replaced the one of this id: move the one of ``replaced_by``.
    REPLACED = "replaced"
    NOT_FOUND = "not_found"
    #: One that this client does not know.
    OTHER = "other"


class Moved(NamedTuple):
    verdict: MoveVerdict
    #: The task as the API shows it, or None if there is none.
    task: Optional[dict]


class Redriven(NamedTuple):
    """The result of a redrive of many dead letters."""

    #: The tasks that were redriven; in a dry run, those that would be.
    count: int
    #: True if there are more: other callers were at work at them, or the call has failed there.
    has_more: bool


class Backfilled(NamedTuple):
    """The result of a backfill of a schedule."""

    #: The number of runs that were made; in a dry run, of those that would be.
    made: int
    #: The number of runs that had been made before.
    already_made: int
    #: The instants of the schedule in the range.
    runs: list[datetime]


def backfilled_of(body):
    """Reads a backfill from an answer."""
    return Backfilled(body["made"], body["already_made"], [time_of(run) for run in body["runs"]])
