package punctual;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;

/** A task to submit: a due time, and a record with one payload or a tombstone. */
public final class Draft {
    static final ObjectMapper JSON = new ObjectMapper();

    final ObjectNode body = JSON.createObjectNode();
    private final Duration delay;
    private final Instant dueAt;

    private Draft(Duration delay, Instant dueAt) {
        this.delay = delay;
        this.dueAt = dueAt;
    }

    public static Draft in(Duration delay) {
        var draft = new Draft(delay, null);
        draft.body.put("delay", delay.toMillis());
        return draft;
    }

    public static Draft at(Instant dueAt) {
        return new Draft(null, dueAt).with("due_at", dueAt.toString());
    }

    /** Your idempotency key, unique within the topic. Only for a submit. */
    public Draft name(String name) {
        return with("name", name);
    }

    public Draft key(String key) {
        return with("key", key);
    }

    public Draft keyBase64(String key) {
        return with("key_base64", key);
    }

    /** Any value that Jackson writes as JSON, null included. Bytes go to {@link #payloadBase64}. */
    public Draft payload(Object payload) {
        if (payload instanceof byte[]) throw new IllegalArgumentException(
            "bytes are not JSON: payloadBase64(Base64.getEncoder().encodeToString(bytes))");
        body.set("payload", JSON.<JsonNode>valueToTree(payload));
        return this;
    }

    public Draft payloadText(String payload) {
        return with("payload_text", payload);
    }

    public Draft payloadBase64(String payload) {
        return with("payload_base64", payload);
    }

    /** The record's value is null. */
    public Draft tombstone() {
        body.put("tombstone", true);
        return this;
    }

    public Draft headers(Map<String, ?> headers) {
        body.set("headers", JSON.<JsonNode>valueToTree(headers));
        return this;
    }

    /** The time from which the task is not published any more. */
    public Draft expiresAt(Instant expiresAt) {
        return with("expires_at", expiresAt.toString());
    }

    /** The consumer's time for an attempt. With it, the consumer answers for the task. */
    public Draft ttr(Duration ttr) {
        body.put("ttr", ttr.toMillis());
        return this;
    }

    public Draft retry(RetryPolicy policy) {
        body.set("retry", policy.body);
        return this;
    }

    /** Returns the time until the task is due, by this machine's clock if it has a due time. */
    Duration dueIn() {
        return delay != null ? delay : Duration.between(Instant.now(), dueAt);
    }

    private Draft with(String field, String value) {
        body.put(field, value);
        return this;
    }
}
