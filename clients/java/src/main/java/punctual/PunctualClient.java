package punctual;

import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Set;
import java.util.StringJoiner;
import java.util.UUID;
import java.util.stream.StreamSupport;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * A client of one node, for any number of threads: calls for tasks, topics, consumers without
 * Kafka, and schedules.
 */
public final class PunctualClient {
    private final Builder settings;
    private final Http http;

    private PunctualClient(Builder settings) {
        this.settings = settings;
        http = new Http(settings);
    }

    public static Builder to(String url) {
        return new Builder(url);
    }

    public static final class Builder {
        final String url;
        String token;
        SSLContext tls;
        Duration timeout = Duration.ofSeconds(35);
        Duration retryFor = Duration.ofSeconds(30);

        private Builder(String url) {
            this.url = url.endsWith("/") ? url.substring(0, url.length() - 1) : url;
        }

        public Builder token(String token) {
            this.token = token;
            return this;
        }

        public Builder tokenFile(Path file) throws IOException {
            return token(Files.readString(file).strip());
        }

        /** Trusts the authorities in the file, in PEM, and no others. */
        public Builder caFile(Path file) throws IOException, GeneralSecurityException {
            var trusted = KeyStore.getInstance(KeyStore.getDefaultType());
            trusted.load(null, null);
            try (var pem = Files.newInputStream(file)) {
                int index = 0;
                var factory = CertificateFactory.getInstance("X.509");
                for (var certificate : factory.generateCertificates(pem)) {
                    trusted.setCertificateEntry("authority-" + index++, certificate);
                }
            }
            var algorithm = TrustManagerFactory.getDefaultAlgorithm();
            var trust = TrustManagerFactory.getInstance(algorithm);
            trust.init(trusted);
            tls = SSLContext.getInstance("TLS");
            tls.init(null, trust.getTrustManagers(), null);
            return this;
        }

        /** The time of one attempt. */
        public Builder timeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /** The time for all attempts of a call. */
        public Builder retryFor(Duration retryFor) {
            this.retryFor = retryFor;
            return this;
        }

        public PunctualClient build() {
            URI uri = URI.create(url);
            var host = String.valueOf(uri.getHost());
            boolean isLocal = Set.of("127.0.0.1", "[::1]", "localhost").contains(host);
            if (token != null && !"https".equals(uri.getScheme()) && !isLocal) {
                var reason = "a token is sent over https:// only, or to this machine";
                throw new IllegalArgumentException(reason);
            }
            if (token != null && !token.matches("[!-~]*")) {
                var reason = "a token is one line of visible ASCII characters, without spaces";
                throw new IllegalArgumentException(reason);
            }
            return new PunctualClient(this);
        }
    }

    /**
     * Submits a task and returns it. A known name returns its first task: look at its {@code
     * state}. A task without a name gets a random one, so that its own repetitions make no second
     * task.
     */
    public JsonNode submit(String topic, Draft draft) throws InterruptedException {
        return http.call("POST", "/v1/tasks", named(topic, draft), Http.FOR_EVER).successful();
    }

    /** Submits up to 10,000 tasks for a topic. Returns a result for each, in order. */
    public List<Result> submitMany(String topic, List<Draft> drafts) throws InterruptedException {
        var bodies = drafts.stream().map(draft -> (JsonNode) named(topic, draft)).toList();
        return http.many("/v1/tasks/batch", "tasks", bodies);
    }

    /** Answers for an attempt of a tracked task: {@code answer(Outcome.finish(id))}. */
    public Answered answer(Outcome outcome) throws InterruptedException {
        var path = idPath(outcome.taskId()) + "/" + outcome.call;
        var answer = http.call("POST", path, outcome.body, Http.FOR_EVER);
        return Answered.of(answer.status(), answer.body());
    }

    /** Answers for up to 10,000 attempts. Returns a result for each, in order. */
    public List<Result> answerMany(List<Outcome> outcomes) throws InterruptedException {
        var bodies = outcomes.stream().map(outcome -> (JsonNode) outcome.part()).toList();
        return http.many("/v1/outcomes", "outcomes", bodies);
    }

