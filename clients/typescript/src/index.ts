/** A client of Punctual, which publishes records to Kafka at their due time. */

export { Client, type ClientOptions, type Redriven, type RedriveRange } from './client.js';
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
export { type MissedRuns, type Schedule, type ScheduleDraft, type Topic } from './schedules.js';
export { type Span } from './span.js';
export {
    type Cancelled,
    type Due,
    type MoveVerdict,
    type Moved,
    type Record,
    type RetryPolicy,
    type Task,
    type Verdict,
} from './tasks.js';
export { DevServer, type PublishedRecord } from './testing.js';
