package punctual;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.time.Instant;

/** A task to submit: a due time, and a record with one payload or a tombstone. */
public final class Draft extends RecordDraft<Draft> {
    static final ObjectMapper JSON = new ObjectMapper();

    private final Duration delay;
    private final Instant dueAt;

    private Draft(Duration delay, Instant dueAt) {
        this.delay = delay;
        this.dueAt = dueAt;
    }

    public static Draft in(Duration delay) {
        return new Draft(delay, null).with("delay", delay);
    }

    public static Draft at(Instant dueAt) {
        return new Draft(null, dueAt).with("due_at", dueAt.toString());
    }

    /** Your idempotency key, unique within the topic. Only for a submit. */
    public Draft name(String name) {
        return with("name", name);
    }

    /** The time from which the task is not published any more. */
    public Draft expiresAt(Instant expiresAt) {
        return with("expires_at", expiresAt.toString());
    }

    /** Returns the time until the task is due, by this machine's clock if it has a due time. */
    Duration dueIn() {
        return delay != null ? delay : Duration.between(Instant.now(), dueAt);
    }

    @Override
    Draft self() {
        return this;
    }
}
