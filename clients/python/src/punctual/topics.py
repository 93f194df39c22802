"""Topics, popped tasks and schedules as a node shows them."""

from datetime import datetime
from typing import NamedTuple, Optional


class Pause(NamedTuple):
    """The pause of a topic."""

    since: datetime
    #: The reason that was given, or None.
    reason: Optional[str]
    #: The caller that paused the topic, or None for an anonymous one.
    by: Optional[str]


class Policy(NamedTuple):
    """The policy of a topic. Lengths of time are text with a unit. A missing member is None."""

    ttr: Optional[str]
    #: A dict with ``attempts_max``, ``backoff_min``, ..; as for ``submit``.
    retry: Optional[dict]
    delay_max: Optional[str]
    expire_after: Optional[str]
    spread: Optional[str]
    pending_max: Optional[int]
    submitted_by_header: bool
    #: The policy as the API shows it, and as ``set_policy`` takes it.
    body: dict


class Topic(NamedTuple):
    """A topic."""

    topic: str
    #: Counts the changes of the policy and the pauses.
    revision: int
    #: None without a policy.
    policy: Optional[Policy]
    #: None if the topic is not paused.
    paused: Optional[Pause]
    #: Tasks that are claimed and not settled: a pause does not stop them. None after a resume.
    in_flight: Optional[int]
    #: The topic as the API shows it, with the number of pending tasks.
    body: dict


class PoppedTask(NamedTuple):
    """An attempt of a tracked task, with its record."""

    id: str
    #: The number of this attempt, for ``finish``, ``fail`` and ``extend``.
    attempt: int
    #: The task comes again afterwards.
    finish_by: datetime
    #: The task as the API shows it: ``payload`` (or ``payload_text``, ``payload_base64``,
    #: ``tombstone``), ``key``, ``headers``, ``attempts_max``, ``due_at``, ``partition``,
    #: ``offset``, ..
    body: dict


class Schedule(NamedTuple):
    """A schedule."""

    topic: str
    name: str
    #: Counts the changes, from 1 on.
    revision: int
    is_paused: bool
    runs_made: int
    #: The next run, or None if the schedule is paused or has ended.
    next_run_at: Optional[datetime]
    #: The upcoming runs, as many as were asked for.
    next_runs: list
    #: The schedule as the API shows it: in a list, without headers and payload.
    body: dict


def topic_of(body):
    """Reads a topic from an answer."""
    paused = body.get("paused")
    pause = paused and Pause(time_of(paused["since"]), paused["reason"], paused.get("by"))
    policy = body.get("policy")
    return Topic(
        body["topic"],
        body["revision"],
        policy and _policy_of(policy),
        pause,
        body.get("in_flight"),
        body,
    )


def _policy_of(body):
    return Policy(
        body.get("ttr"),
        body.get("retry"),
        body.get("delay_max"),
        body.get("expire_after"),
        body.get("spread"),
        body.get("pending_max"),
        body.get("submitted_by_header", False),
        body,
    )


def popped_of(body):
    """Reads a popped task from an answer."""
    return PoppedTask(body["id"], body["attempt"], time_of(body["finish_by"]), body)


def schedule_of(body):
    """Reads a schedule from an answer."""
    next_run_at = body.get("next_run_at")
    return Schedule(
        body["topic"],
        body["name"],
        body["revision"],
        body["paused"],
        body["runs_made"],
        next_run_at and time_of(next_run_at),
        [time_of(run) for run in body.get("next", [])],
        body,
    )


def time_of(text):
    """Reads a time from an answer."""
    # Before Python 3.11, fromisoformat does not read a Z.
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
