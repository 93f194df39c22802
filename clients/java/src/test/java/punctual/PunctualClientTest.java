package punctual;

import static org.junit.jupiter.api.Assertions.*;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

class PunctualClientTest {
    static final String TOPIC = System.getenv("PUNCTUAL_TOPIC");
    static final Duration HOUR = Duration.ofHours(1);

    static PunctualClient client(String variable) {
        return PunctualClient.to(System.getenv(variable)).build();
    }

    /** A server that answers all requests alike, and counts them. */
    record Answering(HttpServer server, AtomicInteger count) implements AutoCloseable {
        static Answering start(int status, String text) throws IOException {
            return start(status, status, text);
        }

        /** Answers the first request with another status. */
        static Answering start(int first, int status, String text) throws IOException {
            var server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
            var count = new AtomicInteger();
            server.createContext("/", exchange -> {
                int given = count.incrementAndGet() == 1 ? first : status;
                exchange.getRequestBody().readAllBytes();
                exchange.sendResponseHeaders(given, text.isEmpty() ? -1 : text.length());
                exchange.getResponseBody().write(text.getBytes());
                exchange.close();
            });
            server.start();
            return new Answering(server, count);
        }

        PunctualClient client() {
            return PunctualClient.to("http://127.0.0.1:" + server.getAddress().getPort())
                .retryFor(Duration.ofSeconds(2)).build();
        }

        @Override
        public void close() {
            server.stop(0);
        }
    }

    /** The story of every client: tests/integration/clients.rs starts a node for it. */
    @Nested
    class Story {
        PunctualClient client, losing;

        @BeforeEach
        void needsANode() {
            assumeTrue(TOPIC != null);
            client = client("PUNCTUAL_URL");
            losing = client("PUNCTUAL_LOSING_URL");
        }

        @Test
        void aSubmitWhoseAnswersAreLostMakesOneTask() throws Exception {
            var name = "a name/with ü";
            var task = losing.submit(TOPIC, Draft.in(HOUR).name(name).key("named").payload(Map.of("order", 1)));
            assertEquals("scheduled", task.get("state").asText());
            var again = client.submit(TOPIC, Draft.in(HOUR).name(name).key("other").payload(2));
            assertEquals(task.get("id"), again.get("id"));
            var due = Draft.at(Instant.now().plus(HOUR)).key("unnamed").payload(null);
            losing.submit(TOPIC, due.headers(Map.of("source", "tests")));
        }

        @Test
        void aReplacementWhoseAnswersAreLostLeavesOneTask() throws Exception {
            var first = client.submit(TOPIC, Draft.in(HOUR).name("order-2").key("first").payload(1));
            var task = losing.replace(TOPIC, "order-2", Draft.in(HOUR).key("replaced").payload(2));
            assertEquals(task.get("id"), client.get(TOPIC, "order-2").get("id"));
            assertEquals(Cancelled.Verdict.REPLACED, client.cancelById(first.get("id").asText()).verdict());
        }

        @Test
        void verdictsAreValues() throws Exception {
            client.submit(TOPIC, Draft.in(HOUR).name("order-3").payloadText("3"));
            var cancelled = losing.cancel(TOPIC, "order-3");
            assertEquals(Cancelled.Verdict.CANCELLED, cancelled.verdict());
            assertEquals("cancelled", cancelled.task().get("state").asText());
            assertEquals(Cancelled.Verdict.NOT_FOUND, client.cancel(TOPIC, "nobody").verdict());
            assertNull(client.get(TOPIC, "nobody"));
            var task = client.submit(TOPIC, Draft.in(Duration.ZERO).name("order-4").payload(4));
            while (!task.get("state").asText().equals("published")) task = client.getById(task.get("id").asText());
            assertTrue(task.get("receipt").get("offset").asLong() >= 0);
            assertEquals(Cancelled.Verdict.TOO_LATE, client.cancelById(task.get("id").asText()).verdict());
        }

        @Test
        void aConsumerAnswersForItsAttempts() throws Exception {
            var retry = new RetryPolicy().attemptsMax(3).backoff(Duration.ofSeconds(1), HOUR);
            var tracked = Draft.in(Duration.ZERO).name("order-6").payload(6).ttr(HOUR).retry(retry);
            var wrong = Draft.in(Duration.ZERO).payload(6).ttr(Duration.ofMillis(1));
            var submitted = losing.submitMany(TOPIC, List.of(tracked, wrong));
            assertEquals("tasks[1].ttr", submitted.get(1).problem().field());
            var id = submitted.get(0).task().get("id").asText();
            while (!client.getById(id).get("state").asText().equals("awaiting")) Thread.onSpinWait();
            var failed = losing.answer(Outcome.fail(id, 1).reason("out of stock").retryIn(HOUR));
            assertEquals(Answered.Verdict.RETRYING, failed.verdict());
            assertTrue(failed.tookEffect());
            var late = client.answer(Outcome.extend(id, 1).by(HOUR));
            assertEquals(Answered.Verdict.ALREADY_FAILED, late.verdict());
            assertFalse(late.tookEffect());
            var absent = Outcome.fail("01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f", 1).retryAt(Instant.now());
            var answers = losing.answerMany(List.of(Outcome.finish(id), absent));
            assertEquals(Answered.Verdict.FINISHED, answers.get(0).answered().verdict());
            assertEquals(Answered.Verdict.NOT_FOUND, answers.get(1).answered().verdict());
            var finished = client.answer(Outcome.finish(id).attempt(1));
            assertEquals("finished", finished.task().get("state").asText());
            var problem = assertThrows(Problem.class, () -> client.answer(Outcome.fail(id, 0)));
            assertEquals("attempt", problem.field());
        }

