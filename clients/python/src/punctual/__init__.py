"""A client of Punctual, which publishes records to Kafka at their due time."""

from .client import Client
from .consumer import (
    ATTEMPT,
    DUE_AT,
    SIGNATURE,
    TASK_ID,
    Once,
    attempt,
    due_at,
    is_genuine,
    task_id,
)
from .outcomes import Answered, Outcome
from .problems import NoAnswer, Problem
from .topics import Pause, Policy, PoppedTask, Schedule, Topic
from .verdicts import Backfilled, Cancelled, Moved, MoveVerdict, Redriven, Verdict

__all__ = [
    "ATTEMPT",
    "DUE_AT",
    "SIGNATURE",
    "TASK_ID",
    "Answered",
    "Backfilled",
    "Cancelled",
    "Client",
    "MoveVerdict",
    "Moved",
    "NoAnswer",
    "Once",
    "Outcome",
    "Pause",
    "Policy",
    "PoppedTask",
    "Problem",
    "Redriven",
    "Schedule",
    "Topic",
    "Verdict",
    "attempt",
    "due_at",
    "is_genuine",
    "task_id",
]
