package punctual;

import com.fasterxml.jackson.databind.JsonNode;

/**
 * The policy of a topic. Lengths of time are text with a unit. A missing member is null.
 *
 * @param retry {@code attempts_max}, {@code backoff_min}, ..
 * @param body the policy as the API shows it
 */
public record Policy(String ttr, JsonNode retry, String delayMax, String expireAfter,
        String spread, Long pendingMax, boolean submittedByHeader, JsonNode body) {
    static Policy of(JsonNode body) {
        var pendingMax = body.has("pending_max") ? body.get("pending_max").asLong() : null;
        return new Policy(body.path("ttr").textValue(), body.get("retry"),
            body.path("delay_max").textValue(), body.path("expire_after").textValue(),
            body.path("spread").textValue(), pendingMax,
            body.path("submitted_by_header").asBoolean(), body);
    }
}
