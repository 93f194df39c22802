package punctual;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.Map;

/** The service to which nodes POST each tracked task of a topic. */
public final class CallbackDraft {
    final ObjectNode body = Draft.JSON.createObjectNode();

    private CallbackDraft() {
    }

    public static CallbackDraft to(String url) {
        var draft = new CallbackDraft();
        draft.body.put("url", url);
        return draft;
    }

    /** Headers of each request. Their values are not shown again. */
    public CallbackDraft headers(Map<String, String> headers) {
        body.set("headers", Draft.JSON.valueToTree(headers));
        return this;
    }

    /** How long the service may take: 10 s unless given. */
    public CallbackDraft timeout(Duration timeout) {
        body.put("timeout", timeout.toMillis());
        return this;
    }

    /** The most requests that wait for an answer: 50 unless given. */
    public CallbackDraft concurrency(int requests) {
        body.put("concurrency", requests);
        return this;
    }

    public CallbackDraft maxPerSecond(int requests) {
        body.put("max_per_second", requests);
        return this;
    }

    /** Nothing is sent. */
    public CallbackDraft paused() {
        body.put("paused", true);
        return this;
    }
}
