package punctual;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.Locale;

/** When a schedule runs, by a cron expression or with a period, and the record of each run. */
public final class ScheduleDraft extends RecordDraft<ScheduleDraft> {
    /** A local time that does not exist: a run at the first moment after the gap, or none. */
    public enum Gap { SHIFT, SKIP }

    /** A local time that occurs twice: a run at the first, or at both. */
    public enum Overlap { FIRST, BOTH }

    /** Instants that passed without a run: a run for the last of them, for each, or for none. */
    public enum Missed { LAST, ALL, NONE }

    private ScheduleDraft() {
    }

    /** Five fields: minute, hour, day of the month, month, day of the week. */
    public static ScheduleDraft cron(String expression, ZoneId zone) {
        var name = zone.equals(ZoneOffset.UTC) ? "UTC" : zone.getId();
        return new ScheduleDraft().with("cron", expression).with("time_zone", name);
    }

    public static ScheduleDraft every(Duration period) {
        return new ScheduleDraft().with("every", period);
    }

    /** The expression has six fields, the first one for seconds. */
    public ScheduleDraft seconds() {
        body.put("seconds", true);
        return this;
    }

    /** Moves the instants of a period. */
    public ScheduleDraft phase(Duration phase) {
        return with("phase", phase);
    }

    /** No run before this time. */
    public ScheduleDraft startsAt(Instant time) {
        return with("starts_at", time.toString());
    }

    /** No run at or after this time. */
    public ScheduleDraft endsAt(Instant time) {
        return with("ends_at", time.toString());
    }

    /** Days without runs. */
    public ScheduleDraft exclude(LocalDate... days) {
        var dates = body.putArray("exclude");
        for (var day : days) dates.add(day.toString());
        return this;
    }

    /** The schedule ends after this many runs. */
    public ScheduleDraft runsMax(long runs) {
        body.put("runs_max", runs);
        return this;
    }

    /** No run while one before is not finished. It needs {@link #ttr}. */
    public ScheduleDraft skipOverlap() {
        return with("overlap", "skip");
    }

    /** Each run is due up to this much later. */
    public ScheduleDraft spread(Duration spread) {
        return with("spread", spread);
    }

    /** The runs when the clocks change: {@code SHIFT} and {@code FIRST} by default. */
    public ScheduleDraft dst(Gap gap, Overlap overlap) {
        part("dst").put("gap", small(gap)).put("overlap", small(overlap));
        return this;
    }

    /** {@code LAST} by default. */
    public ScheduleDraft missed(Missed policy) {
        part("missed").put("policy", small(policy));
        return this;
    }

    /** How long ago a missed instant may be. */
    public ScheduleDraft missedWithin(Duration span) {
        part("missed").put("within", span.toMillis());
        return this;
    }

    /** The most runs for missed instants, with {@code ALL}. */
    public ScheduleDraft missedMax(int runs) {
        part("missed").put("count_max", runs);
        return this;
    }

    /** The schedule makes no runs. Without it, a paused schedule is resumed. */
    public ScheduleDraft paused() {
        body.put("paused", true);
        return this;
    }

    /** A text for people. */
    public ScheduleDraft note(String note) {
        return with("note", note);
    }

    private ObjectNode part(String member) {
        return body.get(member) instanceof ObjectNode part ? part : body.putObject(member);
    }

    private static String small(Enum<?> value) {
        return value.name().toLowerCase(Locale.ROOT);
    }

    @Override
    ScheduleDraft self() {
        return this;
    }
}