        @Test
        void aPoppedTaskIsFinished() throws Exception {
            var draft = Draft.in(Duration.ZERO).key("popped").payload(11).ttr(HOUR);
            var id = client.submit(TOPIC, draft).get("id").asText();
            var popped = new ArrayList<PoppedTask>();
            while (popped.isEmpty()) {
                popped.addAll(client.pop(TOPIC, "java", Duration.ofSeconds(5), 100));
                popped.removeIf(task -> !task.id().equals(id));
            }
            var task = popped.get(0);
            assertEquals(1, task.attempt());
            assertEquals("popped", task.body().get("key").asText());
            assertEquals(11, task.body().get("payload").asInt());
            assertTrue(task.finishBy().isAfter(Instant.now().plus(HOUR.dividedBy(2))));
            var finished = client.answer(Outcome.finish(id).attempt(task.attempt()));
            assertEquals(Answered.Verdict.FINISHED, finished.verdict());
            assertEquals(List.of(), client.pop(TOPIC, "java", Duration.ZERO, 1));
            assertThrows(IllegalArgumentException.class, () -> client.pop(TOPIC, "java", HOUR, 1));
        }

        @Test
        void aCallbackIsSetAndDeleted() throws Exception {
            assertNull(client.getCallback(TOPIC));
            var draft = CallbackDraft.to("https://jobs.example.com/orders")
                .headers(Map.of("authorization", "secret")).timeout(Duration.ofSeconds(5)).paused();
            var made = client.setCallback(TOPIC, draft);
            assertEquals("5s", made.get("timeout").asText());
            assertEquals(made, client.getCallback(TOPIC));
            assertEquals("authorization", made.get("header_names").get(0).asText());
            assertEquals(made, client.deleteCallback(TOPIC));
            assertNull(client.deleteCallback(TOPIC));
            var elsewhere = CallbackDraft.to("https://example.org/");
            var problem = assertThrows(Problem.class, () -> client.setCallback(TOPIC, elsewhere));
            assertEquals("url", problem.field());
        }

        @Test
        void aMoveWhoseAnswersAreLostMovesTheTask() throws Exception {
            var task = client.submit(TOPIC, Draft.in(HOUR).name("order-7").payload(7));
            var moved = losing.move(TOPIC, "order-7", HOUR.multipliedBy(2));
            assertEquals(Moved.Verdict.MOVED, moved.verdict());
            assertEquals(task.get("id"), moved.task().get("id"));
            var id = task.get("id").asText();
            var due = Instant.parse("2030-01-31T09:30:00Z");
            assertEquals("2030-01-31T09:30:00.000Z", client.moveById(id, due).task().get("due_at").asText());
            client.replace(TOPIC, "order-7", Draft.in(HOUR).payload(8));
            assertEquals(Moved.Verdict.REPLACED, client.moveById(id, HOUR).verdict());
            client.cancel(TOPIC, "order-7");
            var late = client.move(TOPIC, "order-7", due);
            assertEquals(Moved.Verdict.TOO_LATE, late.verdict());
            assertEquals("cancelled", late.task().get("state").asText());
            assertEquals(new Moved(Moved.Verdict.NOT_FOUND, null), client.move(TOPIC, "nobody", due));
            var problem = assertThrows(Problem.class, () -> client.move(TOPIC, "order-7", HOUR.negated()));
            assertEquals("delay", problem.field());
        }

        @Test
        void aMoveOfATaskThatMayBeDueIsNotRepeated() throws Exception {
            client.submit(TOPIC, Draft.in(HOUR).name("order-8").payload(8));
            var failure = assertThrows(NoAnswer.class, () -> losing.move(TOPIC, "order-8", Duration.ZERO));
            assertTrue(failure.isUnknown());
        }

