package punctual;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Instant;

/** A range of the dead letters of a topic: all of them, unless it is limited. */
public final class RedriveRange {
    final ObjectNode body = Draft.JSON.createObjectNode().put("dry_run", false);

    /** The first due time. */
    public RedriveRange dueFrom(Instant time) {
        body.put("due_from", time.toString());
        return this;
    }

    /** The due time after the last one. */
    public RedriveRange dueTo(Instant time) {
        body.put("due_to", time.toString());
        return this;
    }

    /** The topic to which the tasks go, instead of their own. */
    public RedriveRange toTopic(String topic) {
        body.put("to_topic", topic);
        return this;
    }

    /** Only counts. */
    public RedriveRange dryRun() {
        body.put("dry_run", true);
        return this;
    }
}
