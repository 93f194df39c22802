package punctual;

import com.fasterxml.jackson.databind.JsonNode;

/** The result of a move. The task is as the API shows it, or null if there is none. */
public record Moved(Verdict verdict, JsonNode task) {
    /** Only {@code MOVED} has changed the task. */
    public enum Verdict {
        /** The task is due at the new time. */
        MOVED,
        /** The task is on its way, or has ended. */
        TOO_LATE,
        /** Another task has replaced the one of this id: move the one of {@code replaced_by}. */
        REPLACED,
        NOT_FOUND,
        /** One that this client does not know. */
        OTHER
    }
}