        @Test
        void aChangeIsMadeOnlyUnderItsCondition() throws Exception {
            var name = "order-12";
            var other = "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f";
            var draft = Draft.in(HOUR).payload(1);
            var isNew = new Condition().ifNoneMatch("*");
            var id = client.replace(TOPIC, name, draft, isNew).get("id").asText();
            var due = Instant.now().plus(HOUR.multipliedBy(2));
            var isOther = new Condition().ifMatch(other);
            var absent = new Condition().when(Condition.When.ABSENT);
            var earlier = new Condition().when(Condition.When.EARLIER);
            var neither = new Condition().ifNoneMatch(other, id);
            for (Executable call : List.<Executable>of(
                    () -> client.replace(TOPIC, name, draft, isNew),
                    () -> client.replace(TOPIC, name, draft, absent),
                    () -> client.replace(TOPIC, name, Draft.at(due).payload(2), earlier),
                    () -> client.replace(TOPIC, name, draft, isOther),
                    () -> client.move(TOPIC, name, HOUR, isOther),
                    () -> client.move(TOPIC, name, due, isOther),
                    () -> client.cancel(TOPIC, name, neither))) {
                var problem = assertThrows(Problem.class, call);
                assertEquals("precondition-failed", problem.slug());
                assertEquals(id, problem.body().get("current_id").asText());
            }
            for (Executable call : List.<Executable>of(
                    () -> client.cancelById(id, isOther), () -> client.moveById(id, due, isOther),
                    () -> client.moveById(id, HOUR, isOther))) {
                assertEquals(412, assertThrows(Problem.class, call).status());
            }
            var moved = client.move(TOPIC, name, HOUR, new Condition().ifMatch(other, id));
            assertEquals(Moved.Verdict.MOVED, moved.verdict());
            var later = new Condition().when(Condition.When.LATER).notAfter(due);
            var second = client.replace(TOPIC, name, Draft.in(HOUR.multipliedBy(3)).payload(2), later);
            assertTrue(Instant.parse(second.get("due_at").asText()).isBefore(due.plusSeconds(1)));
            var current = new Condition().ifMatch(second.get("id").asText()).ifNoneMatch(id);
            var cancelled = client.cancel(TOPIC, name, current);
            assertEquals(Cancelled.Verdict.CANCELLED, cancelled.verdict());
        }

        @Test
        void aCallWithAConditionIsNotRepeatedOnceItMayBeDone() throws Exception {
            var name = "order-13";
            var isNew = new Condition().ifNoneMatch("*");
            var isThere = new Condition().ifMatch("*");
            var later = new Condition().when(Condition.When.LATER);
            for (Executable call : List.<Executable>of(
                    () -> losing.replace(TOPIC, name, Draft.in(HOUR).payload(1), isNew),
                    () -> losing.replace(TOPIC, name, Draft.in(HOUR.multipliedBy(2)).payload(1), later),
                    () -> losing.move(TOPIC, name, HOUR, isThere),
                    () -> losing.cancel(TOPIC, name, isThere))) {
                assertTrue(assertThrows(NoAnswer.class, call).isUnknown());
            }
            assertEquals("cancelled", client.get(TOPIC, name).get("state").asText());
        }

        @Test
        void aDeadLetterIsRedrivenOnce() throws Exception {
            var ids = new ArrayList<String>();
            for (var name : List.of("order-9", "order-10")) {
                var draft = Draft.in(Duration.ZERO).name(name).payload(9).ttr(HOUR);
                var id = client.submit(TOPIC, draft).get("id").asText();
                waitFor(id, "awaiting");
                client.answer(Outcome.fail(id, 1).reason("out of stock").isFinal());
                ids.add(id);
            }
            var dead = client.deadLetters(TOPIC, null);
            while (dead.items().size() < 2) dead = client.deadLetters(TOPIC, null);
            assertNull(dead.next());
            assertEquals(ids, dead.items().stream().map(task -> task.get("id").asText()).toList());
            assertTrue(dead.items().get(0).get("reason").asText().contains("out of stock"));
            assertEquals(ids.get(0), losing.redrive(ids.get(0)).get("id").asText());
            waitFor(ids.get(0), "awaiting");
            var one = new Redriven(1, false);
            assertEquals(one, client.redriveMany(TOPIC, new RedriveRange().dryRun()));
            var early = new RedriveRange().dueTo(Instant.parse("2020-01-01T00:00:00Z"));
            assertEquals(0, client.redriveMany(TOPIC, early).count());
            var other = new RedriveRange().toTopic("no-such-topic");
            var problem = assertThrows(Problem.class, () -> client.redriveMany(TOPIC, other));
            assertEquals("unknown-topic", problem.slug());
            problem = assertThrows(Problem.class, () -> client.redrive(ids.get(1), "no-such-topic"));
            assertEquals("unknown-topic", problem.slug());
            assertEquals(one, client.redriveMany(TOPIC));
            assertNull(client.redrive("01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"));
            for (var id : ids) {
                waitFor(id, "awaiting");
                client.answer(Outcome.finish(id));
            }
        }

