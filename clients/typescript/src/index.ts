/** A client of Punctual, which publishes records to Kafka at their due time. */

export {
    Client,
    type Cancelled,
    type ClientOptions,
    type Record,
    type Task,
    type Verdict,
} from './client.js';
export { DUE_AT, Once, TASK_ID, dueAt, taskId } from './consumer.js';
export { NoAnswer, Problem } from './problems.js';
export { DevServer, type PublishedRecord } from './testing.js';
