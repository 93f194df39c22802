package punctual;

import com.fasterxml.jackson.databind.JsonNode;

/** A refused request. Nothing was done, and the same request is refused again. */
public final class Problem extends RuntimeException {
    static final String PREFIX = "urn:punctual:problem:";

    private final transient JsonNode body;

    Problem(JsonNode body) {
        super(reason(body) + ": " + body.path("detail").asText());
        this.body = body;
    }

    private static String reason(JsonNode body) {
        var slug = body.path("type").asText().replace(PREFIX, "");
        return slug.isEmpty() ? "status " + body.path("status").asInt() : slug;
    }

    /** The problem of a part of a call that may have been done by an attempt that failed. */
    static Problem unknown(RuntimeException failure) {
        return new Problem(Draft.JSON.createObjectNode().put("type", PREFIX + "outcome-unknown")
            .put("status", 503).put("detail", failure.getMessage()));
    }

    /**
     * The last part of the type, such as {@code unknown-topic}. Decide by it. Empty if a proxy has
     * refused the request.
     */
    public String slug() {
        return body.path("type").asText().replace(PREFIX, "");
    }

    public int status() {
        return body.path("status").asInt();
    }

    public String detail() {
        return body.path("detail").asText();
    }

    /** The wrong field, such as {@code due_at}, or null. */
    public String field() {
        return body.path("field").textValue();
    }

    public JsonNode body() {
        return body;
    }
}