        private void waitFor(String id, String state) throws Exception {
            while (!client.getById(id).get("state").asText().equals(state)) Thread.sleep(20);
        }

        @Test
        void aPauseWhoseAnswersAreLostPausesTheTopic() throws Exception {
            try {
                var paused = losing.pauseTopic(TOPIC, "the consumer fails").paused();
                assertEquals("the consumer fails", paused.reason());
                var age = Duration.between(paused.since(), Instant.now()).abs();
                assertTrue(age.compareTo(Duration.ofMinutes(5)) < 0);
                assertEquals(paused, client.getTopic(TOPIC).paused());
                var id = client.submit(TOPIC, Draft.in(Duration.ZERO).payload(11)).get("id").asText();
                assertEquals(Cancelled.Verdict.CANCELLED, client.cancelById(id).verdict());
            } finally {
                assertNull(losing.resumeTopic(TOPIC, null).paused());
            }
            assertNull(client.getTopic("no-such-topic"));
            var problem = assertThrows(Problem.class, () -> client.pauseTopic("no-such-topic", null));
            assertEquals("unknown-topic", problem.slug());
        }

        @Test
        void theErrorOfAGatewayDoesNotTellWhatWasDone() {
            var url = System.getenv("PUNCTUAL_LOSING_URL");
            var gateway = PunctualClient.to(url + "/gateway").build();
            var stalled = PunctualClient.to(url + "/stalled").timeout(Duration.ofSeconds(1))
                .retryFor(Duration.ZERO).build();
            for (var one : List.of(gateway, stalled)) {
                assertTimeoutPreemptively(Duration.ofSeconds(20), () -> assertTrue(
                    assertThrows(NoAnswer.class, () -> one.triggerSchedule(TOPIC, "poll")).isUnknown()));
            }
        }

        @Test
        void aFailureAfterSomePartsLeavesTheOthersWithTheirProblem() throws Exception {
            var drafts = List.of(Draft.in(HOUR).payload(0), Draft.in(HOUR).payload(1), Draft.in(HOUR).payload(2));
            for (var way : Map.of("refused", "unavailable", "lost", "outcome-unknown").entrySet()) {
                var url = System.getenv("PUNCTUAL_LOSING_URL") + "/partly-" + way.getKey();
                var client = PunctualClient.to(url).retryFor(Duration.ofSeconds(3)).build();
                var results = client.submitMany(TOPIC, drafts);
                assertEquals("scheduled", results.get(0).task().get("state").asText());
                assertEquals(way.getValue(), results.get(1).problem().slug());
                assertEquals("outcome-unknown", results.get(2).problem().slug());
            }
        }

        @Test
        void aScheduleWhoseAnswersAreLostIsThereOnce() throws Exception {
            var name = "a schedule/with ü";
            var start = Instant.parse("2030-01-31T09:30:00Z");
            var draft = ScheduleDraft.every(HOUR).phase(Duration.ofMinutes(30)).startsAt(start).payload("poll");
            var made = losing.setSchedule(TOPIC, name, draft);
            assertEquals(1, made.revision());
            assertEquals(start, made.nextRunAt());
            assertEquals("poll", made.body().get("payload").asText());
            assertTrue(losing.pauseSchedule(TOPIC, name).isPaused());
            assertFalse(losing.resumeSchedule(TOPIC, name).isPaused());
            assertTrue(assertThrows(NoAnswer.class, () -> losing.triggerSchedule(TOPIC, name)).isUnknown());
            // An attempt without an answer has deleted it.
            assertNull(losing.deleteSchedule(TOPIC, name));
            assertNull(client.getSchedule(TOPIC, name));
        }

        @Test
        void aRefusedRequestIsAProblemWithAType() {
            var problem = assertThrows(Problem.class, () -> client.submit("no-such-topic", Draft.in(HOUR).payload(1)));
            assertEquals("unknown-topic", problem.slug());
            assertEquals(422, problem.status());
            problem = assertThrows(Problem.class, () -> client.submit(TOPIC, Draft.in(HOUR.negated()).payload(1)));
            assertEquals("delay", problem.field());
        }

        @Test
        void aReplacementOfATaskThatMayBeDueIsNotRepeated() {
            var draft = Draft.in(Duration.ZERO).payload(5);
            assertTrue(assertThrows(NoAnswer.class, () -> losing.replace(TOPIC, "order-5", draft)).isUnknown());
        }