    /**
     * Creates the task of a name, or replaces a pending one. A task on its way is a {@link Problem}
     * with the slug {@code too-late}. Returns the new task.
     */
    public JsonNode replace(String topic, String name, Draft draft) throws InterruptedException {
        return replace(topic, name, draft, new Condition());
    }

    /** Replaces a task as {@link #replace(String, String, Draft)}, under a condition. */
    public JsonNode replace(String topic, String name, Draft draft, Condition condition)
            throws InterruptedException {
        // Once the task may be due, a repetition would schedule another one.
        var dueIn = draft.dueIn();
        return http.call("PUT", path(topic, name), draft.body, dueIn, condition).successful();
    }

    /** Returns the task of a name, or null. */
    public JsonNode get(String topic, String name) throws InterruptedException {
        return look(path(topic, name));
    }

    public JsonNode getById(String id) throws InterruptedException {
        return look(idPath(id));
    }

    /** Cancels the task of a name. The verdict says whether its record will ever exist. */
    public Cancelled cancel(String topic, String name) throws InterruptedException {
        return cancel(topic, name, new Condition());
    }

    public Cancelled cancel(String topic, String name, Condition condition)
            throws InterruptedException {
        return cancelAt(path(topic, name), condition);
    }

    public Cancelled cancelById(String id) throws InterruptedException {
        return cancelById(id, new Condition());
    }

    public Cancelled cancelById(String id, Condition condition) throws InterruptedException {
        return cancelAt(idPath(id), condition);
    }

    /**
     * Gives the pending task of a name another due time. The verdict says whether it has it. Id,
     * name and record stay. The delay counts from the attempt that is answered.
     */
    public Moved move(String topic, String name, Duration delay) throws InterruptedException {
        return move(topic, name, delay, new Condition());
    }

    public Moved move(String topic, String name, Duration delay, Condition condition)
            throws InterruptedException {
        return moveAt(path(topic, name), Draft.in(delay), condition);
    }

    public Moved move(String topic, String name, Instant dueAt) throws InterruptedException {
        return move(topic, name, dueAt, new Condition());
    }

    public Moved move(String topic, String name, Instant dueAt, Condition condition)
            throws InterruptedException {
        return moveAt(path(topic, name), Draft.at(dueAt), condition);
    }

    public Moved moveById(String id, Duration delay) throws InterruptedException {
        return moveById(id, delay, new Condition());
    }

    public Moved moveById(String id, Duration delay, Condition condition)
            throws InterruptedException {
        return moveAt(idPath(id), Draft.in(delay), condition);
    }

    public Moved moveById(String id, Instant dueAt) throws InterruptedException {
        return moveById(id, dueAt, new Condition());
    }

    public Moved moveById(String id, Instant dueAt, Condition condition)
            throws InterruptedException {
        return moveAt(idPath(id), Draft.at(dueAt), condition);
    }

    /**
     * Returns a page of the dead letters of a topic, or of all if it is null, in the order of their
     * due times. Each is a task with its {@code reason}, without headers and payload. The first
     * page has the cursor null.
     */
    public Page<JsonNode> deadLetters(String topic, String cursor) throws InterruptedException {
        var path = "/v1/dead" + query("topic", topic, "cursor", cursor);
        var page = http.call("GET", path, null, Http.FOR_EVER).successful();
        var tasks = StreamSupport.stream(page.get("tasks").spliterator(), false).toList();
        return new Page<>(tasks, page.get("cursor").textValue());
    }

    /** Makes a dead letter due now, as {@link #redrive(String, String)} in its own topic. */
    public JsonNode redrive(String id) throws InterruptedException {
        return redrive(id, null);
    }

    /**
     * Makes a dead letter due now, in another topic. Returns the task, or null if there is none.
     *
     * <p>A task that is no dead letter (any more) is returned as it is: look at its {@code state}.
     * A dropped dead letter is {@code dead}.
     */
    public JsonNode redrive(String id, String toTopic) throws InterruptedException {
        var body = Draft.JSON.createObjectNode();
        if (toTopic != null) body.put("to_topic", toTopic);
        var answer = http.call("POST", "/v1/dead/" + encoded(id) + "/redrive", body, Http.FOR_EVER);
        return answer.is("task-not-found") ? getById(id) : answer.successful();
    }

