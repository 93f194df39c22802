package punctual;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.Locale;

/** The whole policy of a topic, for the tasks to come. A missing member is no limit. */
public final class PolicyDraft {
    /** A member that a policy may be without. */
    public enum Member { TTR, RETRY, DELAY_MAX, EXPIRE_AFTER, SPREAD, PENDING_MAX }

    final ObjectNode body;

    public PolicyDraft() {
        this(Draft.JSON.createObjectNode());
    }

    private PolicyDraft(ObjectNode body) {
        this.body = body;
    }

    /** Begins with the policy of a topic, or with null for none, to change some members of it. */
    public static PolicyDraft from(Policy policy) {
        return policy == null ? new PolicyDraft() : new PolicyDraft(policy.body().deepCopy());
    }

    /** Takes members away: the topic no longer has these limits. */
    public PolicyDraft without(Member... members) {
        for (var member : members) body.remove(member.name().toLowerCase(Locale.ROOT));
        return this;
    }

    /** The time to run of tasks without one of their own. */
    public PolicyDraft ttr(Duration ttr) {
        return with("ttr", ttr);
    }

    /** For tasks without a time to run of their own. It needs {@link #ttr}. */
    public PolicyDraft retry(RetryPolicy policy) {
        body.set("retry", policy.body);
        return this;
    }

    /** How far ahead tasks may be due. */
    public PolicyDraft delayMax(Duration delay) {
        return with("delay_max", delay);
    }

    /** How long after its due time a task without its own expiry is published at the latest. */
    public PolicyDraft expireAfter(Duration span) {
        return with("expire_after", span);
    }

    /** Tasks are due up to this much later than requested. */
    public PolicyDraft spread(Duration spread) {
        return with("spread", spread);
    }

    /** With as many pending tasks, submits are refused. */
    public PolicyDraft pendingMax(long tasks) {
        body.put("pending_max", tasks);
        return this;
    }

    /** Records carry the name of their submitter, if it is true. The default is false. */
    public PolicyDraft submittedByHeader(boolean isCarried) {
        body.put("submitted_by_header", isCarried);
        return this;
    }

    /** Pauses or resumes the topic. Without it, the topic stays as it is. */
    public PolicyDraft paused(boolean isPaused) {
        body.put("paused", isPaused);
        return this;
    }

    private PolicyDraft with(String field, Duration span) {
        body.put(field, span.toMillis());
        return this;
    }
}