        @Test
        void aTokenAndACaFileAreUsed() throws Exception {
            var url = System.getenv("PUNCTUAL_SECURE_URL");
            var ca = Path.of(System.getenv("PUNCTUAL_CA_FILE"));
            var draft = Draft.in(HOUR).key("secure").payload(6);
            var token = Path.of(System.getenv("PUNCTUAL_TOKEN_FILE"));
            PunctualClient.to(url).tokenFile(token).caFile(ca).build().submit(TOPIC, draft);
            var anonymous = PunctualClient.to(url).caFile(ca).build();
            assertEquals("unauthenticated", assertThrows(Problem.class, () -> anonymous.submit(TOPIC, draft)).slug());
            var distrustful = PunctualClient.to(url).build();
            assertFalse(assertThrows(NoAnswer.class, () -> distrustful.submit(TOPIC, draft)).isUnknown());
        }
    }

    @Test
    void aMonthPassesInATest() throws Exception {
        assumeTrue(TOPIC != null);
        try (var dev = DevServer.start("orders:2")) {
            var draft = Draft.in(Duration.ofDays(30)).key("order-7").payload(Map.of("order", 7));
            var task = dev.client().submit("orders", draft);
            assertEquals(0, dev.published("orders").size());
            dev.advance(Duration.ofDays(30));
            var records = dev.published("orders");
            assertEquals(1, records.size());
            assertEquals(7, records.get(0).get("payload").get("order").asInt());
            assertEquals(task.get("id"), records.get(0).get("headers").get(Once.TASK_ID));
            var problem = assertThrows(Problem.class, () -> dev.published("ordres"));
            assertTrue(problem.detail().contains("no such topic"));
        }
    }

    @Test
    void aScheduleRunsUntilItIsPaused() throws Exception {
        assumeTrue(TOPIC != null);
        try (var dev = DevServer.start("orders:2")) {
            var client = dev.client();
            var workdays = ScheduleDraft.cron("0 30 2 * * 1-5", ZoneId.of("Europe/Berlin")).seconds()
                .startsAt(Instant.parse("2029-12-25T00:00:00Z")).exclude(LocalDate.parse("2029-12-26"))
                .dst(ScheduleDraft.Gap.SKIP, ScheduleDraft.Overlap.BOTH)
                .missed(ScheduleDraft.Missed.ALL).missedWithin(Duration.ofHours(2)).missedMax(5).payload(1);
            var preview = client.previewSchedule("orders", "nightly", workdays, 2);
            var runs = List.of(Instant.parse("2029-12-25T01:30:00Z"), Instant.parse("2029-12-27T01:30:00Z"));
            assertEquals(runs, preview.nextRuns());
            assertEquals("2h", preview.body().get("missed").get("within").asText());
            assertNull(client.getSchedule("orders", "nightly"));

            client.setSchedule("orders", "poll", ScheduleDraft.every(HOUR).key("poll").payload(1));
            dev.advance(HOUR);
            assertEquals(1, dev.published("orders").get(0).get("payload").asInt());
            assertNull(client.pauseSchedule("orders", "poll").nextRunAt());
            dev.advance(HOUR.multipliedBy(2));
            assertEquals(1, dev.published("orders").size());
            assertEquals("poll", client.triggerSchedule("orders", "poll").get("key").asText());
            dev.advance(Duration.ofSeconds(1));
            assertEquals(2, dev.published("orders").size());
            assertEquals(List.of(), client.getSchedule("orders", "poll", 3).nextRuns());

            for (int number = 100; number < 201; number++) {
                client.setSchedule("orders", "poll-" + number, ScheduleDraft.every(HOUR).payload(1).paused());
            }
            var page = client.schedules("orders", null);
            assertEquals(100, page.items().size());
            page = client.schedules("orders", page.next());
            assertEquals("poll-200", page.items().get(1).name());
            assertNull(page.next());
            assertEquals("poll", client.deleteSchedule("orders", "poll").name());
            var problem = assertThrows(Problem.class, () -> client.resumeSchedule("orders", "poll"));
            assertEquals("schedule-not-found", problem.slug());
        }
    }

    @Test
    void aBackfillMakesNoRunTwice() throws Exception {
        assumeTrue(TOPIC != null);
        try (var dev = DevServer.start("orders:2")) {
            var client = dev.client();
            client.setSchedule("orders", "poll", ScheduleDraft.every(HOUR).payload(1).paused());
            var last = BackfillRange.last(HOUR.multipliedBy(3)).dryRun();
            var would = client.backfillSchedule("orders", "poll", last);
            var runs = would.runs();
            assertEquals(new Backfilled(3, 0, runs), would);
            var part = BackfillRange.between(runs.get(0), runs.get(1));
            var first = client.backfillSchedule("orders", "poll", part);
            assertEquals(new Backfilled(1, 0, runs.subList(0, 1)), first);
            var larger = BackfillRange.between(runs.get(0), runs.get(2));
            var both = client.backfillSchedule("orders", "poll", larger);
            assertEquals(new Backfilled(1, 1, runs.subList(0, 2)), both);
            dev.advance(Duration.ofSeconds(1));
            assertEquals(2, dev.published("orders").size());
            var tooLong = BackfillRange.last(Duration.ofDays(8));
            var problem = assertThrows(Problem.class, () -> client.backfillSchedule("orders", "poll", tooLong));
            assertEquals("last", problem.field());
            problem = assertThrows(Problem.class, () -> client.backfillSchedule("orders", "nobody", last));
            assertEquals("schedule-not-found", problem.slug());
        }
    }

