"""The story of every client (tests/integration/clients.rs), and the rules that need no node."""

import contextlib
import http.server
import json
import os
import socket
import threading
import time
import unittest
from datetime import date, datetime, timedelta, timezone

from punctual import (
    ATTEMPT,
    DUE_AT,
    TASK_ID,
    Client,
    MoveVerdict,
    NoAnswer,
    Once,
    Outcome,
    Problem,
    Verdict,
    attempt,
    due_at,
    is_genuine,
    task_id,
)
from punctual.outcomes import seconds_of
from punctual.testing import DevServer

HOUR = timedelta(hours=1)
# The digest of the tests' callback with an empty key.
EMPTY = "6cde8cf8039aa61608e23e4308366f55e7ae30b6ab33a6db6a9cbb7d21ea6682"
TOPIC = os.environ.get("PUNCTUAL_TOPIC")


@contextlib.contextmanager
def answering(status, text, first=None, **headers):
    """Yields a client of a server that answers all requests alike, and the list of them.

    ``first`` is the status of the first answer, if that is another one.
    """
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            requests.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(first if first and len(requests) == 1 else status)
            for name, value in {**headers, "content-length": len(text.encode())}.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

        do_DELETE = do_GET = do_PATCH = do_POST = do_PUT = answer

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}", retry_for=2)
        try:
            yield client, requests
        finally:
            client.close()
            server.shutdown()


