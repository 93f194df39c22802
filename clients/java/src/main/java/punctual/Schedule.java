package punctual;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;
import java.util.List;
import java.util.stream.StreamSupport;

/**
 * A schedule.
 *
 * @param revision counts the changes, from 1 on
 * @param nextRunAt the next run, or null if the schedule is paused or has ended
 * @param nextRuns the upcoming runs, as many as were asked for
 * @param body the schedule as the API shows it: in a list, without headers and payload
 */
public record Schedule(String topic, String name, long revision, boolean isPaused, long runsMade,
        Instant nextRunAt, List<Instant> nextRuns, JsonNode body) {
    static Schedule of(JsonNode body) {
        var next = body.path("next_run_at").textValue();
        var runs = StreamSupport.stream(body.path("next").spliterator(), false)
            .map(run -> Instant.parse(run.asText())).toList();
        return new Schedule(body.get("topic").asText(), body.get("name").asText(),
            body.get("revision").asLong(), body.get("paused").asBoolean(),
            body.get("runs_made").asLong(), next == null ? null : Instant.parse(next), runs, body);
    }
}