    @Test
    void aScheduleIsChangedOnlyUnderItsCondition() throws Exception {
        assumeTrue(TOPIC != null);
        try (var dev = DevServer.start("orders:2")) {
            var client = dev.client();
            var draft = ScheduleDraft.every(HOUR).payload(1);
            var isNew = new Condition().ifNoneMatch("*");
            var made = client.setSchedule("orders", "poll", draft, isNew);
            var stale = new Condition().ifRevision(made.revision());
            var changed = client.setSchedule("orders", "poll", draft.payload(2), stale);
            for (Executable call : List.<Executable>of(
                    () -> client.setSchedule("orders", "poll", draft, isNew),
                    () -> client.setSchedule("orders", "poll", draft, stale),
                    () -> client.deleteSchedule("orders", "poll", stale))) {
                assertEquals("precondition-failed", assertThrows(Problem.class, call).slug());
            }
            var current = new Condition().ifRevision(changed.revision());
            var deleted = client.deleteSchedule("orders", "poll", current);
            assertEquals(2, deleted.body().get("payload").asInt());
        }
    }

    @Test
    void aPolicyIsSetChangedAndDeleted() throws Exception {
        assumeTrue(TOPIC != null);
        try (var dev = DevServer.start("orders:2")) {
            var client = dev.client();
            var empty = PolicyDraft.from(client.getTopic("orders").policy());
            assertNull(client.setPolicy("orders", empty).policy());
            var retry = new RetryPolicy().attemptsMax(3).backoff(Duration.ofMinutes(1), HOUR);
            var draft = new PolicyDraft().ttr(Duration.ofSeconds(30)).retry(retry).delayMax(Duration.ofDays(90))
                .expireAfter(HOUR).pendingMax(1000).submittedByHeader(true).paused(true);
            var made = client.setPolicy("orders", draft);
            assertNotNull(made.paused());
            var policy = made.policy();
            var expected = new Policy("30s", policy.retry(), "90d", "1h", null, 1000L, true, policy.body());
            assertEquals(expected, policy);
            assertEquals("1m", policy.retry().get("backoff_min").asText());
            var changed = PolicyDraft.from(policy).spread(Duration.ofMinutes(10));
            var stale = new Condition().ifRevision(made.revision());
            assertEquals("10m", client.setPolicy("orders", changed, stale).policy().spread());
            var isNew = new Condition().ifNoneMatch("*");
            for (Executable call : List.<Executable>of(
                    () -> client.setPolicy("orders", changed, stale),
                    () -> client.setPolicy("orders", changed, isNew),
                    () -> client.deletePolicy("orders", stale))) {
                assertEquals("precondition-failed", assertThrows(Problem.class, call).slug());
            }
            var known = client.getTopic("orders");
            assertEquals(policy.retry(), known.policy().retry());
            assertNotNull(known.paused());
            var fewer = PolicyDraft.from(known.policy()).submittedByHeader(false)
                .without(PolicyDraft.Member.PENDING_MAX, PolicyDraft.Member.EXPIRE_AFTER);
            known = client.setPolicy("orders", fewer);
            var left = new Policy("30s", policy.retry(), "90d", null, "10m", null, false, known.policy().body());
            assertEquals(left, known.policy());
            var current = new Condition().ifRevision(known.revision());
            assertNull(client.deletePolicy("orders", current).policy());
            assertNull(client.deletePolicy("orders").policy());
            var wrong = new PolicyDraft().spread(Duration.ofDays(2));
            var problem = assertThrows(Problem.class, () -> client.setPolicy("orders", wrong));
            assertEquals("spread", problem.field());
        }
    }

    @Test
    void withoutANodeNothingWasDone() {
        var alone = PunctualClient.to("http://127.0.0.1:1").retryFor(Duration.ofMillis(300)).build();
        var failure = assertThrows(NoAnswer.class, () -> alone.submit("demo", Draft.in(HOUR).payload(1)));
        assertFalse(failure.isUnknown());
    }

    @Test
    void aHandshakeThatANodeBreaksOffIsRepeated() throws Exception {
        var handshakes = new AtomicInteger();
        try (var node = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"))) {
            var breaking = new Thread(() -> {
                try {
                    for (; ; handshakes.incrementAndGet()) {
                        try (var peer = node.accept()) {
                            peer.getInputStream().read(new byte[8192]);
                        }
                    }
                } catch (IOException ended) {
                    // by the end of the test
                }
            });
            breaking.start();
            var client = PunctualClient.to("https://127.0.0.1:" + node.getLocalPort())
                .retryFor(Duration.ofSeconds(1)).build();
            var failure = assertThrows(NoAnswer.class, () -> client.triggerSchedule("orders", "poll"));
            assertFalse(failure.isUnknown());
            assertTrue(handshakes.get() > 1);
        }
    }

