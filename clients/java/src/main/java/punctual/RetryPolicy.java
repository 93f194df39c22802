package punctual;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;

/** How a task is tried again that its consumer fails, or does not finish in time. */
public final class RetryPolicy {
    final ObjectNode body = Draft.JSON.createObjectNode();

    public RetryPolicy attemptsMax(int attempts) {
        body.put("attempts_max", attempts);
        return this;
    }

    /** The wait after the first attempt, and the longest one. */
    public RetryPolicy backoff(Duration min, Duration max) {
        body.put("backoff_min", min.toMillis()).put("backoff_max", max.toMillis());
        return this;
    }

    public RetryPolicy backoffFactor(int factor) {
        body.put("backoff_factor", factor);
        return this;
    }

    /** The topic that gets the record of a task that is given up. */
    public RetryPolicy deadTopic(String topic) {
        body.put("dead_topic", topic);
        return this;
    }
}
