"""The client: calls for tasks, for topics, for consumers without Kafka, and for schedules."""

import http.client
import json
import os
import random
import re
import selectors
import ssl
import threading
import time
import urllib.parse
import uuid
from datetime import datetime, timezone

from .conditions import condition_headers, condition_query
from .outcomes import REPEATED, answered, fields, seconds_of
from .paths import (
    callback_path,
    id_path,
    name_path,
    policy_path,
    quoted,
    schedule_path,
    topic_path,
)
from .problems import FINAL, NOT_DONE, PREFIX, NoAnswer, Problem
from .topics import popped_of, schedule_of, topic_of
from .verdicts import Cancelled, Moved, MoveVerdict, Redriven, Verdict, backfilled_of

PAUSE_MIN, PAUSE_MAX, RETRY_AFTER_MAX = 0.1, 5.0, 60.0
MISSING = object()


class Client:
    """A client of one node, for any number of threads and forked processes. Each thread has a
    connection of its own.

    Tasks and callbacks are dicts, with the members of the API's JSON: ``task["id"]``. All
    other results are objects, such as a Cancelled.

    ``timeout`` is that of one attempt in seconds, ``retry_for`` that of all attempts of a call.
    """

    def __init__(
        self, url, *, token=None, token_file=None, ca_file=None, timeout=35.0, retry_for=30.0
    ):
        parts = urllib.parse.urlsplit(url)
        is_path = re.fullmatch(r"[!-~]*", parts.path)
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_path:
            raise ValueError(f"{url} is no URL of a node, such as http://127.0.0.1:7070")
        self._parts, self._timeout, self._retry_for = parts, timeout, retry_for
        if token_file is not None:
            with open(token_file, encoding="utf-8") as file:
                token = file.read().strip()
        if token and not re.fullmatch(r"[!-~]+", token):
            raise ValueError("a token is one line of visible ASCII characters, without spaces")
        is_local = parts.hostname in ("127.0.0.1", "::1", "localhost")
        if token and parts.scheme == "http" and not is_local:
            raise ValueError("a token is sent over https:// only, or to this machine")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._local = threading.local()

    def submit(self, topic, payload=MISSING, *, name=None, **task):
        """Submits a task and returns it, as a dict.

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

        Each is a dict of what ``submit`` takes: ``{"topic": .., "payload": .., ..}``. A task
        whose Problem is ``outcome-unknown`` may exist.
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

    def replace(
        self,
        topic,
        name,
        payload=MISSING,
        *,
        when=None,
        not_after=None,
        if_match=None,
        if_none_match=None,
        **task,
    ):
        """Creates the task of a name, or replaces a pending one, and returns the new task.

        A task on its way is a Problem with the slug ``too-late``.

        With ``when="later"``, a pending task is replaced only by one that is due later, but at
        ``not_after`` (a datetime) at the latest; with ``"earlier"`` only by one that is due
        earlier; with ``"absent"`` never. ``if_match`` is the task that the name must have,
        ``if_none_match`` the one that it must not have: an id, a list of ids, or ``"*"`` for any.

        A condition that does not hold is a Problem with the slug ``precondition-failed``. With a
        condition, the call is not repeated once it may have been done.
        """
        path = name_path(topic, name) + condition_query(when, not_after)
        body = _body(payload, task)
        # Once the task may be due, a repetition would schedule another one. With ``when``, it would
        # compare the new task with itself.
        safe_for = _due_in(task) if when is None else 0.0
        headers = condition_headers(if_match, if_none_match)
        return self._must("PUT", path, body, safe_for=safe_for, condition=headers)

    def get(self, topic, name):
        """Returns the task of a name, or None."""
        return self._look(name_path(topic, name))

    def get_by_id(self, task_id):
        return self._look(id_path(task_id))

    def cancel(self, topic, name, *, if_match=None, if_none_match=None):
        """Cancels the task of a name. The verdict says whether its record will ever exist.

        ``if_match`` and ``if_none_match`` are as for ``replace``.
        """
        return self._cancel(name_path(topic, name), condition_headers(if_match, if_none_match))

    def cancel_by_id(self, task_id, *, if_match=None, if_none_match=None):
        return self._cancel(id_path(task_id), condition_headers(if_match, if_none_match))

    def move(self, topic, name, *, delay=None, due_at=None, if_match=None, if_none_match=None):
        """Gives the pending task of a name another due time. The verdict says whether it has it.

        The task is due at ``due_at`` (a datetime with a zone) or after ``delay``, which counts
        from the attempt that is answered. Id, name and record stay. ``if_match`` and
        ``if_none_match`` are as for ``replace``.
        """
        headers = condition_headers(if_match, if_none_match)
        return self._move(name_path(topic, name), delay, due_at, headers)

    def move_by_id(self, task_id, *, delay=None, due_at=None, if_match=None, if_none_match=None):
        headers = condition_headers(if_match, if_none_match)
        return self._move(id_path(task_id), delay, due_at, headers)

    def dead_letters(self, topic=None):
        """Yields the dead letters, of one topic or of all, in the order of their due times.

        Each is a task with its ``reason``, without headers and payload.
        """
        return self._pages("/v1/dead", {"topic": topic}, "tasks", "cursor", "cursor")

    def redrive(self, task_id, *, to_topic=None):
        """Makes a dead letter due now, in its topic or in another one. Returns the task, or None.

        A task that is no dead letter (any more) is returned as it is: look at its ``state``. It is
        ``dead`` if the dead letter was dropped.
        """
        status, answer = self._call(
            "POST", f"/v1/dead/{quoted(task_id)}/redrive", fields({"to_topic": to_topic})
        )
        if _is(answer, "task-not-found"):
            return self.get_by_id(task_id)
        return _successful(status, answer)

    def redrive_many(self, topic, *, due_from=None, due_to=None, to_topic=None, dry_run=False):
        """Redrives all dead letters of a topic, or those of a range of due times.

        Returns how many, without those of an attempt whose answer was lost. The call may be
        repeated. If it fails after some, they are counted, and there are more. A dry run fails.
        """
        body = {"topic": topic, "due_from": due_from, "due_to": due_to, "to_topic": to_topic}
        body = fields({**body, "dry_run": dry_run})
        count, cursor, since, pause = 0, None, time.monotonic(), PAUSE_MIN
        while True:
            try:
                answer = self._must("POST", "/v1/dead/redrive", {**body, "cursor": cursor})
            except (NoAnswer, Problem):
                if count == 0 or dry_run:
                    raise
                return Redriven(count, True)
            count += answer["redriven"]
            has_moved = answer["cursor"] not in (None, cursor)
            cursor = answer["cursor"]
            if not answer["more"] or (dry_run and not has_moved):
                return Redriven(count, answer["more"])
            if answer["redriven"] or has_moved:
                since, pause = time.monotonic(), PAUSE_MIN
                continue
            if time.monotonic() - since + pause > self._retry_for:
                return Redriven(count, True)
            time.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX)

    def get_topic(self, topic):
        """Returns a Topic, or None if Kafka has none of this name."""
        status, answer = self._call("GET", topic_path(topic))
        if _is(answer, "topic-not-found"):
            return None
        return topic_of(_successful(status, answer))

    def pause_topic(self, topic, reason=None):
        """Pauses a topic and returns it. From now on none of its tasks is claimed.

        Submits and cancels are as before. Tasks that are ``in_flight`` may still be published. A
        topic that is paused already keeps its reason.
        """
        body = fields({"reason": reason})
        return topic_of(self._must("POST", f"{topic_path(topic)}/pause", body))

    def resume_topic(self, topic, reason=None):
        """Ends the pause of a topic and returns it. Overdue tasks are published now."""
        body = fields({"reason": reason})
        return topic_of(self._must("POST", f"{topic_path(topic)}/resume", body))

    def set_policy(self, topic, *, if_match=None, if_none_match=None, **policy):
        """Sets the whole policy of a topic for the tasks to come, and returns the Topic.

        ``ttr`` and ``retry`` (as for ``submit``), ``delay_max``, ``expire_after``, ``spread``
        (lengths of time), ``pending_max``, ``submitted_by_header``. ``paused`` pauses or resumes
        the topic, which stays as it is without it.

        To change one member, give the others as well: ``**{**topic.policy.body, "spread": "10m"}``,
        with ``if_match=topic.revision``. ``if_none_match="*"`` is for a topic without a policy and
        without a pause. These conditions are as for ``replace``.
        """
        condition = condition_headers(if_match, if_none_match)
        answer = self._must("PUT", policy_path(topic), _parts(policy), condition=condition)
        return topic_of(answer)

    def delete_policy(self, topic, *, if_match=None):
        """Takes the policy of a topic away, and returns the Topic.

        With ``if_match``, the topic must have this revision.
        """
        condition = condition_headers(if_match, None)
        return topic_of(self._must("DELETE", policy_path(topic), condition=condition))

    def pop(self, topic, group, *, wait="20s", max=1):
        """Waits for tracked tasks of a topic, and returns up to ``max`` of them.

        Each PoppedTask goes to one caller of the ``group``: ``finish``, ``fail`` or ``extend`` it.
        The list is empty if none came within ``wait``, which must be shorter than the timeout of
        this client. Tasks of a lost answer come again, after their time to run.
        """
        seconds = seconds_of("wait", wait)
        if seconds is None:
            raise ValueError(f'wait is {wait}: give a timedelta, or text in units such as "20s"')
        if seconds >= self._timeout:
            raise ValueError(f"wait is {wait}: give less than the timeout, {self._timeout} s")
        body = fields({"group": group, "wait": wait, "max": max})
        answer = self._must("POST", f"{topic_path(topic)}/pop", body)
        return [popped_of(task) for task in answer["tasks"]]

    def set_callback(self, topic, url, **callback):
        """Has nodes POST each tracked task of a topic to ``url``, and returns the callback.

        More: ``headers`` (a dict), ``timeout`` (a length of time), ``concurrency``,
        ``max_per_second``, ``paused``. ``is_genuine`` checks in the service who calls it.
        """
        return self._must("PUT", callback_path(topic), fields({"url": url, **callback}))

    def get_callback(self, topic):
        """Returns the callback of a topic, without the values of its headers, or None."""
        return self._callback("GET", topic)

    def delete_callback(self, topic):
        """Ends the callback of a topic. Returns it as it was, or None if there is none."""
        return self._callback("DELETE", topic)

    def set_schedule(
        self, topic, name, payload=MISSING, *, if_match=None, if_none_match=None, **schedule
    ):
        """Creates a schedule, or replaces it as a whole, and returns the Schedule.

        It runs by ``cron`` in a ``time_zone`` (``seconds=True``: with a sixth field for seconds),
        or with a period, ``every``, moved by ``phase``. Lengths of time are a timedelta, or text
        with a unit.

        Each run publishes a record as for ``submit``, with ``ttr`` and ``retry``, too. More:
        ``starts_at``, ``ends_at`` (datetimes), ``exclude`` (a list of dates), ``runs_max``,
        ``overlap`` (``"skip"``), ``spread``, ``dst`` (a dict with ``gap``, ``overlap``),
        ``missed`` (a dict with ``policy``, ``within``, ``count_max``), ``note``. Without
        ``paused=True``, a paused schedule is resumed.

        With ``if_match``, the schedule must have this revision. ``if_none_match="*"`` only creates.
        These conditions are as for ``replace``.
        """
        body = _body(payload, schedule)
        condition = condition_headers(if_match, if_none_match)
        answer = self._must("PUT", schedule_path(topic, name), body, condition=condition)
        return schedule_of(answer)

    def preview_schedule(self, topic, name, payload=MISSING, *, runs=5, **schedule):
        """Checks a schedule without storing it. ``next_runs`` has its first runs."""
        path = f"{schedule_path(topic, name)}?dry_run=true&next={int(runs)}"
        return schedule_of(self._must("PUT", path, _body(payload, schedule)))

    def get_schedule(self, topic, name, *, runs=0):
        """Returns a Schedule, with so many of its ``next_runs``, or None."""
        query = f"?next={int(runs)}" if runs else ""
        status, answer = self._call("GET", schedule_path(topic, name) + query)
        if _is(answer, "schedule-not-found"):
            return None
        return schedule_of(_successful(status, answer))

    def schedules(self, topic):
        """Yields the schedules of a topic in the order of their names."""
        path = f"/v1/schedules/{quoted(topic)}"
        return map(schedule_of, self._pages(path, {}, "schedules", "after", "next_after"))

    def pause_schedule(self, topic, name):
        """Pauses a schedule and returns it. Its runs that are not claimed are withdrawn."""
        return schedule_of(self._must("POST", f"{schedule_path(topic, name)}/pause", {}))

    def resume_schedule(self, topic, name):
        """Ends the pause of a schedule and returns it."""
        return schedule_of(self._must("POST", f"{schedule_path(topic, name)}/resume", {}))

    def trigger_schedule(self, topic, name):
        """Submits one more run, which is due now, and returns its task.

        It is not repeated once it may have been done: each call makes a run.
        """
        return self._must("POST", f"{schedule_path(topic, name)}/trigger", {}, safe_for=0.0)

    def backfill_schedule(self, topic, name, *, last=None, from_=None, to=None, dry_run=False):
        """Makes the runs of the past that were never made, due now, and returns a Backfilled.

        The range is the ``last`` length of time, or begins at ``from_`` and ends before ``to``
        (datetimes). It begins at most seven days ago, and has at most 1,000 runs. A dry run only
        counts.

        No run is made twice, so the call may be repeated. Runs of an attempt whose answer was lost
        count as ``already_made``.
        """
        body = fields({"last": last, "from": from_, "to": to, "dry_run": dry_run})
        return backfilled_of(self._must("POST", f"{schedule_path(topic, name)}/backfill", body))

    def delete_schedule(self, topic, name, *, if_match=None):
        """Deletes a schedule, and withdraws its runs that are not claimed.

        Returns the Schedule as it was, or None if there is none (any more). With ``if_match``, the
        schedule must have this revision.
        """
        condition = condition_headers(if_match, None)
        status, answer = self._call("DELETE", schedule_path(topic, name), condition=condition)
        if _is(answer, "schedule-not-found"):
            return None
        return schedule_of(_successful(status, answer))

    def close(self):
        """Closes the connection of this thread."""
        connection, self._local.connection = getattr(self._local, "connection", None), None
        if connection:
            connection.close()

    def _look(self, path):
        status, answer = self._call("GET", path)
        if _is(answer, "task-not-found"):
            return None
        return _successful(status, answer)

    def _cancel(self, path, condition):
        status, answer = self._call("DELETE", path, condition=condition)
        if "verdict" not in answer:
            raise Problem(answer)
        return Cancelled(Verdict(answer["verdict"]), answer.get("task"))

    def _move(self, path, delay, due_at, condition):
        due = {"delay": delay, "due_at": due_at}
        body = fields(due)
        # Once the task may be due, a repetition would say too_late of a move that was made.
        limits = {"safe_for": _due_in(due), "condition": condition}
        status, answer = self._call("PATCH", path, body, **limits)
        if "verdict" not in answer:
            raise Problem(answer)
        return Moved(MoveVerdict(answer["verdict"]), answer.get("task"))

    def _callback(self, method, topic):
        status, answer = self._call(method, callback_path(topic))
        if _is(answer, "callback-not-found"):
            return None
        return _successful(status, answer)

    def _pages(self, path, query, member, parameter, following):
        """Yields the members of a list, page by page."""
        while True:
            given = {name: value for name, value in query.items() if value is not None}
            page = self._must("GET", f"{path}?{urllib.parse.urlencode(given)}")
            yield from page[member]
            if page[following] is None:
                return
            query = {**query, parameter: page[following]}

    def _answer(self, task_id, call, body):
        status, answer = self._call("POST", f"{id_path(task_id)}/{call}", fields(body))
        return answered(answer, status)

    def _many(self, path, member, bodies):
        """Makes a call with many parts. Repeats those that were not done, or perhaps.

        Once some parts have their answer, a failure leaves the others with their problem.
        """
        results, left = [None] * len(bodies), list(range(len(bodies)))
        began, pause = time.monotonic(), PAUSE_MIN
        while left:
            was_lost = False
            try:
                body = {member: [bodies[index] for index in left]}
                status, answer, was_lost = self._ask("POST", path, body)
                _successful(status, answer)
            except (NoAnswer, Problem) as failure:
                if results[left[0]] is None:
                    raise
                if was_lost or (isinstance(failure, NoAnswer) and failure.is_unknown):
                    for index in left:
                        results[index] = _unknown(failure)
                break
            wait = pause
            for index, result in zip(left, answer["results"]):
                if result["status"] in REPEATED:
                    wait = max(wait, _asked(result))
                    # A refusal does not tell whether an earlier attempt was done.
                    if _was_perhaps_done(results[index]):
                        continue
                    if was_lost and not _was_perhaps_done(result):
                        result = _unknown(Problem(result["problem"]))
                results[index] = result
            left = [index for index in left if results[index]["status"] in REPEATED]
            if time.monotonic() - began + wait > self._retry_for:
                break
            if left:
                time.sleep(wait * random.uniform(1, 1.25))
                pause = min(pause * 2, PAUSE_MAX)
        return results

    def _must(self, method, path, body=None, **limits):
        return _successful(*self._call(method, path, body, **limits))

    def _call(self, method, path, body=None, **limits):
        status, answer, _was_lost = self._ask(method, path, body, **limits)
        return status, answer

    def _ask(self, method, path, body=None, *, safe_for=float("inf"), condition=None):
        """Repeats a request until it has an answer. Tells, too, whether an attempt before it may
        have been done.

        Repeats what was not done (429, 503), and what may have been done (no answer, other
        5xx) if a repetition starts within ``safe_for`` seconds. ``condition`` is
        the headers of one.
        """
        text = None if body is None else _json(body)
        headers = {**self._headers, **(condition or {})}
        if text is not None:
            headers["content-type"] = "application/json"
        if condition:
            # A repetition could be refused because of what an earlier attempt has done, and the
            # problem would say that nothing was changed.
            safe_for = 0.0
        began, is_unknown, attempt = time.monotonic(), False, 0
        while True:
            asked, was_perhaps_done = 0.0, False
            try:
                connection = self._connected()
                was_perhaps_done = True
                status, retry_after, answer = self._attempt(connection, method, path, text, headers)
                if status not in REPEATED or _is(answer, FINAL):
                    # A refusal of a proxy does not tell whether an earlier attempt was done.
                    is_of_proxy = status >= 400 and not str(answer.get("type")).startswith(PREFIX)
                    if is_unknown and is_of_proxy:
                        raise NoAnswer(f"{method} {path}: {Problem(answer)}", True)
                    return status, answer, is_unknown
                failure = Problem(answer)
                asked = min(_seconds(retry_after), RETRY_AFTER_MAX)
                was_perhaps_done = status >= 500 and failure.slug not in NOT_DONE
            except (OSError, http.client.HTTPException) as error:
                failure = error
            is_unknown = is_unknown or was_perhaps_done
            pause = max(min(PAUSE_MIN * 2**attempt, PAUSE_MAX), asked) * random.uniform(1, 1.25)
            end = min(self._retry_for, safe_for) if is_unknown else self._retry_for
            if time.monotonic() - began + pause > end or _is_final(failure):
                raise NoAnswer(f"{method} {path}: {failure}", is_unknown) from failure
            time.sleep(pause)
            attempt = min(attempt + 1, 16)

    def _attempt(self, connection, method, path, text, headers):
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, text, headers)
            response = connection.getresponse()
            answer = _read(response.status, response.read())
        except BaseException:
            self._local.connection = None
            connection.close()
            raise
        return response.status, response.headers.get("retry-after"), answer

    def _connected(self):
        """Returns the connection of this thread. One that the node has closed is made again."""
        if getattr(self._local, "process", None) != os.getpid():
            # After a fork, the connection is that of the parent. Nothing is sent to end it.
            self._local.connection, self._local.process = None, os.getpid()
        connection = getattr(self._local, "connection", None)
        if connection and connection.sock and not _has_input(connection.sock):
            return connection
        self.close()
        place = (self._parts.hostname, self._parts.port)
        if self._tls:
            made = http.client.HTTPSConnection(*place, timeout=self._timeout, context=self._tls)
        else:
            made = http.client.HTTPConnection(*place, timeout=self._timeout)
        try:
            made.connect()
        except BaseException:
            made.close()
            raise
        self._local.connection = made
        return made


def _read(status, text):
    """Returns the body of an answer. A 4xx of a proxy becomes a problem without a type. Any other
    answer of a proxy does not say what was done, and is an error.
    """
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    is_object = isinstance(answer, dict)
    if is_object and (status < 400 or str(answer.get("type")).startswith(PREFIX)):
        return answer
    reason = "the answer is not of Punctual"
    if 400 <= status < 500:
        return {"detail": reason, **(answer if is_object else {}), "type": "", "status": status}
    raise http.client.HTTPException(f"status {status}: {reason}")


def _seconds(retry_after):
    """Returns the seconds of Retry-After. Proxies may give a date: 0."""
    return float(retry_after) if (retry_after or "").isdecimal() else 0.0


def _was_perhaps_done(result):
    """Tells of a part of a call whose last answer does not say whether it was done."""
    if result is None or result["status"] not in REPEATED or result["status"] < 500:
        return False
    return Problem(result["problem"]).slug not in NOT_DONE


def _asked(result):
    """Returns the seconds before which a part of a call is not to be repeated."""
    return min(result["problem"].get("retry_after") or 0, RETRY_AFTER_MAX)


def _unknown(failure):
    """Returns the result of a part of a call that may have been done by an attempt that failed."""
    problem = {"type": f"{PREFIX}outcome-unknown", "status": 503, "detail": str(failure)}
    return {"status": 503, "problem": problem}


def _has_input(idle):
    """Tells of a socket that has something to read, without a request: its end."""
    with selectors.DefaultSelector() as selector:
        selector.register(idle, selectors.EVENT_READ)
        return bool(selector.select(timeout=0))


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


def _is(answer, slug):
    return answer.get("type") == PREFIX + slug


def _due_in(task):
    """Returns the seconds until a task is due, by this machine's clock if it has a due time."""
    if task.get("delay") is not None:
        # A length of time that only a node can read may be over at once.
        return seconds_of("delay", task["delay"]) or 0.0
    if task.get("due_at") is not None:
        return (task["due_at"] - datetime.now(timezone.utc)).total_seconds()
    return 0.0


def _named(topic, payload, name, task):
    return {"topic": topic, "name": name or f"client-{uuid.uuid4()}", **_body(payload, task)}


def _body(payload, task):
    body = dict(task)
    if payload is not MISSING:
        body["payload"] = payload
    null = {"payload": None} if body.get("payload", MISSING) is None else {}
    return {**_parts(body), **null}


def _parts(body):
    """Returns a body, and those of its members that have members themselves, for the API."""
    parts = ("retry", "missed")
    nested = {part: fields(body[part]) for part in parts if body.get(part) is not None}
    return fields({**body, **nested})