    @Test
    void aRefusalOfAProxyIsAProblem() throws Exception {
        var answers = Map.of(404, "<html>404 Not Found</html>", 413, "", 400, "[]",
            403, "{\"message\":\"Forbidden\"}",
            422, "{\"type\":\"about:blank\",\"status\":\"error\",\"field\":7}");
        for (var answer : answers.entrySet()) {
            try (var proxy = Answering.start(answer.getKey(), answer.getValue())) {
                var client = proxy.client();
                for (Executable call : List.<Executable>of(
                        () -> client.submit("demo", Draft.in(HOUR).payload(1)),
                        () -> client.get("demo", "order-1"))) {
                    var problem = assertThrows(Problem.class, call);
                    assertEquals("", problem.slug());
                    assertEquals(answer.getKey(), problem.status());
                    assertEquals("the answer is not of Punctual", problem.detail());
                    var message = "status " + problem.status() + ": " + problem.detail();
                    assertEquals(message, problem.getMessage());
                }
                assertEquals(2, proxy.count().get());
            }
        }
    }

    @Test
    void anotherAnswerOfAProxyIsNone() throws Exception {
        var answers = Map.of(429, "slow down", 408, "[]", 200, "<html>a login</html>",
            502, "<html>bad gateway</html>", 503, "{\"message\":\"Service Unavailable\"}");
        for (var answer : answers.entrySet()) {
            int status = answer.getKey();
            try (var proxy = Answering.start(status, answer.getValue())) {
                var client = proxy.client();
                var draft = Draft.in(HOUR).payload(1);
                var failure = assertThrows(NoAnswer.class, () -> client.submit("demo", draft));
                var message = "status " + status + ": the answer is not of Punctual";
                assertTrue(failure.getMessage().endsWith(message));
                assertEquals(status != 408 && status != 429, failure.isUnknown());
                assertTrue(proxy.count().get() > 1);
            }
        }
    }

    @Test
    void aRefusalOfAProxyDoesNotTellOfAnEarlierAttempt() throws Exception {
        try (var proxy = Answering.start(502, 404, "<html>of a proxy</html>")) {
            var client = proxy.client();
            var draft = Draft.in(HOUR).payload(1);
            var failure = assertThrows(NoAnswer.class, () -> client.submit("demo", draft));
            assertTrue(failure.getMessage().endsWith("status 404: the answer is not of Punctual"));
            assertTrue(failure.isUnknown());
            assertEquals(2, proxy.count().get());
        }
    }

    @Test
    void aCallerThatWasDeniedTooOftenDoesNotRepeat() throws Exception {
        var text = "{\"type\":\"urn:punctual:problem:denied-too-often\",\"status\":429}";
        try (var node = Answering.start(429, text)) {
            var draft = Draft.in(HOUR).payload(1);
            var problem = assertThrows(Problem.class, () -> node.client().submit("demo", draft));
            assertEquals("denied-too-often", problem.slug());
            assertEquals(1, node.count().get());
        }
    }

    @Test
    void aVerdictOfALaterVersionIsOther() throws Exception {
        try (var node = Answering.start(200, "{\"verdict\":\"postponed\"}")) {
            var client = node.client();
            assertEquals(Cancelled.Verdict.OTHER, client.cancel("demo", "order-1").verdict());
            assertEquals(Moved.Verdict.OTHER, client.move("demo", "order-1", HOUR).verdict());
            var finished = client.answer(Outcome.finish("7"));
            assertEquals(Answered.Verdict.OTHER, finished.verdict());
            assertTrue(finished.tookEffect());
        }
        var problem = "{\"type\":\"urn:punctual:problem:postponed\",\"verdict\":\"postponed\"}";
        try (var node = Answering.start(409, problem)) {
            var finished = node.client().answer(Outcome.finish("7"));
            assertEquals(Answered.Verdict.OTHER, finished.verdict());
            assertFalse(finished.tookEffect());
        }
    }

    @Test
    void aTokenIsNotSentInClearOverTheNetwork() {
        var builder = PunctualClient.to("http://punctual.example:7070").token("pt_1");
        assertThrows(IllegalArgumentException.class, builder::build);
    }

    @Test
    void aTokenThatHttpCannotCarryIsRefused() {
        for (var token : List.of("pt_1\nx", "pt_1\n", "pt 1", "ü")) {
            var builder = PunctualClient.to("http://127.0.0.1:1").token(token);
            var error = assertThrows(IllegalArgumentException.class, builder::build);
            assertTrue(error.getMessage().startsWith("a token is one line"));
        }
    }

