package punctual;

import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * A condition of a change. If it does not hold, nothing is changed, and the call throws a {@link
 * Problem} with the slug {@code precondition-failed}. A call with a condition is not repeated once
 * it may have been done. An id that HTTP cannot carry is an {@link IllegalArgumentException}, as is
 * a condition without ids. A second condition of the same kind is an {@link IllegalStateException}.
 */
public final class Condition {
    /** Which pending task a replacement replaces: none, or one that is due later, or earlier. */
    public enum When { ABSENT, EARLIER, LATER }

    /** The characters that HTTP allows in a tag, without those beyond ASCII. */
    private static final Pattern TAG = Pattern.compile("[!#-~]+");

    final Map<String, String> headers = new LinkedHashMap<>();
    private String when;
    private String notAfter;

    /** The name has the task of one of these ids. {@code "*"} is any task, schedule or policy. */
    public Condition ifMatch(String... ids) {
        return with("if-match", ids);
    }

    /** The name has none of the tasks of these ids. {@code "*"}: no task, schedule or policy. */
    public Condition ifNoneMatch(String... ids) {
        return with("if-none-match", ids);
    }

    /** The topic or the schedule has this revision. */
    public Condition ifRevision(long revision) {
        return ifMatch(Long.toString(revision));
    }

    /** Of a replacement: {@code EARLIER} replaces only by a task that is due earlier. */
    public Condition when(When when) {
        once(this.when);
        this.when = when.name().toLowerCase(Locale.ROOT);
        return this;
    }

    /** The latest due time of the new task, with {@code LATER}. */
    public Condition notAfter(Instant limit) {
        once(notAfter);
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

    private Condition with(String header, String... ids) {
        once(headers.get(header));
        headers.put(header, tags(ids));
        return this;
    }

    private static void once(String given) {
        if (given != null) throw new IllegalStateException("the condition already has " + given);
    }

    private static String tags(String... ids) {
        if (ids.length == 1 && "*".equals(ids[0])) return "*";
        if (ids.length == 0) throw new IllegalArgumentException("a condition has no ids");
        for (var id : ids) {
            if (id == null || id.equals("*") || !TAG.matcher(id).matches()) {
                var reason = " in a condition is not an id or a revision; * stands alone";
                throw new IllegalArgumentException('"' + id + '"' + reason);
            }
        }
        return Stream.of(ids).map(id -> '"' + id + '"').collect(Collectors.joining(", "));
    }
}
