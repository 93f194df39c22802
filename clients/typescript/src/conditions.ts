/** Conditions of a change: If-Match, If-None-Match, and `when` of a replacement. */

/**
 * The task, topic or schedule must match `ifMatch`, and must not match `ifNoneMatch`. Each is the
 * id of a task, or several, the revision of a topic or a schedule, or `*` for any.
 */
export interface Condition {
    ifMatch?: string | string[] | number;
    ifNoneMatch?: string | string[] | number;
}

export interface ReplaceCondition extends Condition {
    /**
     * Replaces a pending task only by one that is due `earlier`, or `later`, than it; with `absent`
     * never.
     */
    when?: 'absent' | 'earlier' | 'later';
    /** With `later`: the new task is due then at the latest. */
    notAfter?: Date;
}

/** Returns the headers of a condition. Throws for no ids, and for one that HTTP cannot carry. */
export function conditionHeaders(condition: Condition): { [name: string]: string } {
    const { ifMatch, ifNoneMatch } = condition;
    return {
        ...(ifMatch !== undefined && { 'if-match': tags(ifMatch) }),
        ...(ifNoneMatch !== undefined && { 'if-none-match': tags(ifNoneMatch) }),
    };
}

/** Returns the query of a condition about due times, with its question mark, or no text. */
export function conditionQuery({ when, notAfter }: ReplaceCondition): string {
    const query = new URLSearchParams();
    if (when !== undefined) query.set('when', when);
    if (notAfter !== undefined) query.set('not_after', notAfter.toISOString());
    const text = query.toString();
    return text && `?${text}`;
}

function tags(ids: string | string[] | number): string {
    if (ids === '*') return ids;
    const given = [ids].flat();
    if (given.length === 0) throw new TypeError('a condition has no ids: leave it out for none');
    for (const id of given) {
        // A `*` in quotes is the tag of no task, so `ifNoneMatch` would always hold.
        const isId = ['string', 'number'].includes(typeof id) && id !== '*';
        if (!isId || !/^[!#-~]+$/.test(String(id))) {
            const reason = "in a condition is not an id or a revision; '*' stands alone";
            throw new TypeError(`${JSON.stringify(id)} ${reason}`);
        }
    }
    return given.map((id) => `"${id}"`).join(', ');
}
