package punctual;

/**
 * The result of a redrive of many dead letters.
 *
 * @param count the tasks that were redriven; in a dry run, those that would be
 * @param hasMore there are more: other callers were at work at them, or the call has failed there
 */
public record Redriven(long count, boolean hasMore) {}
