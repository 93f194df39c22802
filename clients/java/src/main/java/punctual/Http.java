package punctual;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.MissingNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.security.cert.CertificateException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.net.ssl.SSLHandshakeException;

/** Connections to a node, which repeat requests. */
final class Http {
    static final Duration PAUSE_MIN = Duration.ofMillis(100);
    static final Duration PAUSE_MAX = Duration.ofSeconds(5);
    private static final Duration RETRY_AFTER_MAX = Duration.ofSeconds(60);
    static final Duration FOR_EVER = Duration.ofDays(36_500);
    /** Statuses of calls that are repeated, because they were not done, or only perhaps. */
    private static final Set<Integer> REPEATED = Set.of(408, 429, 500, 503);
    /** Problems with status 503 that prove that nothing was done. */
    private static final Set<String> NOT_DONE = Set.of("busy", "draining", "unavailable", "not-ready");
    /** The problem with status 429 that does not pass: a token or a host is wrong. */
    private static final String FINAL = "denied-too-often";

    private final PunctualClient.Builder settings;
    private final HttpClient http;

    Http(PunctualClient.Builder settings) {
        this.settings = settings;
        var builder = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(Duration.ofSeconds(5));
        if (settings.tls != null) builder.sslContext(settings.tls);
        http = builder.build();
    }

    /** An answer. With {@code wasLost}, an attempt before may have been done. */
    record Answer(int status, Duration retryAfter, JsonNode body, boolean wasLost) {
        boolean is(String slug) {
            return body.path("type").asText().equals(Problem.PREFIX + slug);
        }

        boolean isOfNode() {
            return body.path("type").asText().startsWith(Problem.PREFIX);
        }

        JsonNode successful() {
            if (status >= 300) throw new Problem(body);
            return body;
        }
    }

    /**
     * Repeats a request until it has an answer. Repeats what was not done (429, 503), and what may
     * have been done (no answer, other 5xx) if a repetition starts within {@code safeFor}.
     */
    Answer call(String method, String path, JsonNode body, Duration safeFor)
            throws InterruptedException {
        return call(method, path, body, safeFor, new Condition());
    }

    /**
     * Does the same under a condition. A repetition could be refused because of what an earlier
     * attempt has done, and the problem would say that nothing was changed. So a call with a
     * condition is not repeated once it may have been done.
     */
    Answer call(String method, String path, JsonNode body, Duration safeFor, Condition condition)
            throws InterruptedException {
        var safe = condition.isNone() ? safeFor : Duration.ZERO;
        var target = condition.of(path);
        long began = System.nanoTime();
        boolean isUnknown = false;
        for (int attempt = 0; ; attempt++) {
            Exception failure;
            Duration asked = Duration.ZERO;
            try {
                var answer = attempt(method, target, body, condition);
                if (!REPEATED.contains(answer.status) || answer.is(FINAL)) {
                    // A refusal of a proxy does not tell whether an earlier attempt was done.
                    if (isUnknown && answer.status >= 400 && !answer.isOfNode()) {
                        var refusal = new Problem(answer.body);
                        throw new NoAnswer(method + " " + target + ": " + refusal, true, refusal);
                    }
                    return new Answer(answer.status, answer.retryAfter, answer.body, isUnknown);
                }
                var problem = new Problem(answer.body);
                failure = problem;
                asked = min(answer.retryAfter, RETRY_AFTER_MAX);
                isUnknown |= answer.status >= 500 && !NOT_DONE.contains(problem.slug());
            } catch (ConnectException | HttpConnectTimeoutException | SSLHandshakeException none) {
                failure = none; // no connection
            } catch (IOException lost) {
                failure = lost;
                isUnknown = true;
            }
            var doubled = min(PAUSE_MIN.multipliedBy(1L << Math.min(attempt, 16)), PAUSE_MAX);
            var pause = spread(asked.compareTo(doubled) > 0 ? asked : doubled);
            var end = isUnknown ? min(settings.retryFor, safe) : settings.retryFor;
            var passed = Duration.ofNanos(System.nanoTime() - began);
            if (isOfCertificate(failure) || passed.plus(pause).compareTo(end) > 0) {
                throw new NoAnswer(method + " " + target + ": " + failure, isUnknown, failure);
            }
            Thread.sleep(pause.toMillis());
        }
    }

    /** A certificate does not become right by asking again. A lost handshake may. */
    private static boolean isOfCertificate(Throwable failure) {
        return failure instanceof CertificateException
            || failure != null && isOfCertificate(failure.getCause());
    }

    private Answer attempt(String method, String path, JsonNode body, Condition condition)
            throws IOException, InterruptedException {
        var publisher =
            body == null ? BodyPublishers.noBody() : BodyPublishers.ofString(body.toString());
        var request = HttpRequest.newBuilder(URI.create(settings.url + path))
            .timeout(settings.timeout).method(method, publisher);
        condition.headers.forEach(request::header);
        if (body != null) request.header("content-type", "application/json");
        if (settings.token != null) request.header("authorization", "Bearer " + settings.token);
        var answer = send(http, request.build(), settings.timeout);
        var wait = answer.headers().firstValue("retry-after").filter(text -> text.matches("[0-9]{1,9}"));
        var retryAfter = Duration.ofSeconds(wait.map(Long::valueOf).orElse(0L));
        var read = read(answer.statusCode(), answer.body());
        return new Answer(answer.statusCode(), retryAfter, read, false);
    }

