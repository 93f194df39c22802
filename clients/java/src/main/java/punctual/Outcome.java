package punctual;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.time.Instant;

/** The answer of a consumer about an attempt: it is finished, it has failed, or it takes longer. */
public final class Outcome {
    final ObjectNode body = Draft.JSON.createObjectNode();
    final String call;
    private final String id;

    private Outcome(String call, String id) {
        this.call = call;
        this.id = id;
    }

    /** The work is done: no further attempt is made. */
    public static Outcome finish(String taskId) {
        return new Outcome("finish", taskId);
    }

    /** The attempt has failed. The next one follows after the back-off, unless told otherwise. */
    public static Outcome fail(String taskId, int attempt) {
        return new Outcome("fail", taskId).attempt(attempt);
    }

    /** The work takes longer. The deadline becomes now plus the time to run, or {@link #by}. */
    public static Outcome extend(String taskId, int attempt) {
        return new Outcome("extend", taskId).attempt(attempt);
    }

    /** A finish may name its attempt, too. */
    public Outcome attempt(int attempt) {
        body.put("attempt", attempt);
        return this;
    }

    /** Of a failure. */
    public Outcome reason(String reason) {
        body.put("reason", reason);
        return this;
    }

    public Outcome retryIn(Duration wait) {
        body.put("retry_in", wait.toMillis());
        return this;
    }

    public Outcome retryAt(Instant at) {
        body.put("retry_at", at.toString());
        return this;
    }

    /** No further attempt follows the failure: the task is dead. */
    public Outcome isFinal() {
        body.put("final", true);
        return this;
    }

    /** Of an extension. */
    public Outcome by(Duration span) {
        body.put("by", span.toMillis());
        return this;
    }

    String taskId() {
        return id;
    }

    /** Returns the body as one of many. */
    ObjectNode part() {
        return body.deepCopy().put("outcome", call).put("id", id);
    }
}
