package punctual;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Locale;

/**
 * The result of a consumer's answer.
 *
 * @param tookEffect false if the answer came too late, or was wrong: nothing was changed
 * @param inFlight finished, and an attempt that was claimed before may still reach the topic
 * @param superseded finished after a later attempt was made
 * @param task as the API shows it, or null if there is none
 */
public record Answered(
        Verdict verdict, boolean tookEffect, boolean inFlight, boolean superseded, JsonNode task) {
    /** The first five took effect, the others changed nothing, except for {@code OTHER}. */
    public enum Verdict {
        FINISHED,
        /** The next attempt has a due time. */
        RETRYING,
        /** The task is a dead letter, or about to be one: by this answer, or before it. */
        DEAD,
        EXTENDED,
        /** It takes effect once the node knows that the record was published. */
        NOTED,
        NOT_PUBLISHED_YET,
        ATTEMPT_TOO_HIGH,
        /** A later attempt was made: stop the work. */
        ATTEMPT_SUPERSEDED,
        ALREADY_FAILED,
        ALREADY_FINISHED,
        CANCELLED,
        NOT_TRACKED,
        NOT_FOUND,
        /** One that this client does not know: see {@code tookEffect}. */
        OTHER
    }

    /** Reads an answer. A call without a verdict is a problem. */
    static Answered of(int status, JsonNode body) {
        var problem = body.has("problem") ? body.get("problem") : body;
        if (!body.has("verdict")) throw new Problem(problem);
        return new Answered(verdict(body, Verdict.OTHER), status < 300,
            body.path("in_flight").asBoolean(), body.path("superseded").asBoolean(),
            body.has("task") ? body.get("task") : problem.get("task"));
    }

    /** Reads a verdict. Returns the other one for a verdict that this client does not know. */
    static <V extends Enum<V>> V verdict(JsonNode body, V other) {
        var name = body.get("verdict").asText().toUpperCase(Locale.ROOT);
        try {
            return Enum.valueOf(other.getDeclaringClass(), name);
        } catch (IllegalArgumentException unknown) {
            return other;
        }
    }
}