    @Test
    void aConditionNeedsIdsThatHttpCanCarry() {
        var wrong = new ArrayList<String[]>(List.of(new String[] {}, new String[] {"1", "*"}));
        for (var id : new String[] {"", "a\nb", "1\n", "a\"b", "a b", "ü", "\u007f", null}) {
            wrong.add(new String[] {id});
        }
        for (var ids : wrong) {
            Executable match = () -> new Condition().ifMatch(ids);
            var error = assertThrows(IllegalArgumentException.class, match);
            assertTrue(error.getMessage().contains("a condition"));
            assertThrows(IllegalArgumentException.class, () -> new Condition().ifNoneMatch(ids));
        }
    }

    @Test
    void aConditionOfAKindIsGivenOnce() {
        var isThis = new Condition().ifMatch("1");
        var isNotThis = new Condition().ifNoneMatch("1").ifMatch("2");
        var later = new Condition().when(Condition.When.LATER).notAfter(Instant.EPOCH);
        for (Executable twice : List.<Executable>of(
                () -> isThis.ifMatch("2"), () -> isThis.ifRevision(2), () -> isNotThis.ifNoneMatch("3"),
                () -> later.when(Condition.When.ABSENT), () -> later.notAfter(Instant.MAX))) {
            assertThrows(IllegalStateException.class, twice);
        }
    }

    @Test
    void aPolicyLosesMembers() {
        var draft = PolicyDraft.from(null).ttr(HOUR).retry(new RetryPolicy()).delayMax(HOUR)
            .expireAfter(HOUR).spread(HOUR).pendingMax(1).submittedByHeader(true);
        assertEquals(7, draft.body.size());
        draft.without(PolicyDraft.Member.values()).submittedByHeader(false);
        assertEquals("{\"submitted_by_header\":false}", draft.body.toString());
    }

    @Test
    void bytesAreNoPayload() {
        var draft = Draft.in(HOUR);
        var error = assertThrows(IllegalArgumentException.class, () -> draft.payload(new byte[] {1}));
        assertTrue(error.getMessage().contains("payloadBase64"));
    }

    @Test
    void aDevServerNeedsItsProgram() {
        for (var program : List.of("no-punctual", "/no/punctual")) {
            var start = assertThrows(IOException.class, () -> DevServer.startProgram(program, "orders"));
            var expected = "no program `" + program + "` on the PATH; set PUNCTUAL_BIN";
            assertEquals(expected, start.getMessage());
        }
    }

    @Test
    void theWorkOfATaskSucceedsOnce() {
        var once = new Once(2);
        var done = new AtomicInteger();
        var task = "1".getBytes();
        assertThrows(ArithmeticException.class, () -> once.run(task, () -> done.set(1 / done.get())));
        assertTrue(once.run(task, done::incrementAndGet));
        assertFalse(once.run(task, done::incrementAndGet));
        assertEquals(1, done.get());
        assertTrue(once.run(null, done::incrementAndGet));
        assertTrue(once.run(null, done::incrementAndGet));
    }

    @Test
    void aSignatureOfOneOfTheKeysIsGenuine() {
        var key = "a2V5IG9uZSBrZXkgb25lIGtleSBvbmUga2V5";
        var other = "a2V5IHR3byBrZXkgdHdvIGtleSB0d28ga2V5";
        var digest = "c9762b2a2c7c6d1c6402686ecf40a8651d6d1f9b3a6149cc986fa0098419bd69";
        var signature = "t=1700000000,v1=" + "0".repeat(64) + ",v1=" + digest;
        var body = "{\"a\":1}".getBytes();
        var ever = Duration.ofDays(100_000);
        assertTrue(Signature.isGenuine(List.of(other, key), signature, "orders", body, ever));
        assertFalse(Signature.isGenuine(List.of(key), signature, "orders", body));
        assertFalse(Signature.isGenuine(List.of(other), signature, "orders", body, ever));
        assertFalse(Signature.isGenuine(List.of(key), signature, "other", body, ever));
        assertFalse(Signature.isGenuine(List.of(key), signature, "orders", "{\"a\":2}".getBytes(), ever));
        for (var wrong : new String[] {null, "", "t=x", "v1=" + digest, "t=1700000000", "t=1700000000,v1=ü"}) {
            assertFalse(Signature.isGenuine(List.of(key), wrong, "orders", body, ever));
        }
        // Lines of the file that are no keys. Anybody can sign with an empty one.
        var forged = "t=1700000000,v1=6cde8cf8039aa61608e23e4308366f55e7ae30b6ab33a6db6a9cbb7d21ea6682";
        assertFalse(Signature.isGenuine(List.of("", "# from May on", "bm8ga2V5"), forged, "orders", body, ever));
        assertTrue(Signature.isGenuine(List.of("", "# from May on", key + "\n"), signature, "orders", body, ever));
    }
}