    /**
     * Returns the body of an answer. A 4xx of a proxy becomes a problem without a type. Any other
     * answer of a proxy does not say what was done, and is an error.
     */
    private static JsonNode read(int status, String text) throws IOException {
        JsonNode read = MissingNode.getInstance();
        try {
            read = Draft.JSON.readTree(text);
        } catch (JsonProcessingException none) {
            // of a proxy
        }
        boolean isOfNode = read.path("type").asText().startsWith(Problem.PREFIX);
        if (read.isObject() && (status < 400 || isOfNode)) return read;
        var reason = "the answer is not of Punctual";
        boolean isRefusal = status >= 400 && status < 500;
        if (!isRefusal) throw new IOException("status " + status + ": " + reason);
        var problem = Draft.JSON.createObjectNode().put("detail", reason);
        if (read instanceof ObjectNode given) problem.setAll(given);
        return problem.put("type", "").put("status", status);
    }

    /**
     * Sends a request. The timeout is that of the whole answer: the request's own one ends with the
     * headers before Java 26.
     */
    static HttpResponse<String> send(HttpClient http, HttpRequest request, Duration timeout)
            throws IOException, InterruptedException {
        var sent = http.sendAsync(request, HttpResponse.BodyHandlers.ofString());
        try {
            // The client itself tells a host that it did not reach from an answer that is late.
            return sent.get(timeout.toMillis() + 200, TimeUnit.MILLISECONDS);
        } catch (TimeoutException late) {
            throw new HttpTimeoutException("no answer within " + timeout.toMillis() + " ms");
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof IOException failure) throw failure;
            throw new IOException(failed.getCause());
        } finally {
            sent.cancel(true);
        }
    }

    /**
     * Makes a call with many parts. Repeats those that were not done, or perhaps. Once some parts
     * have their answer, a failure leaves the others with their problem.
     */
    List<Result> many(String path, String member, List<JsonNode> bodies)
            throws InterruptedException {
        var results = new Result[bodies.size()];
        var left = new ArrayList<Integer>();
        for (int index = 0; index < results.length; index++) left.add(index);
        long began = System.nanoTime();
        var pause = PAUSE_MIN;
        for (; !left.isEmpty(); pause = min(pause.multipliedBy(2), PAUSE_MAX)) {
            var body = Draft.JSON.createObjectNode();
            var parts = body.putArray(member);
            for (int index : left) parts.add(bodies.get(index));
            boolean wasLost = false;
            JsonNode answers;
            try {
                var answer = call("POST", path, body, FOR_EVER);
                wasLost = answer.wasLost;
                answers = answer.successful().get("results");
            } catch (NoAnswer | Problem failure) {
                if (results[left.get(0)] == null) throw failure;
                if (wasLost || failure instanceof NoAnswer none && none.isUnknown()) {
                    var result = new Result(null, null, Problem.unknown(failure));
                    for (int index : left) results[index] = result;
                }
                break;
            }
            var again = new ArrayList<Integer>();
            var wait = pause;
            for (int place = 0; place < left.size(); place++) {
                int index = left.get(place);
                var part = answers.get(place);
                var result = Result.of(part);
                if (REPEATED.contains(part.get("status").asInt())) {
                    again.add(index);
                    long seconds = part.path("problem").path("retry_after").asLong();
                    var asked = min(Duration.ofSeconds(seconds), RETRY_AFTER_MAX);
                    if (asked.compareTo(wait) > 0) wait = asked;
                    // A refusal does not tell whether an earlier attempt was done.
                    if (wasPerhapsDone(results[index])) continue;
                    if (wasLost && !wasPerhapsDone(result)) {
                        result = new Result(null, null, Problem.unknown(result.problem()));
                    }
                }
                results[index] = result;
            }
            left = again;
            var passed = Duration.ofNanos(System.nanoTime() - began);
            if (left.isEmpty() || passed.plus(wait).compareTo(settings.retryFor) > 0) break;
            Thread.sleep(spread(wait).toMillis());
        }
        return List.of(results);
    }

    /** Tells of a part of a call whose last answer does not say whether it was done. */
    private static boolean wasPerhapsDone(Result result) {
        if (result == null || result.problem() == null) return false;
        var problem = result.problem();
        return problem.status() >= 500 && REPEATED.contains(problem.status())
            && !NOT_DONE.contains(problem.slug());
    }

    static Duration spread(Duration pause) {
        return pause.plusMillis(ThreadLocalRandom.current().nextLong(pause.toMillis() / 4 + 1));
    }

    static Duration min(Duration one, Duration other) {
        return one.compareTo(other) < 0 ? one : other;
    }
}
