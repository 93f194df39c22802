/** Tasks: what callers give, and how the API shows them. */

import type { Span } from './span.js';

/** A record and its due time: one of `delay` and `dueAt`, one payload or a tombstone. */
export interface Record {
    /** From now. */
    delay?: Span;
    dueAt?: Date;
    /** The time from which the task is not published any more. */
    expiresAt?: Date;
    key?: string;
    keyBase64?: string;
    /** Any JSON. */
    payload?: unknown;
    payloadText?: string;
    payloadBase64?: string;
    tombstone?: true;
    headers?: { [name: string]: unknown };
    /** The time of the consumer for an attempt: with it, the consumer answers for the task. */
    ttr?: Span;
    retry?: RetryPolicy;
}

/** How a task is tried again that its consumer fails, or does not finish in time. */
export interface RetryPolicy {
    attemptsMax?: number;
    backoffMin?: Span;
    backoffMax?: Span;
    backoffFactor?: number;
    deadTopic?: string;
}

export interface Task {
    id: string;
    topic: string;
    name?: string;
    due_at: string;
    /**
     * `scheduled`, `claimed`, `published`, `cancelled`, `dead` or `expired`, and of a tracked task
     * `awaiting`, `retrying` or `finished`; more may be added.
     */
    state: string;
    receipt?: { partition: number; offset: number; published_at: string; lateness_ms: number };
    [member: string]: unknown;
}

export type Verdict = 'cancelled' | 'too_late' | 'replaced' | 'not_found';

export interface Cancelled {
    verdict: Verdict;
    task?: Task;
}

/** A due time: after a delay, or at a time. */
export type Due = { delay: Span } | { dueAt: Date };

/** The result of a move: only `moved` has changed the task. */
export type MoveVerdict =
    | 'moved'
    /** The task is on its way, or has ended. */
    | 'too_late'
    /** Another task has replaced the one of this id: move the one of `replaced_by`. */
    | 'replaced'
    | 'not_found';

export interface Moved {
    verdict: MoveVerdict;
    task?: Task;
}