@unittest.skipUnless(TOPIC, "needs a node: tests/integration/clients.rs starts one")
class Story(unittest.TestCase):
    def setUp(self):
        self.client = self.open(os.environ["PUNCTUAL_URL"])
        self.losing = self.open(os.environ["PUNCTUAL_LOSING_URL"])

    def open(self, url, **settings):
        client = Client(url, **settings)
        self.addCleanup(client.close)
        return client

    def test_a_submit_whose_answers_are_lost_makes_one_task(self):
        task = self.losing.submit(
            TOPIC, {"order": 1}, name="a name/with ü", key="named", delay=HOUR
        )
        self.assertEqual(task["state"], "scheduled")
        again = self.client.submit(
            TOPIC, {"order": 2}, name="a name/with ü", key="other", delay=HOUR
        )
        self.assertEqual(again["id"], task["id"])
        due = datetime.now(timezone.utc) + HOUR
        self.losing.submit(TOPIC, None, key="unnamed", due_at=due, headers={"source": "tests"})

    def test_a_replacement_whose_answers_are_lost_leaves_one_task(self):
        first = self.client.submit(TOPIC, 1, name="order-2", key="first", delay=HOUR)
        task = self.losing.replace(TOPIC, "order-2", 2, key="replaced", delay=HOUR)
        self.assertEqual(self.client.get(TOPIC, "order-2")["id"], task["id"])
        cancelled = self.client.cancel_by_id(first["id"])
        self.assertEqual(cancelled.verdict, Verdict.REPLACED)

    def test_verdicts_are_values(self):
        self.client.submit(TOPIC, 3, name="order-3", delay=HOUR)
        cancelled = self.losing.cancel(TOPIC, "order-3")
        self.assertEqual(
            (cancelled.verdict, cancelled.task["state"]), (Verdict.CANCELLED, "cancelled")
        )
        self.assertEqual(self.client.cancel(TOPIC, "nobody").verdict, Verdict.NOT_FOUND)
        self.assertIsNone(self.client.get(TOPIC, "nobody"))
        task = self.client.submit(TOPIC, 4, name="order-4", delay=timedelta(0))
        while (task := self.client.get_by_id(task["id"]))["state"] != "published":
            time.sleep(0.02)
        self.assertGreaterEqual(task["receipt"]["offset"], 0)
        self.assertEqual(self.client.cancel_by_id(task["id"]).verdict, Verdict.TOO_LATE)

    def test_a_consumer_answers_for_its_attempts(self):
        tracked = {
            "topic": TOPIC,
            "name": "order-6",
            "payload": 6,
            "delay": timedelta(0),
            "ttr": HOUR,
            "retry": {"attempts_max": 3, "backoff_min": timedelta(seconds=1)},
        }
        other = {"topic": "no-such-topic", "payload": None, "delay": timedelta(0)}
        task, refused = self.losing.submit_many([tracked, other])
        self.assertEqual(refused.slug, "unknown-topic")
        while self.client.get_by_id(task["id"])["state"] != "awaiting":
            time.sleep(0.02)
        failed = self.losing.fail(task["id"], 1, "out of stock", retry_in=HOUR)
        self.assertEqual((failed.verdict, failed.took_effect), (Outcome.RETRYING, True))
        late = self.client.extend(task["id"], 1, HOUR)
        self.assertEqual((late.verdict, late.took_effect), (Outcome.ALREADY_FAILED, False))
        absent = "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"
        now = datetime.now(timezone.utc)
        answers = self.losing.outcomes(
            [
                {"outcome": "finish", "topic": TOPIC, "name": "order-6"},
                {"outcome": "fail", "id": absent, "attempt": 1, "retry_at": now},
            ]
        )
        verdicts = [answer.verdict for answer in answers]
        self.assertEqual(verdicts, [Outcome.FINISHED, Outcome.NOT_FOUND])
        self.assertEqual(self.client.finish(task["id"], 1).task["state"], "finished")
        with self.assertRaises(Problem) as caught:
            self.client.fail(task["id"], 0)
        self.assertEqual(caught.exception.field, "attempt")

    def test_a_popped_task_is_finished(self):
        record = {"payload": {"order": 11}, "key": "popped", "ttr": HOUR}
        task = self.client.submit(TOPIC, delay="0s", **record)
        popped = []
        while task["id"] not in [one.id for one in popped]:
            popped = self.client.pop(TOPIC, "python", wait="5s", max=100)
        one = next(one for one in popped if one.id == task["id"])
        self.assertEqual((one.attempt, one.body["key"]), (1, "popped"))
        self.assertEqual(one.body["payload"], {"order": 11})
        self.assertGreater(one.finish_by, datetime.now(timezone.utc) + HOUR / 2)
        self.assertEqual(self.client.finish(one.id, one.attempt).verdict, Outcome.FINISHED)
        self.assertEqual(self.client.pop(TOPIC, "python", wait="0s"), [])

    def test_a_callback_is_set_and_deleted(self):
        self.assertIsNone(self.client.get_callback(TOPIC))
        callback = {"headers": {"authorization": "secret"}, "timeout": HOUR / 720}
        made = self.client.set_callback(
            TOPIC, "https://jobs.example.com/orders", paused=True, **callback
        )
        self.assertEqual((made["timeout"], made["paused"]), ("5s", True))
        known = self.client.get_callback(TOPIC)
        self.assertEqual((known, known["header_names"]), (made, ["authorization"]))
        self.assertEqual(self.client.delete_callback(TOPIC), known)
        self.assertIsNone(self.client.delete_callback(TOPIC))
        with self.assertRaises(Problem) as caught:
            self.client.set_callback(TOPIC, "https://example.org/")
        self.assertEqual(caught.exception.field, "url")

    def test_a_move_whose_answers_are_lost_moves_the_task(self):
        task = self.client.submit(TOPIC, 7, name="order-7", delay=HOUR)
        moved = self.losing.move(TOPIC, "order-7", delay=2 * HOUR)
        self.assertEqual((moved.verdict, moved.task["id"]), (MoveVerdict.MOVED, task["id"]))
        due = datetime(2030, 1, 31, 9, 30, tzinfo=timezone.utc)
        moved = self.client.move_by_id(task["id"], due_at=due)
        self.assertEqual(moved.task["due_at"], "2030-01-31T09:30:00.000Z")
        self.assertEqual(self.client.get(TOPIC, "order-7")["due_at"], moved.task["due_at"])
        self.client.replace(TOPIC, "order-7", 8, delay=HOUR)
        replaced = self.client.move_by_id(task["id"], due_at=due)
        self.assertEqual(replaced.verdict, MoveVerdict.REPLACED)
        self.client.cancel(TOPIC, "order-7")
        late = self.client.move(TOPIC, "order-7", delay=HOUR)
        self.assertEqual((late.verdict, late.task["state"]), (MoveVerdict.TOO_LATE, "cancelled"))
        nobody = self.client.move(TOPIC, "nobody", delay=HOUR)
        self.assertEqual(nobody, (MoveVerdict.NOT_FOUND, None))
        with self.assertRaises(Problem) as caught:
            self.client.move(TOPIC, "order-7", delay=HOUR, due_at=due)
        self.assertEqual(caught.exception.slug, "conflicting-fields")

    def test_a_move_of_a_task_that_may_be_due_is_not_repeated(self):
        self.client.submit(TOPIC, 8, name="order-8", delay=HOUR)
        with self.assertRaises(NoAnswer) as caught:
            self.losing.move(TOPIC, "order-8", delay=timedelta(0))
        self.assertTrue(caught.exception.is_unknown)

    def test_a_change_is_made_only_under_its_condition(self):
        other = "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"
        first = self.client.replace(TOPIC, "order-12", 1, delay=HOUR, if_none_match="*")["id"]
        task = {"topic": TOPIC, "name": "order-12"}
        due = datetime.now(timezone.utc) + 2 * HOUR
        refused = [
            lambda: self.client.replace(**task, payload=2, delay=HOUR, if_none_match="*"),
            lambda: self.client.replace(**task, payload=2, delay=HOUR, when="absent"),
            lambda: self.client.replace(**task, payload=2, due_at=due, when="earlier"),
            lambda: self.client.replace(**task, payload=2, delay=HOUR, if_match=[other]),
            lambda: self.client.move(**task, delay=HOUR, if_match=other),
            lambda: self.client.cancel(**task, if_none_match=[other, first]),
        ]
        for call in refused:
            with self.assertRaises(Problem) as caught:
                call()
            self.assertEqual(caught.exception.slug, "precondition-failed")
            self.assertEqual(caught.exception.body["current_id"], first)
        by_id = [
            lambda: self.client.cancel_by_id(first, if_match=other),
            lambda: self.client.move_by_id(first, delay=HOUR, if_match=other),
        ]
        for call in by_id:
            with self.assertRaises(Problem) as caught:
                call()
            self.assertEqual(caught.exception.status, 412)
        moved = self.client.move(**task, delay=HOUR, if_match=[other, first])
        self.assertEqual(moved.verdict, MoveVerdict.MOVED)
        later = {"when": "later", "not_after": due}
        second = self.client.replace(**task, payload=2, delay=3 * HOUR, **later)
        self.assertLess(datetime.fromisoformat(second["due_at"].replace("Z", "+00:00")), due + HOUR)
        cancelled = self.client.cancel(**task, if_match=second["id"], if_none_match=first)
        self.assertEqual(cancelled.verdict, Verdict.CANCELLED)

    def test_a_call_with_a_condition_is_not_repeated_once_it_may_have_been_done(self):
        task = {"topic": TOPIC, "name": "order-13"}
        calls = [
            lambda: self.losing.replace(**task, payload=1, delay=HOUR, if_none_match="*"),
            lambda: self.losing.replace(**task, payload=2, delay=2 * HOUR, when="later"),
            lambda: self.losing.move(**task, delay=HOUR, if_match="*"),
            lambda: self.losing.cancel(**task, if_match="*"),
        ]
        for call in calls:
            with self.assertRaises(NoAnswer) as caught:
                call()
            self.assertTrue(caught.exception.is_unknown)
        self.assertEqual(self.client.get(**task)["state"], "cancelled")

    def test_a_dead_letter_is_redriven_once(self):
        ids = []
        for name in ("order-9", "order-10"):
            tracked = {"name": name, "ttr": HOUR, "delay": timedelta(0)}
            task = self.client.submit(TOPIC, 9, **tracked)
            while self.client.get_by_id(task["id"])["state"] != "awaiting":
                time.sleep(0.02)
            self.client.fail(task["id"], 1, "out of stock", final=True)
            ids.append(task["id"])
        while len(dead := list(self.client.dead_letters(TOPIC))) < 2:
            time.sleep(0.02)
        self.assertEqual([task["id"] for task in dead], ids)
        self.assertIn("out of stock", dead[0]["reason"])
        self.assertEqual(self.losing.redrive(ids[0])["id"], ids[0])
        while self.client.get_by_id(ids[0])["state"] != "awaiting":
            time.sleep(0.02)
        self.assertEqual(self.client.redrive_many(TOPIC, dry_run=True), (1, False))
        early = datetime(2020, 1, 1, tzinfo=timezone.utc)
        self.assertEqual(self.client.redrive_many(TOPIC, due_to=early).count, 0)
        for redrive, of in ((self.client.redrive, ids[1]), (self.client.redrive_many, TOPIC)):
            with self.assertRaises(Problem) as caught:
                redrive(of, to_topic="no-such-topic")
            self.assertEqual(caught.exception.slug, "unknown-topic")
        self.assertEqual(self.client.redrive_many(TOPIC), (1, False))
        self.assertEqual(list(self.client.dead_letters(TOPIC)), [])
        self.assertIsNone(self.client.redrive("01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"))
        for task in ids:
            while self.client.finish(task).verdict == Outcome.NOT_PUBLISHED_YET:
                time.sleep(0.02)

    def test_a_pause_whose_answers_are_lost_pauses_the_topic(self):
        self.addCleanup(self.client.resume_topic, TOPIC)
        paused = self.losing.pause_topic(TOPIC, "the consumer fails").paused
        self.assertEqual(paused.reason, "the consumer fails")
        age = datetime.now(timezone.utc) - paused.since
        self.assertLess(abs(age), timedelta(minutes=5))
        self.assertEqual(self.client.get_topic(TOPIC).paused, paused)
        task = self.client.submit(TOPIC, 11, delay=timedelta(0))
        self.assertEqual(self.client.cancel_by_id(task["id"]).verdict, Verdict.CANCELLED)
        self.assertIsNone(self.losing.resume_topic(TOPIC).paused)
        self.assertIsNone(self.client.get_topic("no-such-topic"))
        with self.assertRaises(Problem) as caught:
            self.client.pause_topic("no-such-topic")
        self.assertEqual(caught.exception.slug, "unknown-topic")

    def test_a_schedule_whose_answers_are_lost_is_there_once(self):
        start = datetime(2030, 1, 31, 9, 30, tzinfo=timezone.utc)
        timing = {"every": HOUR, "phase": "30m", "starts_at": start}
        made = self.losing.set_schedule(TOPIC, "a schedule/with ü", {"do": "poll"}, **timing)
        self.assertEqual((made.revision, made.next_run_at), (1, start))
        self.assertEqual(made.body["payload"], {"do": "poll"})
        self.assertTrue(self.losing.pause_schedule(TOPIC, made.name).is_paused)
        self.assertFalse(self.losing.resume_schedule(TOPIC, made.name).is_paused)
        with self.assertRaises(NoAnswer) as caught:
            self.losing.trigger_schedule(TOPIC, made.name)
        self.assertTrue(caught.exception.is_unknown)
        # An attempt without an answer has deleted it.
        self.assertIsNone(self.losing.delete_schedule(TOPIC, made.name))
        self.assertIsNone(self.client.get_schedule(TOPIC, made.name))

    def test_the_error_of_a_gateway_does_not_tell_what_was_done(self):
        gateway = self.open(os.environ["PUNCTUAL_LOSING_URL"] + "/gateway")
        stalled = self.open(
            os.environ["PUNCTUAL_LOSING_URL"] + "/stalled", timeout=1.0, retry_for=0.0
        )
        for client in (gateway, stalled):
            with self.assertRaises(NoAnswer) as caught:
                client.trigger_schedule(TOPIC, "poll")
            self.assertTrue(caught.exception.is_unknown)

    def test_a_failure_after_some_parts_leaves_the_others_with_their_problem(self):
        tasks = [{"topic": TOPIC, "payload": number} for number in range(3)]
        for way, second in (("refused", "unavailable"), ("lost", "outcome-unknown")):
            url = os.environ["PUNCTUAL_LOSING_URL"] + "/partly-" + way
            done, *others = self.open(url, retry_for=3.0).submit_many(tasks)
            self.assertEqual(done["state"], "scheduled")
            self.assertEqual([one.slug for one in others], [second, "outcome-unknown"])

    def test_a_forked_process_has_a_connection_of_its_own(self):
        self.client.get(TOPIC, "no such name")
        of_parent = self.client._local.connection
        child = os.fork()
        if child == 0:
            status = 2
            try:
                status = int(self.client._connected() is of_parent)
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertIs(self.client._connected(), of_parent)

    def test_a_refused_request_is_a_problem_with_a_type(self):
        with self.assertRaises(Problem) as caught:
            self.client.submit("no-such-topic", 1, delay=HOUR)
        self.assertEqual((caught.exception.slug, caught.exception.status), ("unknown-topic", 422))
        with self.assertRaises(Problem) as caught:
            self.client.submit(TOPIC, 1, delay="5")
        self.assertEqual(
            (caught.exception.slug, caught.exception.field), ("invalid-value", "delay")
        )

    def test_a_replacement_of_a_task_that_may_be_due_is_not_repeated(self):
        with self.assertRaises(NoAnswer) as caught:
            self.losing.replace(TOPIC, "order-5", 5, delay=timedelta(0))
        self.assertTrue(caught.exception.is_unknown)

    def test_a_token_and_a_ca_file_are_used(self):
        url, ca = os.environ["PUNCTUAL_SECURE_URL"], os.environ["PUNCTUAL_CA_FILE"]
        client = self.open(url, token_file=os.environ["PUNCTUAL_TOKEN_FILE"], ca_file=ca)
        client.submit(TOPIC, 6, key="secure", delay=HOUR)
        with self.assertRaises(Problem) as caught:
            self.open(url, ca_file=ca).submit(TOPIC, 6, delay=HOUR)
        self.assertEqual(caught.exception.slug, "unauthenticated")
        with self.assertRaises(NoAnswer) as caught:
            self.open(url).submit(TOPIC, 6, delay=HOUR)
        self.assertFalse(caught.exception.is_unknown)