    /** Redrives all dead letters of a topic. */
    public Redriven redriveMany(String topic) throws InterruptedException {
        return redriveMany(topic, new RedriveRange());
    }

    /**
     * Redrives the dead letters of a topic in a range. The count lacks those of an attempt whose
     * answer was lost. The call may be repeated. If it fails after some, they are counted, and
     * there are more. A dry run fails.
     */
    public Redriven redriveMany(String topic, RedriveRange range) throws InterruptedException {
        var body = range.body.deepCopy().put("topic", topic);
        boolean isDry = body.get("dry_run").asBoolean();
        long count = 0, since = System.nanoTime();
        var pause = Http.PAUSE_MIN;
        for (String cursor = null; ; ) {
            JsonNode answer;
            try {
                answer = http.call("POST", "/v1/dead/redrive", body, Http.FOR_EVER).successful();
            } catch (NoAnswer | Problem failure) {
                if (count == 0 || isDry) throw failure;
                return new Redriven(count, true);
            }
            var next = answer.get("cursor").textValue();
            boolean hasMoved = next != null && !next.equals(cursor);
            boolean hasMore = answer.get("more").asBoolean();
            long redriven = answer.get("redriven").asLong();
            count += redriven;
            if (!hasMore || isDry && !hasMoved) return new Redriven(count, hasMore);
            cursor = next;
            body.put("cursor", cursor);
            if (redriven > 0 || hasMoved) {
                since = System.nanoTime();
                pause = Http.PAUSE_MIN;
                continue;
            }
            var passed = Duration.ofNanos(System.nanoTime() - since);
            boolean isOver = passed.plus(pause).compareTo(settings.retryFor) > 0;
            if (isOver) return new Redriven(count, true);
            Thread.sleep(Http.spread(pause).toMillis());
            pause = Http.min(pause.multipliedBy(2), Http.PAUSE_MAX);
        }
    }

    /** Returns a topic, or null if Kafka has none of this name. */
    public Topic getTopic(String topic) throws InterruptedException {
        var answer = http.call("GET", topicPath(topic), null, Http.FOR_EVER);
        return answer.is("topic-not-found") ? null : Topic.of(answer.successful());
    }

    /**
     * Pauses a topic and returns it. From now on none of its tasks is claimed. Submits and cancels
     * are as before. Tasks that are in flight may still be published. The reason may be null; a
     * topic that is paused already keeps its reason.
     */
    public Topic pauseTopic(String topic, String reason) throws InterruptedException {
        return changeTopic(topic, "/pause", reason);
    }

    /**
     * Ends the pause of a topic and returns it. Overdue tasks are published now. The reason may be
     * null.
     */
    public Topic resumeTopic(String topic, String reason) throws InterruptedException {
        return changeTopic(topic, "/resume", reason);
    }

    /**
     * Sets the whole policy of a topic and returns the topic. To change one member, begin with
     * {@code PolicyDraft.from(topic.policy())}, under the condition of {@code topic.revision()}.
     */
    public Topic setPolicy(String topic, PolicyDraft draft) throws InterruptedException {
        return setPolicy(topic, draft, new Condition());
    }

    public Topic setPolicy(String topic, PolicyDraft draft, Condition condition)
            throws InterruptedException {
        return policy("PUT", topic, draft.body, condition);
    }

    /** Takes the policy of a topic away, and returns the topic. */
    public Topic deletePolicy(String topic) throws InterruptedException {
        return deletePolicy(topic, new Condition());
    }

    public Topic deletePolicy(String topic, Condition condition) throws InterruptedException {
        return policy("DELETE", topic, null, condition);
    }

    /** Waits 20 s for a tracked task of a topic, and returns it, or none. */
    public List<PoppedTask> pop(String topic, String group) throws InterruptedException {
        return pop(topic, group, Duration.ofSeconds(20), 1);
    }

