package punctual;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/**
 * For consumers: runs the work of each task once, for duplicates that arrive soon after the first
 * record.
 *
 * <p>It remembers tasks in memory, in this process. For exactly one effect, store the id of the
 * task in the transaction of the work (docs/start/first-consumer.md).
 */
public final class Once {
    /** The header with the id of the task: {@code record.headers().lastHeader(TASK_ID).value()}. */
    public static final String TASK_ID = "punctual-task-id";
    /** The header with the due time in milliseconds since the epoch. */
    public static final String DUE_AT = "punctual-due-at";
    /** The header with the number of the attempt. Only records of tracked tasks have it. */
    public static final String ATTEMPT = "punctual-attempt";

    private final Set<String> seen;

    public Once() {
        this(100_000);
    }

    public Once(int remembered) {
        seen = Collections.synchronizedSet(Collections.newSetFromMap(new LinkedHashMap<>() {
            @Override
            protected boolean removeEldestEntry(Map.Entry<String, Boolean> eldest) {
                return size() > remembered;
            }
        }));
    }

    /**
     * Runs the work unless this task's work has succeeded before. Returns whether it ran. Work that
     * throws is not remembered. Records of a task with a key are on one partition, so only one
     * thread has them. A duplicate of a task without a key may be on another partition, which
     * another thread reads at the same time. A record of another producer has no id: with null, the
     * work always runs.
     */
    public boolean run(byte[] taskId, Runnable work) {
        if (taskId == null) {
            work.run();
            return true;
        }
        String task = new String(taskId, java.nio.charset.StandardCharsets.US_ASCII);
        if (seen.contains(task)) return false;
        work.run();
        seen.add(task);
        return true;
    }
}