@unittest.skipUnless(TOPIC, "needs the program: tests/integration/clients.rs has built it")
class Dev(unittest.TestCase):
    def test_a_month_passes_in_a_test(self):
        with DevServer("orders:2") as dev:
            client = dev.client()
            self.addCleanup(client.close)
            task = client.submit("orders", {"order": 7}, key="order-7", delay=timedelta(days=30))
            self.assertEqual(dev.published("orders"), [])
            dev.advance(timedelta(days=29))
            dev.advance("1d")
            (record,) = dev.published("orders")
            self.assertEqual(record["payload"], {"order": 7})
            self.assertEqual(record["headers"][TASK_ID], task["id"])
            with self.assertRaises(Problem) as caught:
                dev.published("ordres")
            self.assertIn("no such topic", caught.exception.detail)
            for bare in (30, "30"):
                with self.assertRaisesRegex(TypeError, "give a timedelta"):
                    dev.advance(bare)

    def test_a_schedule_runs_until_it_is_paused(self):
        with DevServer("orders:2") as dev:
            client = dev.client()
            self.addCleanup(client.close)
            workdays = {
                "cron": "30 2 * * 1-5",
                "time_zone": "Europe/Berlin",
                "exclude": [date(2029, 12, 26)],
                "missed": {"policy": "all", "within": timedelta(hours=2)},
                "starts_at": datetime(2029, 12, 25, tzinfo=timezone.utc),
            }
            preview = client.preview_schedule("orders", "nightly", 1, runs=2, **workdays)
            runs = [datetime(2029, 12, day, 1, 30, tzinfo=timezone.utc) for day in (25, 27)]
            self.assertEqual(preview.next_runs, runs)
            self.assertEqual(preview.body["missed"]["within"], "2h")
            self.assertIsNone(client.get_schedule("orders", "nightly"))

            client.set_schedule("orders", "poll", {"do": "poll"}, every=HOUR, key="poll")
            dev.advance(HOUR)
            self.assertEqual([run["payload"] for run in dev.published("orders")], [{"do": "poll"}])
            self.assertIsNone(client.pause_schedule("orders", "poll").next_run_at)
            dev.advance(2 * HOUR)
            self.assertEqual(len(dev.published("orders")), 1)
            task = client.trigger_schedule("orders", "poll")
            self.assertEqual(task["key"], "poll")
            dev.advance("1s")
            self.assertEqual(len(dev.published("orders")), 2)
            known = client.get_schedule("orders", "poll", runs=3)
            self.assertEqual((known.is_paused, known.next_runs), (True, []))

            names = ["poll", *(f"poll-{number}" for number in range(100, 201))]
            for name in names[1:]:
                client.set_schedule("orders", name, 1, every="1h", paused=True)
            self.assertEqual([one.name for one in client.schedules("orders")], names)
            self.assertEqual(client.delete_schedule("orders", "poll").name, "poll")
            self.assertIsNone(client.delete_schedule("orders", "poll"))
            with self.assertRaises(Problem) as caught:
                client.resume_schedule("orders", "poll")
            self.assertEqual(caught.exception.slug, "schedule-not-found")

    def test_a_backfill_makes_no_run_twice(self):
        with DevServer("orders:2") as dev:
            client = dev.client()
            self.addCleanup(client.close)
            client.set_schedule("orders", "poll", {"do": "poll"}, every=HOUR, paused=True)
            would = client.backfill_schedule("orders", "poll", last=3 * HOUR, dry_run=True)
            self.assertEqual((would.made, would.already_made), (3, 0))
            begin, second, third = would.runs
            self.assertEqual(third - begin, 2 * HOUR)
            first = client.backfill_schedule("orders", "poll", from_=begin, to=second)
            self.assertEqual(first, (1, 0, [begin]))
            both = client.backfill_schedule("orders", "poll", from_=begin, to=third)
            self.assertEqual(both, (1, 1, [begin, second]))
            dev.advance("1s")
            self.assertEqual(len(dev.published("orders")), 2)
            with self.assertRaises(Problem) as caught:
                client.backfill_schedule("orders", "poll", last="8d")
            self.assertEqual(caught.exception.field, "last")
            with self.assertRaises(Problem) as caught:
                client.backfill_schedule("orders", "nobody", last="1h")
            self.assertEqual(caught.exception.slug, "schedule-not-found")

    def test_a_schedule_is_changed_only_under_its_condition(self):
        with DevServer("orders:2") as dev:
            client = dev.client()
            self.addCleanup(client.close)
            made = client.set_schedule("orders", "poll", 1, every=HOUR, if_none_match="*")
            changed = client.set_schedule("orders", "poll", 2, every=HOUR, if_match=made.revision)
            refused = [
                lambda: client.set_schedule("orders", "poll", 3, every=HOUR, if_none_match="*"),
                lambda: client.set_schedule("orders", "poll", 3, every=HOUR, if_match=1),
                lambda: client.delete_schedule("orders", "poll", if_match=made.revision),
            ]
            for call in refused:
                with self.assertRaises(Problem) as caught:
                    call()
                self.assertEqual(caught.exception.slug, "precondition-failed")
            deleted = client.delete_schedule("orders", "poll", if_match=changed.revision)
            self.assertEqual(deleted.body["payload"], 2)

    def test_a_policy_is_set_changed_and_deleted(self):
        with DevServer("orders:2") as dev:
            client = dev.client()
            self.addCleanup(client.close)
            self.assertIsNone(client.get_topic("orders").policy)
            limits = {"delay_max": "90d", "expire_after": HOUR, "pending_max": 1000}
            tracked = {"ttr": "30s", "retry": {"attempts_max": 3, "backoff_min": HOUR / 60}}
            made = client.set_policy(
                "orders", **limits, **tracked, submitted_by_header=True, paused=True
            )
            self.assertIsNotNone(made.paused)
            policy = made.policy
            self.assertEqual(policy[2:7], ("90d", "1h", None, 1000, True))
            self.assertEqual((policy.ttr, policy.retry["backoff_min"]), ("30s", "1m"))
            spread = {**policy.body, "spread": "10m"}
            changed = client.set_policy("orders", **spread, if_match=made.revision)
            self.assertEqual(changed.policy.body, {**policy.body, "spread": "10m"})
            self.assertEqual(client.get_topic("orders").policy, changed.policy)
            refused = [
                lambda: client.set_policy("orders", if_match=made.revision),
                lambda: client.set_policy("orders", if_none_match="*"),
                lambda: client.delete_policy("orders", if_match=made.revision),
            ]
            for call in refused:
                with self.assertRaises(Problem) as caught:
                    call()
                self.assertEqual(caught.exception.slug, "precondition-failed")
            deleted = client.delete_policy("orders", if_match=changed.revision)
            self.assertIsNone(deleted.policy)
            with self.assertRaises(Problem) as caught:
                client.set_policy("orders", spread="2d")
            self.assertEqual(caught.exception.field, "spread")


