package punctual;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.Map;

/** The record that is published: one payload or a tombstone, and who answers for it. */
public abstract sealed class RecordDraft<T extends RecordDraft<T>> permits Draft, ScheduleDraft {
    final ObjectNode body = Draft.JSON.createObjectNode();

    RecordDraft() {
    }

    public T key(String key) {
        return with("key", key);
    }

    public T keyBase64(String key) {
        return with("key_base64", key);
    }

    /** Any value that Jackson writes as JSON, null included. Bytes go to {@link #payloadBase64}. */
    public T payload(Object payload) {
        if (payload instanceof byte[]) throw new IllegalArgumentException(
            "bytes are not JSON: payloadBase64(Base64.getEncoder().encodeToString(bytes))");
        return with("payload", Draft.JSON.<JsonNode>valueToTree(payload));
    }

    public T payloadText(String payload) {
        return with("payload_text", payload);
    }

    public T payloadBase64(String payload) {
        return with("payload_base64", payload);
    }

    /** The record's value is null. */
    public T tombstone() {
        body.put("tombstone", true);
        return self();
    }

    public T headers(Map<String, ?> headers) {
        return with("headers", Draft.JSON.<JsonNode>valueToTree(headers));
    }

    /** The consumer's time for an attempt. With it, the consumer answers for the task. */
    public T ttr(Duration ttr) {
        return with("ttr", ttr);
    }

    public T retry(RetryPolicy policy) {
        return with("retry", policy.body);
    }

    abstract T self();

    T with(String field, String value) {
        body.put(field, value);
        return self();
    }

    T with(String field, Duration span) {
        body.put(field, span.toMillis());
        return self();
    }

    T with(String field, JsonNode value) {
        body.set(field, value);
        return self();
    }
}
