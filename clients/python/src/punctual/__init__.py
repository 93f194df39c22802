"""A client of Punctual, which publishes records to Kafka at their due time."""

from .client import Cancelled, Client, Moved, MoveVerdict, Redriven, Verdict
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
from .topics import Pause, PoppedTask, Schedule, Topic

__all__ = [
    "ATTEMPT",
    "DUE_AT",
    "SIGNATURE",
    "TASK_ID",
    "Answered",
    "Cancelled",
    "Client",
    "MoveVerdict",
    "Moved",
    "NoAnswer",
    "Once",
    "Outcome",
    "Pause",
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
