"""The answers of consumers about attempts of tracked tasks, and the bodies of calls for many."""

import re
from datetime import date, datetime, timedelta
from typing import NamedTuple, Optional

from .problems import Problem
from .verdicts import Extensible

#: Statuses of calls, and of parts of them, that were not done, or perhaps: they are repeated.
REPEATED = (408, 429, 500, 503)

#: Fields that are lengths of time.
SPANS = (
    "wait",
    "timeout",
    "delay",
    "ttr",
    "backoff_min",
    "backoff_max",
    "retry_in",
    "by",
    "every",
    "phase",
    "spread",
    "within",
    "last",
    "delay_max",
    "expire_after",
)
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class Outcome(Extensible):
    """The verdict on a consumer's answer. The first five took effect, the others changed nothing,
    except for ``OTHER``: see ``took_effect``.
    """

    FINISHED = "finished"
    #: The next attempt has a due time.
    RETRYING = "retrying"
    #: The task is a dead letter, or about to be one: by this answer, or before it.
    DEAD = "dead"
    EXTENDED = "extended"
    #: It takes effect once the node knows that the record was published.
    NOTED = "noted"
    NOT_PUBLISHED_YET = "not_published_yet"
    ATTEMPT_TOO_HIGH = "attempt_too_high"
    #: A later attempt was made: stop the work.
    ATTEMPT_SUPERSEDED = "attempt_superseded"
    ALREADY_FAILED = "already_failed"
    ALREADY_FINISHED = "already_finished"
    CANCELLED = "cancelled"
    NOT_TRACKED = "not_tracked"
    NOT_FOUND = "not_found"
    #: One that this client does not know.
    OTHER = "other"


class Answered(NamedTuple):
    verdict: Outcome
    #: False if the answer came too late, or was wrong: nothing was changed.
    took_effect: bool
    #: Finished, and an attempt that was claimed before may still reach the topic.
    in_flight: bool
    #: Finished after a later attempt was made.
    superseded: bool
    #: The task as the API shows it, or None if there is none.
    task: Optional[dict]


def answered(body, status):
    """Returns an answer, or raises the problem of a call without a verdict."""
    problem = body.get("problem", body)
    if "verdict" not in body:
        raise Problem(problem)
    return Answered(
        Outcome(body["verdict"]),
        status < 300,
        body.get("in_flight", False),
        body.get("superseded", False),
        body.get("task") or problem.get("task"),
    )


def fields(body):
    """Returns a body with spans in milliseconds and times in ISO 8601, without members of None."""
    return {name: _field(name, value) for name, value in body.items() if value is not None}


def no_span(name, value):
    """Returns the error of a value that is no length of time, such as a bare number."""
    return TypeError(f'{name} is {value!r}: give a timedelta, or text with a unit such as "5s"')


def seconds_of(name, value):
    """Returns a timedelta, or text such as ``"1h 30m"``, in seconds.

    Returns None for other text, such as ``"PT30M"``, which only a node can read.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        raise no_span(name, value)
    if not re.fullmatch(r"(\s*\d+\s*(ms|[smhdw])(?![a-z]))+", value):
        return None
    return sum(int(count) * SECONDS[unit] for count, unit in re.findall(r"(\d+)\s*([a-z]+)", value))


def _field(name, value):
    if isinstance(value, timedelta):
        return max(0, round(value / timedelta(milliseconds=1)))
    if name in SPANS and not isinstance(value, str):
        raise no_span(name, value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name} has no zone: datetime(.., tzinfo=timezone.utc)")
        return value.isoformat()
    if name == "exclude":
        return [day.isoformat() if isinstance(day, date) else day for day in value]
    return value
