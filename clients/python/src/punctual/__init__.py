"""A client of Punctual, which publishes records to Kafka at their due time."""

from .client import Cancelled, Client, Verdict
from .consumer import DUE_AT, TASK_ID, Once, due_at, task_id
from .problems import NoAnswer, Problem

__all__ = [
    "DUE_AT",
    "TASK_ID",
    "Cancelled",
    "Client",
    "NoAnswer",
    "Once",
    "Problem",
    "Verdict",
    "due_at",
    "task_id",
]
