package punctual;

import com.fasterxml.jackson.databind.JsonNode;

/** The result of a cancel. The task is as the API shows it, or null if there is none. */
public record Cancelled(Verdict verdict, JsonNode task) {
    /** {@code OTHER} is one that this client does not know. */
    public enum Verdict { CANCELLED, TOO_LATE, REPLACED, NOT_FOUND, OTHER }
}
