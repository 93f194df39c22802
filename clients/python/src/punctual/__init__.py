"""A client of Punctual, which publishes records to Kafka at their due time."""

from .client import Cancelled, Client, Verdict
from .consumer import ATTEMPT, DUE_AT, TASK_ID, Once, attempt, due_at, task_id
from .outcomes import Answered, Outcome
from .problems import NoAnswer, Problem

__all__ = [
    "ATTEMPT",
    "DUE_AT",
    "TASK_ID",
    "Answered",
    "Cancelled",
    "Client",
    "NoAnswer",
    "Once",
    "Outcome",
    "Problem",
    "Verdict",
    "attempt",
    "due_at",
    "task_id",
]
