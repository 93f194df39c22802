/** Tasks, as callers give them and as the API shows them. */

import { randomUUID } from 'node:crypto';

import { type Span, milliseconds, noBytes, noOthers, span } from './span.js';

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

/** The result of a cancel. More may be added. */
export type Verdict = 'cancelled' | 'too_late' | 'replaced' | 'not_found' | (string & {});

export interface Cancelled {
    verdict: Verdict;
    task?: Task;
}

/** A due time: after a delay, or at a time. */
export type Due = { delay: Span } | { dueAt: Date };

/** The result of a move: only `moved` has changed the task. More may be added. */
export type MoveVerdict =
    | 'moved'
    /** The task is on its way, or has ended. */
    | 'too_late'
    /** Another task has replaced the one of this id: move the one of `replaced_by`. */
    | 'replaced'
    | 'not_found'
    | (string & {});

export interface Moved {
    verdict: MoveVerdict;
    task?: Task;
}

/** A range of the dead letters of a topic: all of them if it is empty. */
export interface RedriveRange {
    /** The first due time. */
    dueFrom?: Date;
    /** The due time after the last one. */
    dueTo?: Date;
    /** The topic to which the tasks go, instead of their own. */
    toTopic?: string;
    /** Only count. */
    dryRun?: boolean;
}

export interface Redriven {
    /** The tasks that were redriven; in a dry run, those that would be. */
    count: number;
    /** There are more: other callers were at work at them, or the call has failed there. */
    hasMore: boolean;
}

/** Returns the milliseconds until a task is due, by this machine's clock if it has a due time. */
export function untilDue({ delay, dueAt }: { delay?: Span; dueAt?: Date }): number {
    // A length of time that only a node can read may be over at once.
    if (delay !== undefined) return milliseconds('delay', delay) ?? 0;
    return dueAt ? dueAt.getTime() - Date.now() : 0;
}

/** Returns the body of a submit. A task without a name gets a random one. */
export function named(task: Record & { topic: string; name?: string }): object {
    const { topic, name, ...record } = task;
    return { topic, name: name ?? `client-${randomUUID()}`, ...bodyOf(record) };
}

/** Returns a record and its due time as the API takes them. */
export function bodyOf(record: Record): object {
    const { dueAt, expiresAt, keyBase64, payloadText, payloadBase64, ...others } = record;
    const { delay, ttr, retry, ...same } = others;
    noBytes(others.payload);
    return {
        ...same,
        retry: retryBody(retry),
        delay: span('delay', delay),
        ttr: span('ttr', ttr),
        due_at: dueAt?.toISOString(),
        expires_at: expiresAt?.toISOString(),
        key_base64: keyBase64,
        payload_text: payloadText,
        payload_base64: payloadBase64,
    };
}

/** Returns a retry policy as the API takes it. */
export function retryBody(retry: RetryPolicy | undefined): object | undefined {
    if (!retry) return undefined;
    const { attemptsMax, backoffMin, backoffMax, backoffFactor, deadTopic, ...unknown } = retry;
    noOthers('retry', unknown);
    return {
        attempts_max: attemptsMax,
        backoff_min: span('backoffMin', backoffMin),
        backoff_max: span('backoffMax', backoffMax),
        backoff_factor: backoffFactor,
        dead_topic: deadTopic,
    };
}