class Rules(unittest.TestCase):
    def test_without_a_node_nothing_was_done(self):
        with self.assertRaises(NoAnswer) as caught:
            Client("http://127.0.0.1:1", retry_for=0.3).submit("demo", 1, delay=HOUR)
        self.assertFalse(caught.exception.is_unknown)

    def test_nothing_was_done_on_a_connection_that_was_not_made(self):
        with self.assertRaises(NoAnswer) as caught:
            Client("http://nobody.invalid:7070", retry_for=0).trigger_schedule("orders", "poll")
        self.assertFalse(caught.exception.is_unknown)

    def test_a_connection_that_a_node_has_closed_is_made_again(self):
        closed = threading.Event()

        def serve(listener):
            for _ in range(2):
                peer, _address = listener.accept()
                with peer:
                    text = b""
                    while not text.endswith(b"{}"):
                        text += peer.recv(65536)
                    peer.sendall(b'HTTP/1.1 201 Created\r\ncontent-length: 10\r\n\r\n{"id":"7"}')
                closed.set()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=serve, args=(listener,), daemon=True).start()
            client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", retry_for=0)
            self.addCleanup(client.close)
            for _ in range(2):
                self.assertEqual(client.trigger_schedule("orders", "poll")["id"], "7")
                self.assertTrue(closed.wait(10))

    def test_a_refusal_of_a_proxy_is_a_problem(self):
        for status, text in (
            (404, "<html>404 Not Found</html>"),
            (413, ""),
            (400, "[]"),
            (403, '{"message":"Forbidden"}'),
            (422, '{"type":"about:blank","status":"error","field":7}'),
        ):
            with answering(status, text) as (client, requests):
                with self.assertRaises(Problem) as caught:
                    client.submit("demo", 1, delay=HOUR)
                problem = caught.exception
                self.assertEqual((problem.slug, problem.status), ("", status))
                self.assertEqual(problem.detail, "the answer is not of Punctual")
                self.assertEqual(str(problem), f"status {status}: {problem.detail}")
                with self.assertRaises(Problem):
                    client.get("demo", "order-1")
                self.assertEqual(len(requests), 2)

    def test_another_answer_of_a_proxy_is_none(self):
        for status, text, is_unknown in (
            (429, "slow down", False),
            (408, "[]", False),
            (200, "<html>a login</html>", True),
            (502, "<html>bad gateway</html>", True),
            (503, '{"message":"Service Unavailable"}', True),
        ):
            with answering(status, text) as (client, requests):
                with self.assertRaisesRegex(NoAnswer, f"status {status}: the answer") as caught:
                    client.submit("demo", 1, delay=HOUR)
                self.assertEqual(caught.exception.is_unknown, is_unknown)
                self.assertGreater(len(requests), 1)

    def test_a_refusal_of_a_proxy_does_not_tell_of_an_earlier_attempt(self):
        with answering(404, "<html>of a proxy</html>", first=502) as (client, requests):
            with self.assertRaisesRegex(NoAnswer, "status 404: the answer is not") as caught:
                client.submit("demo", 1, delay=HOUR)
            self.assertTrue(caught.exception.is_unknown)
            self.assertEqual(len(requests), 2)

    def test_a_caller_that_was_denied_too_often_does_not_repeat(self):
        problem = {"type": "urn:punctual:problem:denied-too-often", "status": 429}
        with answering(429, json.dumps(problem), retry_after=0) as (client, requests):
            with self.assertRaises(Problem) as caught:
                client.submit("demo", 1, delay=HOUR)
            self.assertEqual(caught.exception.slug, "denied-too-often")
            self.assertEqual(len(requests), 1)

    def test_a_verdict_of_a_later_version_is_other(self):
        with answering(200, '{"verdict":"postponed","task":{"id":"7"}}') as (client, _):
            self.assertEqual(client.cancel("demo", "order-1").verdict, Verdict.OTHER)
            moved = client.move("demo", "order-1", delay=HOUR)
            self.assertEqual(moved, (MoveVerdict.OTHER, {"id": "7"}))
            finished = client.finish("7")
            self.assertEqual((finished.verdict, finished.took_effect), (Outcome.OTHER, True))
        problem = {"type": "urn:punctual:problem:postponed", "verdict": "postponed", "status": 409}
        with answering(409, json.dumps(problem)) as (client, _):
            finished = client.finish("7")
            self.assertEqual((finished.verdict, finished.took_effect), (Outcome.OTHER, False))

    def test_a_token_is_not_sent_in_clear_over_the_network(self):
        with self.assertRaises(ValueError):
            Client("http://punctual.example:7070", token="pt_1")

    def test_what_http_cannot_carry_is_refused(self):
        for token in ("pt_1\nx", "pt_1\n", "pt 1", "ü"):
            with self.assertRaisesRegex(ValueError, "a token is one line") as caught:
                Client("http://127.0.0.1:1", token=token)
            self.assertNotIn(token, str(caught.exception))
        with self.assertRaisesRegex(ValueError, "is no URL of a node"):
            Client("http://127.0.0.1:1/a b")
        with self.assertRaises(ValueError):
            Client("http://127.0.0.1:port").get("demo", "order-1")

    def test_a_time_without_a_zone_is_refused(self):
        with self.assertRaises(ValueError):
            Client("http://127.0.0.1:1").submit("demo", 1, due_at=datetime(2030, 1, 31))
        with self.assertRaisesRegex(ValueError, "due_at has no zone"):
            Client("http://127.0.0.1:1").move_by_id("1", due_at=datetime(2030, 1, 31))
        with self.assertRaisesRegex(ValueError, "due_at has no zone"):
            Client("http://127.0.0.1:1").replace("demo", "one", 1, due_at=datetime(2030, 1, 31))

    def test_a_number_is_no_length_of_time(self):
        client = Client("http://127.0.0.1:1", retry_for=0)
        calls = [
            lambda: client.submit("demo", 1, delay=5),
            lambda: client.submit("demo", 1, delay=HOUR, ttr=30),
            lambda: client.submit("demo", 1, delay=HOUR, retry={"backoff_min": 1.5}),
            lambda: client.submit_many([{"topic": "demo", "payload": 1, "delay": 5}]),
            lambda: client.replace("demo", "order-1", 1, delay=5),
            lambda: client.move("demo", "order-1", delay=5),
            lambda: client.set_schedule("demo", "poll", 1, every=5),
            lambda: client.preview_schedule("demo", "poll", 1, every="1h", missed={"within": 5}),
            lambda: client.fail("1", 1, retry_in=5),
            lambda: client.extend("1", 1, by=5),
            lambda: client.outcomes([{"outcome": "extend", "id": "1", "attempt": 1, "by": 5}]),
            lambda: client.pop("demo", "group", wait=5),
            lambda: client.set_callback("demo", "https://jobs.example.com", timeout=5),
            lambda: client.backfill_schedule("demo", "poll", last=5),
            lambda: client.set_policy("demo", spread=5),
            lambda: client.set_policy("demo", ttr="5s", retry={"backoff_min": 5}),
        ]
        for call in calls:
            with self.assertRaisesRegex(TypeError, "give a timedelta, or text with a unit"):
                call()

    def test_a_condition_needs_ids_that_http_can_carry(self):
        client = Client("http://127.0.0.1:1", retry_for=0)
        ids = ("", "a\nb", 'a"b', "a b", "ü", "\x7f", True, b"1")
        for wrong in ([], *ids, *([one] for one in ids), ["1", "*"], ["*"]):
            calls = [
                lambda: client.replace("demo", "order-1", 1, delay=HOUR, if_none_match=wrong),
                lambda: client.cancel("demo", "order-1", if_match=wrong),
                lambda: client.move("demo", "order-1", delay=HOUR, if_match=wrong),
                lambda: client.set_policy("demo", if_match=wrong),
                lambda: client.set_schedule("demo", "poll", 1, every=HOUR, if_match=wrong),
            ]
            for call in calls:
                with self.assertRaisesRegex(ValueError, "a condition"):
                    call()

    def test_a_pop_waits_less_than_its_client(self):
        with self.assertRaisesRegex(ValueError, "wait is 5s: give less than the timeout, 5"):
            Client("http://127.0.0.1:1", timeout=5).pop("demo", "group", wait="5s")
        with self.assertRaisesRegex(ValueError, "wait is PT5S: give a timedelta, or text in units"):
            Client("http://127.0.0.1:1", timeout=5).pop("demo", "group", wait="PT5S")

    def test_a_replacement_with_a_delay_in_text_is_repeated(self):
        self.assertEqual(seconds_of("delay", "1h 30m500ms"), 5400.5)
        self.assertIsNone(seconds_of("delay", "PT30M"))

    def test_bytes_are_no_payload(self):
        client = Client("http://127.0.0.1:1", retry_for=0)
        for record in ({"payload": b"1"}, {"payload": 1, "key": b"1"}):
            with self.assertRaisesRegex(TypeError, "payload_base64=base64"):
                client.submit("demo", delay=HOUR, **record)

    def test_a_dev_server_needs_its_program(self):
        with self.assertRaisesRegex(FileNotFoundError, "no program `no-punctual` on the PATH"):
            DevServer("orders", program="no-punctual")

    def test_the_work_of_a_task_succeeds_once(self):
        once, done = Once(remembered=2), []
        headers = [(TASK_ID, b"1"), (DUE_AT, b"1896082200000"), (ATTEMPT, b"2")]
        self.assertEqual(attempt(headers), 2)
        self.assertEqual((task_id(headers), due_at(headers)), ("1", 1896082200000))
        with self.assertRaises(ZeroDivisionError):
            once.run(headers, lambda: 1 / 0)
        self.assertTrue(once.run(headers, lambda: done.append(1)))
        self.assertFalse(once.run(headers, lambda: done.append(2)))
        self.assertEqual(done, [1])


