package punctual;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;
import java.util.List;
import java.util.stream.StreamSupport;

/**
 * The result of a backfill of a schedule.
 *
 * @param made the number of runs that were made; in a dry run, of those that would be
 * @param alreadyMade the number of runs that had been made before
 * @param runs the instants of the schedule in the range
 */
public record Backfilled(long made, long alreadyMade, List<Instant> runs) {
    static Backfilled of(JsonNode body) {
        var runs = StreamSupport.stream(body.get("runs").spliterator(), false)
            .map(run -> Instant.parse(run.asText())).toList();
        return new Backfilled(body.get("made").asLong(), body.get("already_made").asLong(), runs);
    }
}
