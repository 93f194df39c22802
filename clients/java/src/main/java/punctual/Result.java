package punctual;

import com.fasterxml.jackson.databind.JsonNode;

/**
 * The result of one of many drafts or outcomes.
 *
 * @param task a draft's task as the API shows it, or null
 * @param answered an outcome's answer, or null
 * @param problem why there is neither, or null
 */
public record Result(JsonNode task, Answered answered, Problem problem) {
    /** Reads a result of a call with many parts. */
    static Result of(JsonNode part) {
        int status = part.get("status").asInt();
        if (part.has("verdict")) return new Result(null, Answered.of(status, part), null);
        if (part.has("problem")) return new Result(null, null, new Problem(part.get("problem")));
        return new Result(part.get("task"), null, null);
    }
}
