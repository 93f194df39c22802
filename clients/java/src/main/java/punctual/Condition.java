package punctual;

import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * A condition of a change. If it does not hold, nothing is changed, and the call throws a {@link
 * Problem} with the slug {@code precondition-failed}. A call with a condition is not repeated once
 * it may have been done.
 */
public final class Condition {
    /** Which pending task a replacement replaces: none, or one that is due later, or earlier. */
    public enum When { ABSENT, EARLIER, LATER }

    final Map<String, String> headers = new LinkedHashMap<>();
    private String when;
    private String notAfter;

    /** The name has the task of one of these ids. {@code "*"} is any task, schedule or policy. */
    public Condition ifMatch(String... ids) {
        headers.put("if-match", tags(ids));
        return this;
    }

    /** The name has none of the tasks of these ids. {@code "*"}: no task, schedule or policy. */
    public Condition ifNoneMatch(String... ids) {
        headers.put("if-none-match", tags(ids));
        return this;
    }

    /** The topic or the schedule has this revision. */
    public Condition ifRevision(long revision) {
        return ifMatch(Long.toString(revision));
    }

    /** Of a replacement: {@code EARLIER} replaces only by a task that is due earlier. */
    public Condition when(When when) {
        this.when = when.name().toLowerCase(Locale.ROOT);
        return this;
    }

    /** The latest due time of the new task, with {@code LATER}. */
    public Condition notAfter(Instant limit) {
        notAfter = limit.toString();
        return this;
    }

    /** Returns a path with the query of this condition. */
    String of(String path) {
        return path + PunctualClient.query("when", when, "not_after", notAfter);
    }

    boolean isNone() {
        return headers.isEmpty() && when == null && notAfter == null;
    }

    private static String tags(String... ids) {
        return Stream.of(ids).map(id -> id.equals("*") ? id : '"' + id + '"')
            .collect(Collectors.joining(", "));
    }
}
