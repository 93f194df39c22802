/** A client of Punctual, which publishes records to Kafka at their due time. */

export { Client, type ClientOptions } from './client.js';
export { type Condition, type ReplaceCondition } from './conditions.js';
export {
    ATTEMPT,
    DUE_AT,
    Once,
    SIGNATURE,
    TASK_ID,
    attempt,
    dueAt,
    isGenuine,
    taskId,
} from './consumer.js';
export { type AnswerVerdict, type Answered, type Failure, type Outcome } from './outcomes.js';
export { type Callback, type CallbackDraft, type PopOptions, type PoppedTask } from './pops.js';
export { NoAnswer, Problem } from './problems.js';
export {
    type BackfillRange,
    type Backfilled,
    type MissedRuns,
    type Schedule,
    type ScheduleDraft,
} from './schedules.js';
export { type Span } from './span.js';
export {
    type Cancelled,
    type Due,
    type MoveVerdict,
    type Moved,
    type Record,
    type RedriveRange,
    type Redriven,
    type RetryPolicy,
    type Task,
    type Verdict,
} from './tasks.js';
export { DevServer, type PublishedRecord } from './testing.js';
export { type Policy, type PolicyDraft, type Topic } from './topics.js';
