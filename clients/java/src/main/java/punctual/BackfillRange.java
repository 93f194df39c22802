package punctual;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.time.Instant;

/** A range of the past. It begins at most seven days ago, and has at most 1,000 runs. */
public final class BackfillRange {
    final ObjectNode body = Draft.JSON.createObjectNode();

    private BackfillRange() {
    }

    /** The range is this long, and ends now. */
    public static BackfillRange last(Duration span) {
        var range = new BackfillRange();
        range.body.put("last", span.toMillis());
        return range;
    }

    /** The end is not part of the range. */
    public static BackfillRange between(Instant from, Instant to) {
        var range = new BackfillRange();
        range.body.put("from", from.toString()).put("to", to.toString());
        return range;
    }

    /** Only counts. */
    public BackfillRange dryRun() {
        body.put("dry_run", true);
        return this;
    }
}
