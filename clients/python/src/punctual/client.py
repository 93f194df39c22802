"""The client: submit, replace, look up, cancel; and finish, fail, extend."""

import enum
import http.client
import json
import random
import ssl
import threading
import time
import urllib.parse
import uuid
from datetime import datetime, timezone
from typing import NamedTuple, Optional

from .outcomes import REPEATED, answered, fields, seconds_of
from .problems import PREFIX, NoAnswer, Problem

PAUSE_MIN, PAUSE_MAX, RETRY_AFTER_MAX = 0.1, 5.0, 60.0
MISSING = object()


class Verdict(str, enum.Enum):
    """The result of a cancel."""

    CANCELLED = "cancelled"
    TOO_LATE = "too_late"
    REPLACED = "replaced"
    NOT_FOUND = "not_found"


class Cancelled(NamedTuple):
    verdict: Verdict
    #: The task as the API shows it, or None if there is none.
    task: Optional[dict]


class Client:
    """A client of one node, for any number of threads. Each thread has a connection of its own.

    ``timeout`` is that of one attempt in seconds, ``retry_for`` that of all attempts of a call.
    """

    def __init__(
        self, url, *, token=None, token_file=None, ca_file=None, timeout=35.0, retry_for=30.0
    ):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is no URL of a node, such as http://127.0.0.1:7070")
        self._parts, self._timeout, self._retry_for = parts, timeout, retry_for
        if token_file is not None:
            with open(token_file, encoding="utf-8") as file:
                token = file.read().strip()
        is_local = parts.hostname in ("127.0.0.1", "::1", "localhost")
        if token and parts.scheme == "http" and not is_local:
            raise ValueError("a token is sent over https:// only, or to this machine")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._local = threading.local()

    def submit(self, topic, payload=MISSING, *, name=None, **task):
        """Submits a task and returns it.

        A known name returns its first task: look at its ``state``.

        Lengths of time are a timedelta, or text with a unit such as ``"5s"``.

        With ``ttr`` (a length of time) its consumer answers for it: ``retry`` is a dict with
        ``attempts_max``, ``backoff_min``, ``backoff_max``, ``backoff_factor``, ``dead_topic``.

        The task is due at ``due_at`` (a datetime with a zone) or after ``delay``. The record is
        ``payload`` (JSON), ``payload_text``, ``payload_base64`` or ``tombstone``, with ``key`` and
        ``headers``. From ``expires_at`` (a datetime) on it is not published. A task
        without a ``name`` gets a random one, so that its own repetitions make no second task.
        """
        return self._must("POST", "/v1/tasks", _named(topic, payload, name, task))

    def submit_many(self, tasks):
        """Submits up to 10,000 tasks. Returns for each, in order, the task or its Problem.

        Each is a dict of what ``submit`` takes: ``{"topic": .., "payload": .., ..}``.
        """
        bodies = [
            _named(
                task["topic"],
                task.get("payload", MISSING),
                task.get("name"),
                {
                    field: value
                    for field, value in task.items()
                    if field not in ("topic", "payload", "name")
                },
            )
            for task in tasks
        ]
        results = self._many("/v1/tasks/batch", "tasks", bodies)
        return [one["task"] if one["status"] < 300 else Problem(one["problem"]) for one in results]

    def finish(self, task_id, attempt=None):
        """Says that the work of a tracked task is done: no further attempt is made."""
        return self._answer(task_id, "finish", {"attempt": attempt})

    def fail(
        self, task_id, attempt, reason=None, *, retry_in=None, retry_at=None, final=None
    ):
        """Says that an attempt has failed.

        The next one follows after the back-off, in ``retry_in`` or at ``retry_at``. A
        ``final`` failure is the last.
        """
        body = {
            "attempt": attempt,
            "reason": reason,
            "retry_in": retry_in,
            "retry_at": retry_at,
            "final": final,
        }
        return self._answer(task_id, "fail", body)

    def extend(self, task_id, attempt, by=None):
        """Moves the deadline to now plus ``by``, or plus the time to run."""
        return self._answer(task_id, "extend", {"attempt": attempt, "by": by})

    def outcomes(self, outcomes):
        """Answers for up to 10,000 attempts. Returns for each, in order, an Answered or a Problem.

        Each is a dict: ``outcome`` (``finish``, ``fail``, ``extend``), ``id`` or ``topic`` and
        ``name``, and what that call takes.
        """
        results = self._many("/v1/outcomes", "outcomes", [fields(one) for one in outcomes])
        return [
            answered(one, one["status"]) if "verdict" in one else Problem(one["problem"])
            for one in results
        ]

    def replace(self, topic, name, payload=MISSING, **task):
        """Creates the task of a name, or replaces a pending one.

        A task on its way is a Problem with the slug ``too-late``.
        """
        # Once the task may be due, a repetition would schedule another one.
        due_in = _due_in(task)
        return self._must("PUT", _path(topic, name), _body(payload, task), safe_for=due_in)

    def get(self, topic, name):
        """Returns the task of a name, or None."""
        return self._look(_path(topic, name))

    def get_by_id(self, task_id):
        return self._look(f"/v1/tasks/{urllib.parse.quote(str(task_id), safe='')}")

    def cancel(self, topic, name):
        """Cancels the task of a name. The verdict says whether its record will ever exist."""
        return self._cancel(_path(topic, name))

    def cancel_by_id(self, task_id):
        return self._cancel(f"/v1/tasks/{urllib.parse.quote(str(task_id), safe='')}")

    def close(self):
        """Closes the connection of this thread."""
        connection, self._local.connection = getattr(self._local, "connection", None), None
        if connection:
            connection.close()

    def _look(self, path):
        status, answer = self._call("GET", path)
        if status == 404 and answer.get("type") == f"{PREFIX}task-not-found":
            return None
        return _successful(status, answer)

    def _cancel(self, path):
        status, answer = self._call("DELETE", path)
        if "verdict" not in answer:
            raise Problem(answer)
        return Cancelled(Verdict(answer["verdict"]), answer.get("task"))

    def _answer(self, task_id, call, body):
        path = f"/v1/tasks/{urllib.parse.quote(str(task_id), safe='')}/{call}"
        status, answer = self._call("POST", path, fields(body))
        return answered(answer, status)

    def _many(self, path, member, bodies):
        """Makes a call with many parts. Repeats those that were not done, or perhaps."""
        results, left = [None] * len(bodies), list(range(len(bodies)))
        began, pause = time.monotonic(), PAUSE_MIN
        while left:
            answer = self._must("POST", path, {member: [bodies[index] for index in left]})
            for index, result in zip(left, answer["results"]):
                results[index] = result
            left = [index for index in left if results[index]["status"] in REPEATED]
            if time.monotonic() - began + pause > self._retry_for:
                break
            if left:
                time.sleep(pause * random.uniform(1, 1.25))
                pause = min(pause * 2, PAUSE_MAX)
        return results

    def _must(self, method, path, body, **limits):
        return _successful(*self._call(method, path, body, **limits))

    def _call(self, method, path, body=None, safe_for=float("inf")):
        """Repeats a request until it has an answer.

        Repeats what was not done (429, 503), and what may have been done (no answer, 500,
        ``outcome-unknown``) if a repetition starts within ``safe_for`` seconds.
        """
        text = None if body is None else _json(body)
        began, is_unknown, attempt = time.monotonic(), False, 0
        while True:
            asked = 0.0
            try:
                status, headers, answer = self._attempt(method, path, text)
                if status not in REPEATED:
                    return status, answer
                failure = Problem(answer)
                asked = min(float(headers.get("retry-after") or 0), RETRY_AFTER_MAX)
                was_perhaps_done = failure.slug in ("outcome-unknown", "internal")
            except (ConnectionRefusedError, ssl.SSLCertVerificationError) as error:
                failure, was_perhaps_done = error, False
            except (OSError, http.client.HTTPException, ValueError) as error:
                failure, was_perhaps_done = error, True
            is_unknown = is_unknown or was_perhaps_done
            pause = max(min(PAUSE_MIN * 2**attempt, PAUSE_MAX), asked) * random.uniform(1, 1.25)
            end = min(self._retry_for, safe_for) if is_unknown else self._retry_for
            if time.monotonic() - began + pause > end or _is_final(failure):
                raise NoAnswer(f"{method} {path}: {failure}", is_unknown) from failure
            time.sleep(pause)
            attempt = min(attempt + 1, 16)

    def _attempt(self, method, path, text):
        connection = getattr(self._local, "connection", None) or self._connect()
        try:
            headers = (
                {**self._headers, "content-type": "application/json"} if text else self._headers
            )
            connection.request(method, self._parts.path.rstrip("/") + path, text, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            if not isinstance(answer, dict):
                raise ValueError("the answer is not of Punctual")
        except BaseException:
            self._local.connection = None
            connection.close()
            raise
        return response.status, response.headers, answer

    def _connect(self):
        place = (self._parts.hostname, self._parts.port)
        if self._tls:
            made = http.client.HTTPSConnection(*place, timeout=self._timeout, context=self._tls)
        else:
            made = http.client.HTTPConnection(*place, timeout=self._timeout)
        self._local.connection = made
        return made


def _is_final(failure):
    """A certificate does not become right by asking again."""
    return isinstance(failure, ssl.SSLCertVerificationError)


def _json(body):
    return json.dumps(body, separators=(",", ":"), default=_no_json).encode()


def _no_json(value):
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(
            "bytes are not JSON: give payload_base64=base64.b64encode(data).decode() in place of "
            'payload; likewise key_base64 for a key, and {"base64": ..} for a header'
        )
    raise TypeError(f"{type(value).__name__} is not JSON: give dicts, lists, text and numbers")


def _successful(status, answer):
    if status >= 300:
        raise Problem(answer)
    return answer


def _path(topic, name):
    return (
        f"/v1/topics/{urllib.parse.quote(topic, safe='')}/tasks/{urllib.parse.quote(name, safe='')}"
    )


def _due_in(task):
    """Returns the seconds until a task is due, by this machine's clock if it has a due time."""
    if task.get("delay") is not None:
        return seconds_of("delay", task["delay"])
    if task.get("due_at") is not None:
        return (task["due_at"] - datetime.now(timezone.utc)).total_seconds()
    return 0.0


def _named(topic, payload, name, task):
    return {"topic": topic, "name": name or f"client-{uuid.uuid4()}", **_body(payload, task)}


def _body(payload, task):
    body = dict(task)
    if body.get("retry") is not None:
        body["retry"] = fields(body["retry"])
    if payload is not MISSING:
        body["payload"] = payload
    null = {"payload": None} if body.get("payload", MISSING) is None else {}
    return {**fields(body), **null}
