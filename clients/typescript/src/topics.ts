/** Topics, their pauses and policies. */

import { type Span, noOthers, span } from './span.js';
import { type RetryPolicy, retryBody } from './tasks.js';

/** A topic as the API shows it, except for the policy. */
export interface Topic {
    topic: string;
    /** Counts the changes of the policy and the pauses. */
    revision: number;
    /** The policy as `setPolicy` takes it. Missing without a policy. */
    policy?: Policy;
    /** Missing for a topic that is not paused. `by` is missing for an anonymous caller. */
    paused?: { since: string; reason: string | null; by?: string };
    /** Tasks that are claimed and not settled: a pause does not stop them. */
    in_flight?: number;
    /** Pending tasks; an estimate unless it is `exact`. Missing in answers to changes. */
    pending?: { count: number; exact: boolean };
    [member: string]: unknown;
}

/** The whole policy of a topic. A missing member is no limit. */
export interface Policy {
    /** For tasks without a `ttr` of their own, as is `retry`. */
    ttr?: Span;
    retry?: RetryPolicy;
    /** How far ahead tasks may be due. */
    delayMax?: Span;
    /** How long after its due time a task without an `expiresAt` is published at the latest. */
    expireAfter?: Span;
    /** Tasks are due up to this much later than requested. */
    spread?: Span;
    /** With as many pending tasks, submits are refused. */
    pendingMax?: number;
    /** Records carry the name of their submitter. */
    submittedByHeader?: boolean;
}

export interface PolicyDraft extends Policy {
    /** Pauses or resumes the topic. Without it, the topic stays as it is. */
    paused?: boolean;
}

/** Returns a policy as the API takes it. */
export function policyBody(draft: PolicyDraft): object {
    const { ttr, retry, delayMax, expireAfter, spread, ...others } = draft;
    const { pendingMax, submittedByHeader, paused, ...unknown } = others;
    noOthers('a policy', unknown);
    return {
        ttr: span('ttr', ttr),
        retry: retryBody(retry),
        delay_max: span('delayMax', delayMax),
        expire_after: span('expireAfter', expireAfter),
        spread: span('spread', spread),
        pending_max: pendingMax,
        submitted_by_header: submittedByHeader,
        paused,
    };
}

/** Reads a topic from an answer. */
export function topicOf(body: object): Topic {
    const { policy, ...topic } = body as { policy?: object };
    return { ...topic, ...(policy && { policy: camelCased(policy) }) } as Topic;
}

/** Renames all members, those of parts included. A set refuses a member that it does not know. */
function camelCased(value: unknown): unknown {
    if (typeof value !== 'object' || value === null) return value;
    const members = Object.entries(value).map(([name, member]) => [
        name.replace(/_(.)/g, (_, first) => first.toUpperCase()),
        camelCased(member),
    ]);
    return Object.fromEntries(members);
}
