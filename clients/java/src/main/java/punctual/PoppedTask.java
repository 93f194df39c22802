package punctual;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;

/**
 * An attempt of a tracked task, with its record.
 *
 * @param attempt the number of this attempt, for the answer
 * @param finishBy the end of the time to run: the task comes again afterwards
 * @param body the task as the API shows it: {@code payload} (or {@code payload_text}, {@code
 *     payload_base64}, {@code tombstone}), {@code key}, {@code headers}, {@code attempts_max},
 *     {@code due_at}, ..
 */
public record PoppedTask(String id, int attempt, Instant finishBy, JsonNode body) {
    static PoppedTask of(JsonNode body) {
        var finishBy = Instant.parse(body.get("finish_by").asText());
        return new PoppedTask(
            body.get("id").asText(), body.get("attempt").asInt(), finishBy, body);
    }
}
