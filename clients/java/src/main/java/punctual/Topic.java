package punctual;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;

/**
 * A topic.
 *
 * @param revision counts the changes of the policy and the pauses
 * @param policy its policy, or null without one
 * @param paused its pause, or null if it is not paused
 * @param inFlight tasks that are claimed and not settled: a pause does not stop them; 0 after a
 *     resume
 * @param body the topic as the API shows it, with the number of pending tasks
 */
public record Topic(String topic, long revision, Policy policy, Pause paused, long inFlight,
        JsonNode body) {
    /** The pause of a topic. The reason and who paused it are null if they are not known. */
    public record Pause(Instant since, String reason, String by) {}

    static Topic of(JsonNode body) {
        var paused = body.get("paused");
        var pause = paused == null ? null : new Pause(Instant.parse(paused.get("since").asText()),
            paused.path("reason").textValue(), paused.path("by").textValue());
        var policy = body.has("policy") ? Policy.of(body.get("policy")) : null;
        return new Topic(body.get("topic").asText(), body.get("revision").asLong(), policy, pause,
            body.path("in_flight").asLong(), body);
    }
}
