/** A client of Punctual, which publishes records to Kafka at their due time. */

export {
    Client,
    type Cancelled,
    type ClientOptions,
    type Due,
    type MoveVerdict,
    type Moved,
    type Record,
    type Redriven,
    type RedriveRange,
    type RetryPolicy,
    type Task,
    type Verdict,
} from './client.js';
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
export { NoAnswer, Problem } from './problems.js';
export { type MissedRuns, type Schedule, type ScheduleDraft, type Topic } from './schedules.js';
export { type Span } from './span.js';
export { DevServer, type PublishedRecord } from './testing.js';