    /**
     * Waits for tracked tasks of a topic, and returns up to {@code max} of them, or none. Each goes
     * to one caller of the group: answer for it. {@code wait} must be shorter than the timeout of
     * this client. Tasks of a lost answer come again after their time to run.
     */
    public List<PoppedTask> pop(String topic, String group, Duration wait, int max)
            throws InterruptedException {
        if (wait.compareTo(settings.timeout) >= 0) throw new IllegalArgumentException(
            "wait is " + wait + ": give less than the timeout, " + settings.timeout);
        var body = Draft.JSON.createObjectNode()
            .put("group", group).put("wait", wait.toMillis()).put("max", max);
        var answer = http.call("POST", topicPath(topic) + "/pop", body, Http.FOR_EVER);
        var tasks = answer.successful().get("tasks");
        return StreamSupport.stream(tasks.spliterator(), false).map(PoppedTask::of).toList();
    }

    /**
     * Has nodes POST each tracked task of a topic to a service, and returns the callback.
     * {@link Signature#isGenuine} checks in the service who calls it.
     */
    public JsonNode setCallback(String topic, CallbackDraft draft) throws InterruptedException {
        var path = topicPath(topic) + "/callback";
        return http.call("PUT", path, draft.body, Http.FOR_EVER).successful();
    }

    /** Returns the callback of a topic, without the values of its headers, or null. */
    public JsonNode getCallback(String topic) throws InterruptedException {
        return foundCallback("GET", topic);
    }

    /** Ends the callback of a topic. Returns it as it was, or null if there is none. */
    public JsonNode deleteCallback(String topic) throws InterruptedException {
        return foundCallback("DELETE", topic);
    }

    /** Creates a schedule, or replaces it as a whole, and returns it. */
    public Schedule setSchedule(String topic, String name, ScheduleDraft draft)
            throws InterruptedException {
        return setSchedule(topic, name, draft, new Condition());
    }

    public Schedule setSchedule(
            String topic, String name, ScheduleDraft draft, Condition condition)
            throws InterruptedException {
        return schedule("PUT", schedulePath(topic, name), draft.body, condition);
    }

    /** Checks a schedule without storing it. {@code nextRuns} has its first runs, so many. */
    public Schedule previewSchedule(String topic, String name, ScheduleDraft draft, int runs)
            throws InterruptedException {
        var query = query("dry_run", "true", "next", Integer.toString(runs));
        return schedule("PUT", schedulePath(topic, name) + query, draft.body, new Condition());
    }

    /** Returns a schedule, or null. */
    public Schedule getSchedule(String topic, String name) throws InterruptedException {
        return foundSchedule("GET", schedulePath(topic, name), new Condition());
    }

    /** Returns a schedule with so many of its {@code nextRuns}, or null. */
    public Schedule getSchedule(String topic, String name, int runs) throws InterruptedException {
        var query = query("next", Integer.toString(runs));
        return foundSchedule("GET", schedulePath(topic, name) + query, new Condition());
    }

    /**
     * Returns a page of the schedules of a topic, in the order of their names, after a name. The
     * first page is after null.
     */
    public Page<Schedule> schedules(String topic, String after) throws InterruptedException {
        var path = "/v1/schedules/" + encoded(topic) + query("after", after);
        var page = http.call("GET", path, null, Http.FOR_EVER).successful();
        var schedules = StreamSupport.stream(page.get("schedules").spliterator(), false)
            .map(Schedule::of).toList();
        return new Page<>(schedules, page.get("next_after").textValue());
    }

    /** Pauses a schedule and returns it. Its runs that are not claimed are withdrawn. */
    public Schedule pauseSchedule(String topic, String name) throws InterruptedException {
        return schedule("POST", schedulePath(topic, name) + "/pause", null, new Condition());
    }

    /** Ends the pause of a schedule and returns it. */
    public Schedule resumeSchedule(String topic, String name) throws InterruptedException {
        return schedule("POST", schedulePath(topic, name) + "/resume", null, new Condition());
    }

    /**
     * Submits one more run, which is due now, and returns its task. It is not repeated once it may
     * have been done, because each call makes a run.
     */
    public JsonNode triggerSchedule(String topic, String name) throws InterruptedException {
        var path = schedulePath(topic, name) + "/trigger";
        return http.call("POST", path, null, Duration.ZERO).successful();
    }

