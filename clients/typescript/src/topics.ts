/** Topics, their pauses and policies. */

import { type Span, span } from './span.js';
import { type RetryPolicy, retryBody } from './tasks.js';

/** A topic as the API shows it. */
export interface Topic {
    topic: string;
    /** Counts the changes of the policy and the pauses. */
    revision: number;
    /** Missing without a policy. */
    policy?: Policy;
    /** Missing for a topic that is not paused. `by` is missing for an anonymous caller. */
    paused?: { since: string; reason: string | null; by?: string };
    /** Tasks that are claimed and not settled: a pause does not stop them. */
    in_flight?: number;
    /** Pending tasks; an estimate unless it is `exact`. Missing in answers to changes. */
    pending?: { count: number; exact: boolean };
    [member: string]: unknown;
}

/** The policy of a topic as the API shows it. */
export interface Policy {
    ttr?: string;
    retry?: { [member: string]: unknown };
    delay_max?: string;
    expire_after?: string;
    spread?: string;
    pending_max?: number;
    submitted_by_header?: boolean;
    [member: string]: unknown;
}

/** The whole policy of a topic. What is missing is not limited. */
export interface PolicyDraft {
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
    /** Pauses or resumes the topic. Without it, the topic stays as it is. */
    paused?: boolean;
}

/** Returns a policy as the API takes it. */
export function policyBody(draft: PolicyDraft): object {
    return {
        ttr: span('ttr', draft.ttr),
        retry: retryBody(draft.retry),
        delay_max: span('delayMax', draft.delayMax),
        expire_after: span('expireAfter', draft.expireAfter),
        spread: span('spread', draft.spread),
        pending_max: draft.pendingMax,
        submitted_by_header: draft.submittedByHeader,
        paused: draft.paused,
    };
}