class Signatures(unittest.TestCase):
    def test_a_signature_of_one_of_the_keys_is_genuine(self):
        key, other = "a2V5IG9uZSBrZXkgb25lIGtleSBvbmUga2V5", "a2V5IHR3byBrZXkgdHdvIGtleSB0d28ga2V5"
        digest = "c9762b2a2c7c6d1c6402686ecf40a8651d6d1f9b3a6149cc986fa0098419bd69"
        signature = f"t=1700000000,v1={'0' * 64},v1={digest}"
        ever = {"max_age": 10**10}
        self.assertTrue(is_genuine([other, key], signature, "orders", b'{"a":1}', **ever))
        self.assertFalse(is_genuine([key], signature, "orders", b'{"a":1}'))
        self.assertFalse(is_genuine([other], signature, "orders", b'{"a":1}', **ever))
        self.assertFalse(is_genuine([key], signature, "orders", b'{"a":2}', **ever))
        self.assertFalse(is_genuine([key], signature, "other", b'{"a":1}', **ever))
        for wrong in (None, "", "t=x", f"v1={digest}", "t=1700000000", "t=1700000000,v1=ü"):
            self.assertFalse(is_genuine([key], wrong, "orders", b'{"a":1}', **ever))
        # Lines of the file that are no keys. Anybody can sign with an empty one.
        lines, forged = ["", "# from May on", "bm8ga2V5"], "t=1700000000,v1=%s" % EMPTY
        self.assertFalse(is_genuine(lines, forged, "orders", b'{"a":1}', **ever))
        self.assertTrue(is_genuine([*lines, key + "\n"], signature, "orders", b'{"a":1}', **ever))


if __name__ == "__main__":
    unittest.main()