    /**
     * Makes the runs of the past that were never made, due now. No run is made twice, so the call
     * may be repeated. Runs of an attempt whose answer was lost count as already made.
     */
    public Backfilled backfillSchedule(String topic, String name, BackfillRange range)
            throws InterruptedException {
        var path = schedulePath(topic, name) + "/backfill";
        return Backfilled.of(http.call("POST", path, range.body, Http.FOR_EVER).successful());
    }

    /**
     * Deletes a schedule, and withdraws its runs that are not claimed. Returns the schedule as it
     * was, or null if there is none (any more).
     */
    public Schedule deleteSchedule(String topic, String name) throws InterruptedException {
        return deleteSchedule(topic, name, new Condition());
    }

    public Schedule deleteSchedule(String topic, String name, Condition condition)
            throws InterruptedException {
        return foundSchedule("DELETE", schedulePath(topic, name), condition);
    }

    private Moved moveAt(String path, Draft due, Condition condition)
            throws InterruptedException {
        // Once the task may be due, a repetition would say too_late of a move that was made.
        var body = http.call("PATCH", path, due.body, due.dueIn(), condition).body();
        if (!body.has("verdict")) throw new Problem(body);
        return new Moved(Answered.verdict(body, Moved.Verdict.OTHER), body.get("task"));
    }

    private Topic changeTopic(String topic, String change, String reason)
            throws InterruptedException {
        var body = Draft.JSON.createObjectNode();
        if (reason != null) body.put("reason", reason);
        var answer = http.call("POST", topicPath(topic) + change, body, Http.FOR_EVER);
        return Topic.of(answer.successful());
    }

    private Topic policy(String method, String topic, JsonNode body, Condition condition)
            throws InterruptedException {
        var path = topicPath(topic) + "/policy";
        return Topic.of(http.call(method, path, body, Http.FOR_EVER, condition).successful());
    }

    private JsonNode foundCallback(String method, String topic) throws InterruptedException {
        var answer = http.call(method, topicPath(topic) + "/callback", null, Http.FOR_EVER);
        return answer.is("callback-not-found") ? null : answer.successful();
    }

    private Schedule schedule(String method, String path, JsonNode body, Condition condition)
            throws InterruptedException {
        return Schedule.of(http.call(method, path, body, Http.FOR_EVER, condition).successful());
    }

    private Schedule foundSchedule(String method, String path, Condition condition)
            throws InterruptedException {
        var answer = http.call(method, path, null, Http.FOR_EVER, condition);
        return answer.is("schedule-not-found") ? null : Schedule.of(answer.successful());
    }

    private static ObjectNode named(String topic, Draft draft) {
        ObjectNode body = draft.body.deepCopy().put("topic", topic);
        if (!body.has("name")) body.put("name", "client-" + UUID.randomUUID());
        return body;
    }

    private JsonNode look(String path) throws InterruptedException {
        var answer = http.call("GET", path, null, Http.FOR_EVER);
        return answer.is("task-not-found") ? null : answer.successful();
    }

    private Cancelled cancelAt(String path, Condition condition) throws InterruptedException {
        var body = http.call("DELETE", path, null, Http.FOR_EVER, condition).body();
        if (!body.has("verdict")) throw new Problem(body);
        return new Cancelled(Answered.verdict(body, Cancelled.Verdict.OTHER), body.get("task"));
    }

    private static String idPath(String id) {
        return "/v1/tasks/" + encoded(id);
    }

    private static String topicPath(String topic) {
        return "/v1/topics/" + encoded(topic);
    }

    private static String path(String topic, String name) {
        return topicPath(topic) + "/tasks/" + encoded(name);
    }

    private static String schedulePath(String topic, String name) {
        return "/v1/schedules/" + encoded(topic) + "/" + encoded(name);
    }

    /** Returns the query of parameters and their values, without those that are null. */
    static String query(String... parameters) {
        var query = new StringJoiner("&", "?", "").setEmptyValue("");
        for (int index = 0; index < parameters.length; index += 2) {
            if (parameters[index + 1] == null) continue;
            query.add(parameters[index] + "=" + encoded(parameters[index + 1]));
        }
        return query.toString();
    }

    private static String encoded(String part) {
        return URLEncoder.encode(part, UTF_8).replace("+", "%20");
    }
}
