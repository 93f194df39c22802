/** The answers of consumers about attempts of tracked tasks. */

import type { Task } from './tasks.js';
import { Problem } from './problems.js';
import { type Span, span } from './span.js';

/**
 * The verdict on an answer. The first five took effect, the others changed nothing. More may be
 * added: see `tookEffect`.
 */
export type AnswerVerdict =
    | 'finished'
    /** The next attempt has a due time. */
    | 'retrying'
    /** The task is a dead letter, or about to be one: by this answer, or before it. */
    | 'dead'
    | 'extended'
    /** It takes effect once the node knows that the record was published. */
    | 'noted'
    | 'not_published_yet'
    | 'attempt_too_high'
    /** A later attempt was made: stop the work. */
    | 'attempt_superseded'
    | 'already_failed'
    | 'already_finished'
    | 'cancelled'
    | 'not_tracked'
    | 'not_found'
    | (string & {});

export interface Answered {
    verdict: AnswerVerdict;
    /** False if the answer came too late, or was wrong: nothing was changed. */
    tookEffect: boolean;
    /** Finished, and an attempt that was claimed before may still reach the topic. */
    inFlight: boolean;
    /** Finished after a later attempt was made. */
    superseded: boolean;
    task?: Task;
}

/** The next step after a failure: the back-off, unless `retryIn`, `retryAt` or `final` is given. */
export interface Failure {
    reason?: string;
    /** From now. */
    retryIn?: Span;
    retryAt?: Date;
    /** No further attempt: the task is dead. */
    final?: boolean;
}

/** An answer among many: about the task of an id, or of a topic and a name. */
export type Outcome = ({ id: string } | { topic: string; name: string }) &
    (
        | { outcome: 'finish'; attempt?: number }
        | ({ outcome: 'fail'; attempt: number } & Failure)
        | { outcome: 'extend'; attempt: number; by?: Span }
    );

/** The body of a call or of a part of a call. */
export function outcomeBody(outcome: object): object {
    const { retryIn, retryAt, by, ...same } = outcome as Failure & { by?: Span };
    return {
        ...same,
        by: span('by', by),
        retry_in: span('retryIn', retryIn),
        retry_at: retryAt?.toISOString(),
    };
}

/** Throws the problem of a call without a verdict. */
export function answered(status: number, body: { [member: string]: any }): Answered {
    const problem = body.problem ?? body;
    if (body.verdict === undefined) throw new Problem(problem);
    const task = body.task ?? problem.task;
    return {
        verdict: body.verdict,
        tookEffect: status < 300,
        inFlight: body.in_flight ?? false,
        superseded: body.superseded ?? false,
        ...(task && { task }),
    };
}
