"""For consumers: which task a record belongs to, and handling each task once."""

import base64
import hashlib
import hmac
import threading
import time
from collections import OrderedDict

#: The header with the id of the task.
TASK_ID = "punctual-task-id"
#: The header with the due time in milliseconds since the epoch.
DUE_AT = "punctual-due-at"
#: The header with the number of the attempt. Only records of tracked tasks have it.
ATTEMPT = "punctual-attempt"
#: The header with the signature of a callback.
SIGNATURE = "punctual-signature"

#: Nodes take no shorter key.
KEY_BYTES_MIN = 24


def task_id(headers):
    """Returns the id of the task of a record, or None. Headers are pairs, as of librdkafka."""
    return _text(headers, TASK_ID)


def due_at(headers):
    """Returns the due time of a record in milliseconds since the epoch, or None."""
    text = _text(headers, DUE_AT)
    return None if text is None else int(text)


def attempt(headers):
    """Returns the number of the attempt of a tracked task, or None."""
    text = _text(headers, ATTEMPT)
    return None if text is None else int(text)


def is_genuine(keys, signature, topic, body, max_age=300):
    """Returns whether a node with one of these keys has sent the request of a callback.

    The keys are the lines of the node's file, the signature is the header, the topic is the one
    whose tasks the service takes, and the body is the bytes of the request. A signature older than
    `max_age` seconds is not genuine.
    """
    parts = [part.partition("=") for part in (signature or "").split(",")]
    seconds = next((value for name, _, value in parts if name == "t"), "")
    if not seconds.isascii() or not seconds.isdigit() or abs(time.time() - int(seconds)) > max_age:
        return False
    signed = f"{seconds}\n{topic}\n".encode() + body
    digests = [hmac.new(key, signed, hashlib.sha256).hexdigest() for key in _secrets(keys)]
    given = [value.encode() for name, _, value in parts if name == "v1"]
    return any(hmac.compare_digest(digest.encode(), value) for digest in digests for value in given)


def _secrets(lines):
    """Yields the keys of a file's lines. Anybody could sign with an empty line or a comment."""
    for line in lines:
        try:
            secret = base64.b64decode(line.strip(), validate=True)
        except ValueError:
            continue
        if len(secret) >= KEY_BYTES_MIN:
            yield secret


def _text(headers, wanted):
    values = [value for name, value in headers or () if name == wanted and value is not None]
    return values[-1].decode() if values else None


class Once:
    """Runs the work of each task once, for duplicates that arrive soon after the first record.

    It remembers tasks in memory, in this process. For exactly one effect, store the id of the task
    in the transaction of the work (docs/start/first-consumer.md).
    """

    def __init__(self, remembered=100_000):
        self._remembered, self._seen, self._lock = remembered, OrderedDict(), threading.Lock()

    def run(self, headers, work):
        """Runs the work unless this task's work has succeeded before. Returns whether it ran.

        Work that raises is not remembered. Records of a task with a key are on one partition, so
        only one thread has them. A duplicate of a task without a key may be on another partition,
        which another thread reads at the same time.
        """
        task = task_id(headers)
        with self._lock:
            if task is not None and task in self._seen:
                return False
        work()
        with self._lock:
            if task is not None:
                self._seen[task] = True
                if len(self._seen) > self._remembered:
                    self._seen.popitem(last=False)
        return True
