/** The client: calls for tasks, topics, consumers without Kafka, and schedules. */

import { readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';

import {
    type Condition,
    type ReplaceCondition,
    conditionHeaders,
    conditionQuery,
} from './conditions.js';
import { type Answered, type Failure, type Outcome, answered, outcomeBody } from './outcomes.js';
import {
    type Callback,
    type CallbackDraft,
    type PopOptions,
    type PoppedTask,
    callbackBody,
} from './pops.js';
import { NoAnswer, Problem, read, unknown } from './problems.js';
import {
    type BackfillRange,
    type Backfilled,
    type Schedule,
    type ScheduleDraft,
    backfillBody,
    timed,
} from './schedules.js';
import { type Span, milliseconds, span } from './span.js';
import {
    type Cancelled,
    type Due,
    type Moved,
    type Record,
    type RedriveRange,
    type Redriven,
    type Task,
    bodyOf,
    named,
    untilDue,
} from './tasks.js';
import { type PolicyDraft, type Topic, policyBody, topicOf } from './topics.js';

const [PAUSE_MIN, PAUSE_MAX, RETRY_AFTER_MAX] = [100, 5_000, 60_000];
/** Statuses of calls, and of parts of them, that were not done, or perhaps: they are repeated. */
const REPEATED = [408, 429, 500, 503];
/** Problems with status 503 that prove that nothing was done. */
const NOT_DONE = ['busy', 'draining', 'unavailable', 'not-ready'];
/** The problem with status 429 that does not pass: a token or a host is wrong. */
const FINAL = 'urn:punctual:problem:denied-too-often';
/** Errors of a connection that did not come about: nothing was done. */
const NOT_CONNECTED = new Set([
    'ECONNREFUSED',
    'ENOTFOUND',
    'EAI_AGAIN',
    'EHOSTUNREACH',
    'ENETUNREACH',
]);

export interface ClientOptions {
    token?: string;
    /** A file with the token. */
    tokenFile?: string;
    /** A file with the authorities to trust, in PEM. */
    caFile?: string;
    /** The time of one attempt in ms. */
    timeout?: number;
    /** The time for all attempts of a call in ms. */
    retryFor?: number;
}

interface Answer {
    status: number;
    retryAfter: number;
    body: { [member: string]: any };
    /** An attempt before this one may have been done. */
    wasLost: boolean;
}

/** A client of one node. It keeps its connections. */
export class Client {
    private readonly base: URL;
    private readonly agent: http.Agent;
    private readonly headers: { [name: string]: string };
    private readonly timeout: number;
    private readonly retryFor: number;

    constructor(url: string, options: ClientOptions = {}) {
        this.base = new URL(url);
        const token = options.tokenFile
            ? readFileSync(options.tokenFile, 'utf8').trim()
            : options.token;
        const isLocal = ['127.0.0.1', '[::1]', 'localhost'].includes(this.base.hostname);
        if (token && this.base.protocol !== 'https:' && !isLocal) {
            throw new TypeError('a token is sent over https:// only, or to this machine');
        }
        if (token && !/^[!-~]+$/.test(token)) {
            throw new TypeError('a token is one line of visible ASCII characters, without spaces');
        }
        this.headers = token ? { authorization: `Bearer ${token}` } : {};
        const ca = options.caFile ? { ca: readFileSync(options.caFile) } : {};
        this.agent =
            this.base.protocol === 'https:'
                ? new https.Agent({ keepAlive: true, ...ca })
                : new http.Agent({ keepAlive: true });
        this.timeout = options.timeout ?? 35_000;
        this.retryFor = options.retryFor ?? 30_000;
    }

    /**
     * Submits a task and returns it. A known name returns its first task: look at its `state`. A
     * task without a name gets a random one, so that its own repetitions make no second task.
     */
    async submit(task: Record & { topic: string; name?: string }): Promise<Task> {
        return successful(await this.call('POST', '/v1/tasks', named(task))) as Task;
    }

    /** Submits up to 10,000 tasks. Returns for each, in order, the task or its `Problem`. */
    async submitMany(
        tasks: (Record & { topic: string; name?: string })[],
    ): Promise<(Task | Problem)[]> {
        const results = await this.many('/v1/tasks/batch', 'tasks', tasks.map(named));
        return results.map((one) => (one.status < 300 ? one.task : new Problem(one.problem)));
    }

    /** Says that the work of a tracked task is done: no further attempt is made. */
    async finish(id: string, attempt?: number): Promise<Answered> {
        return this.answer(id, 'finish', { attempt });
    }

    /** Says that an attempt has failed. The next one follows. */
    async fail(id: string, attempt: number, failure: Failure = {}): Promise<Answered> {
        return this.answer(id, 'fail', { attempt, ...failure });
    }

    /** Moves the deadline to now plus `by`, or plus the time to run. */
    async extend(id: string, attempt: number, by?: Span): Promise<Answered> {
        return this.answer(id, 'extend', { attempt, by });
    }

    /** Answers for up to 10,000 attempts. Returns for each, in order, an answer or a `Problem`. */
    async outcomes(outcomes: Outcome[]): Promise<(Answered | Problem)[]> {
        const results = await this.many('/v1/outcomes', 'outcomes', outcomes.map(outcomeBody));
        return results.map((one) =>
            one.verdict === undefined ? new Problem(one.problem) : answered(one.status, one),
        );
    }

    /**
     * Creates the task of a name, or replaces a pending one, and returns the new task. A task on
     * its way is a `Problem` with the slug `too-late`, a condition that does not hold one with
     * `precondition-failed`. With a condition, the call is not repeated once it may have been done.
     */
    async replace(
        topic: string,
        name: string,
        record: Record,
        condition: ReplaceCondition = {},
    ): Promise<Task> {
        const target = path(topic, name) + conditionQuery(condition);
        // Once the task may be due, a repetition would schedule another one. With `when`, it would
        // compare the new task with itself.
        const safeFor = condition.when === undefined ? untilDue(record) : 0;
        const limits = { safeFor, condition };
        return successful(await this.call('PUT', target, bodyOf(record), limits)) as Task;
    }

    /** Returns the task of a name. */
    async get(topic: string, name: string): Promise<Task | undefined> {
        return this.look(path(topic, name));
    }

    async getById(id: string): Promise<Task | undefined> {
        return this.look(idPath(id));
    }

    /** Cancels the task of a name. The verdict says whether its record will ever exist. */
    async cancel(topic: string, name: string, condition: Condition = {}): Promise<Cancelled> {
        return this.cancelAt(path(topic, name), condition);
    }

    async cancelById(id: string, condition: Condition = {}): Promise<Cancelled> {
        return this.cancelAt(idPath(id), condition);
    }

    /**
     * Gives the pending task of a name another due time. The verdict says whether it has it. Id,
     * name and record stay. A delay counts from the attempt that is answered.
     */
    async move(topic: string, name: string, due: Due, condition: Condition = {}): Promise<Moved> {
        return this.moveAt(path(topic, name), due, condition);
    }

    async moveById(id: string, due: Due, condition: Condition = {}): Promise<Moved> {
        return this.moveAt(idPath(id), due, condition);
    }

    /**
     * Yields the dead letters, of one topic or of all, in the order of their due times. Each is a
     * task with its `reason`, without headers and payload.
     */
    deadLetters(topic?: string): AsyncGenerator<Task> {
        return this.pages('/v1/dead', { topic }, 'tasks', 'cursor', 'cursor');
    }

    /**
     * Makes a dead letter due now, in its topic or in another one. Returns the task, if there is
     * one.
     *
     * A task that is no dead letter (any more) is returned as it is: look at its `state`. It is
     * `dead` if the dead letter was dropped.
     */
    async redrive(id: string, toTopic?: string): Promise<Task | undefined> {
        const path = `/v1/dead/${encodeURIComponent(id)}/redrive`;
        const answer = await this.call('POST', path, { to_topic: toTopic });
        return (found(answer, 'task-not-found') as Task | undefined) ?? this.getById(id);
    }

    /**
     * Redrives all dead letters of a topic, or those of a range of due times. The count lacks those
     * of an attempt whose answer was lost. The call may be repeated. If it fails after some, they
     * are counted, and there are more. A dry run fails.
     */
    async redriveMany(topic: string, range: RedriveRange = {}): Promise<Redriven> {
        const body = {
            topic,
            due_from: range.dueFrom?.toISOString(),
            due_to: range.dueTo?.toISOString(),
            to_topic: range.toTopic,
            dry_run: range.dryRun ?? false,
        };
        let [count, since, pause] = [0, performance.now(), PAUSE_MIN];
        for (let cursor: string | null = null; ; ) {
            const part = { ...body, cursor };
            let answer: { [member: string]: any };
            try {
                answer = successful(await this.call('POST', '/v1/dead/redrive', part));
            } catch (failure) {
                if (count === 0 || body.dry_run) throw failure;
                return { count, hasMore: true };
            }
            const hasMoved = answer.cursor !== null && answer.cursor !== cursor;
            count += answer.redriven;
            cursor = answer.cursor;
            if (!answer.more || (body.dry_run && !hasMoved)) {
                return { count, hasMore: answer.more };
            }
            if (answer.redriven > 0 || hasMoved) {
                [since, pause] = [performance.now(), PAUSE_MIN];
                continue;
            }
            if (performance.now() - since + pause > this.retryFor) {
                return { count, hasMore: true };
            }
            await sleep(pause * (1 + Math.random() / 4));
            pause = Math.min(pause * 2, PAUSE_MAX);
        }
    }

    /** Returns a topic, if Kafka has it. */
    async getTopic(topic: string): Promise<Topic | undefined> {
        const answer = await this.call('GET', topicPath(topic));
        const body = found(answer, 'topic-not-found');
        return body && topicOf(body);
    }

    /**
     * Pauses a topic and returns it. From now on none of its tasks is claimed. Submits and cancels
     * are as before. Tasks that are `in_flight` may still be published. A topic that is paused
     * already keeps its reason.
     */
    async pauseTopic(topic: string, reason?: string): Promise<Topic> {
        return this.setTopic(topic, 'pause', reason);
    }

    /** Ends the pause of a topic and returns it. Overdue tasks are published now. */
    async resumeTopic(topic: string, reason?: string): Promise<Topic> {
        return this.setTopic(topic, 'resume', reason);
    }

    /**
     * Sets the whole policy of a topic, for the tasks to come, and returns the topic. To change one
     * member, give `{ ...topic.policy, spread: '10m' }`, and `ifMatch: topic.revision`.
     * `ifNoneMatch` with `*` is for a topic without a policy and without a pause.
     */
    async setPolicy(topic: string, policy: PolicyDraft, condition: Condition = {}): Promise<Topic> {
        const path = `${topicPath(topic)}/policy`;
        const answer = await this.call('PUT', path, policyBody(policy), { condition });
        return topicOf(successful(answer));
    }

    /** Takes the policy of a topic away, and returns the topic. */
    async deletePolicy(topic: string, condition: Condition = {}): Promise<Topic> {
        const path = `${topicPath(topic)}/policy`;
        return topicOf(successful(await this.call('DELETE', path, undefined, { condition })));
    }

    /**
     * Waits for tracked tasks of a topic and returns them, or none. Each goes to one caller of the
     * group: finish, fail or extend it. Tasks of a lost answer come again after their time to run.
     */
    async pop(topic: string, group: string, options: PopOptions = {}): Promise<PoppedTask[]> {
        const wait = span('wait', options.wait ?? '20s')!;
        const waited = milliseconds('wait', wait);
        if (waited === undefined) {
            throw new RangeError(`wait is ${wait}: give text in units such as '20s'`);
        }
        if (waited >= this.timeout) {
            throw new RangeError(`wait is ${wait}: give less than the timeout, ${this.timeout} ms`);
        }
        const body = { group, wait, max: options.max };
        const answer = await this.call('POST', `${topicPath(topic)}/pop`, body);
        return (successful(answer) as { tasks: PoppedTask[] }).tasks;
    }

    /** Has nodes POST each tracked task of a topic to a service. `isGenuine` checks who calls. */
    async setCallback(topic: string, callback: CallbackDraft): Promise<Callback> {
        const path = `${topicPath(topic)}/callback`;
        return successful(await this.call('PUT', path, callbackBody(callback))) as Callback;
    }

    /** Returns the callback of a topic, if there is one. */
    async getCallback(topic: string): Promise<Callback | undefined> {
        const answer = await this.call('GET', `${topicPath(topic)}/callback`);
        return found(answer, 'callback-not-found') as Callback | undefined;
    }

    /** Ends the callback of a topic. Returns it as it was, or undefined if there is none. */
    async deleteCallback(topic: string): Promise<Callback | undefined> {
        const answer = await this.call('DELETE', `${topicPath(topic)}/callback`);
        return found(answer, 'callback-not-found') as Callback | undefined;
    }

    /**
     * Creates a schedule, or replaces it as a whole, and returns it. With `ifNoneMatch` of `*`, it
     * only creates.
     */
    async setSchedule(
        topic: string,
        name: string,
        draft: ScheduleDraft,
        condition: Condition = {},
    ): Promise<Schedule> {
        const [path, body] = [schedulePath(topic, name), scheduleBody(draft)];
        return successful(await this.call('PUT', path, body, { condition })) as Schedule;
    }

    /** Checks a schedule without storing it. `next` has its first runs. */
    async previewSchedule(
        topic: string,
        name: string,
        draft: ScheduleDraft,
        runs = 5,
    ): Promise<Schedule> {
        const path = `${schedulePath(topic, name)}?dry_run=true&next=${runs}`;
        return successful(await this.call('PUT', path, scheduleBody(draft))) as Schedule;
    }

    /** Returns a schedule, with so many upcoming `runs` in `next`. */
    async getSchedule(topic: string, name: string, runs = 0): Promise<Schedule | undefined> {
        const query = runs === 0 ? '' : `?next=${runs}`;
        const answer = await this.call('GET', schedulePath(topic, name) + query);
        return found(answer, 'schedule-not-found') as Schedule | undefined;
    }

    /** Yields the schedules of a topic in the order of their names. */
    schedules(topic: string): AsyncGenerator<Schedule> {
        const path = `/v1/schedules/${encodeURIComponent(topic)}`;
        return this.pages(path, {}, 'schedules', 'after', 'next_after');
    }

    /** Pauses a schedule and returns it. Its runs that are not claimed are withdrawn. */
    async pauseSchedule(topic: string, name: string): Promise<Schedule> {
        return this.setPaused(topic, name, 'pause');
    }

    /** Ends the pause of a schedule and returns it. */
    async resumeSchedule(topic: string, name: string): Promise<Schedule> {
        return this.setPaused(topic, name, 'resume');
    }

    /**
     * Submits one more run, which is due now, and returns its task. It is not repeated once it may
     * have been done, because each call makes a run.
     */
    async triggerSchedule(topic: string, name: string): Promise<Task> {
        const path = `${schedulePath(topic, name)}/trigger`;
        const limits = { safeFor: 0 };
        return successful(await this.call('POST', path, undefined, limits)) as Task;
    }

    /**
     * Makes the runs of the past that were never made, due now. No run is made twice, so the call
     * may be repeated. Runs of an attempt whose answer was lost count as `already_made`.
     */
    async backfillSchedule(topic: string, name: string, range: BackfillRange): Promise<Backfilled> {
        const path = `${schedulePath(topic, name)}/backfill`;
        return successful(await this.call('POST', path, backfillBody(range))) as Backfilled;
    }

    /**
     * Deletes a schedule, and withdraws its runs that are not claimed. Returns the schedule as it
     * was, or undefined if there is none (any more).
     */
    async deleteSchedule(
        topic: string,
        name: string,
        condition: Condition = {},
    ): Promise<Schedule | undefined> {
        const path = schedulePath(topic, name);
        const answer = await this.call('DELETE', path, undefined, { condition });
        return found(answer, 'schedule-not-found') as Schedule | undefined;
    }

    /** Closes the connections that are kept. */
    close(): void {
        this.agent.destroy();
    }

    private async answer(id: string, call: string, body: object): Promise<Answered> {
        const answer = await this.call('POST', `${idPath(id)}/${call}`, outcomeBody(body));
        return answered(answer.status, answer.body);
    }

    /**
     * Makes a call with many parts. Repeats those that were not done, or perhaps. Once some parts
     * have their answer, a failure leaves the others with their problem.
     */
    private async many(path: string, member: string, bodies: object[]): Promise<any[]> {
        const results: any[] = new Array(bodies.length);
        let left = bodies.map((_, index) => index);
        const began = performance.now();
        for (let pause = PAUSE_MIN; left.length > 0; pause = Math.min(pause * 2, PAUSE_MAX)) {
            const body = { [member]: left.map((index) => bodies[index]) };
            let wasLost = false;
            let answer: { results: any[] };
            try {
                const answered = await this.call('POST', path, body);
                wasLost = answered.wasLost;
                answer = successful(answered) as { results: any[] };
            } catch (failure) {
                if (results[left[0]!] === undefined) throw failure;
                if (wasLost || (failure instanceof NoAnswer && failure.isUnknown)) {
                    const result = unknown(failure as Error);
                    left.forEach((index) => (results[index] = result));
                }
                break;
            }
            let wait = pause;
            left.forEach((index, place) => {
                let result = answer.results[place];
                if (REPEATED.includes(result.status)) {
                    const asked = 1000 * (result.problem.retry_after ?? 0);
                    wait = Math.max(wait, Math.min(asked, RETRY_AFTER_MAX));
                    // A refusal does not tell whether an earlier attempt was done.
                    if (wasPerhapsDone(results[index])) return;
                    if (wasLost && !wasPerhapsDone(result)) {
                        result = unknown(new Problem(result.problem));
                    }
                }
                results[index] = result;
            });
            left = left.filter((index) => REPEATED.includes(results[index].status));
            if (performance.now() - began + wait > this.retryFor) break;
            if (left.length > 0) await sleep(wait * (1 + Math.random() / 4));
        }
        return results;
    }

    private async look(path: string): Promise<Task | undefined> {
        return found(await this.call('GET', path), 'task-not-found') as Task | undefined;
    }

    private async moveAt(path: string, due: Due, condition: Condition): Promise<Moved> {
        // Once the task may be due, a repetition would say too_late of a move that was made.
        const limits = { safeFor: untilDue(due), condition };
        const { body } = await this.call('PATCH', path, bodyOf(due), limits);
        if (body.verdict === undefined) throw new Problem(body);
        return { verdict: body.verdict, ...(body.task && { task: body.task }) };
    }

    private async setTopic(topic: string, change: string, reason?: string): Promise<Topic> {
        const path = `${topicPath(topic)}/${change}`;
        return topicOf(successful(await this.call('POST', path, { reason })));
    }

    private async setPaused(topic: string, name: string, change: string): Promise<Schedule> {
        const path = `${schedulePath(topic, name)}/${change}`;
        return successful(await this.call('POST', path)) as Schedule;
    }

    /** Yields the members of a list, page by page. */
    private async *pages(
        path: string,
        query: { [parameter: string]: string | undefined },
        member: string,
        parameter: string,
        following: string,
    ): AsyncGenerator<any> {
        for (let next: string | null | undefined; next !== null; ) {
            const parameters = Object.entries({ ...query, [parameter]: next });
            const given = parameters.filter((one): one is [string, string] => !!one[1]);
            const text = new URLSearchParams(given).toString();
            const answer = successful(await this.call('GET', `${path}?${text}`));
            const page = answer as { [member: string]: any };
            yield* page[member];
            next = page[following];
        }
    }

    private async cancelAt(path: string, condition: Condition): Promise<Cancelled> {
        const { body } = await this.call('DELETE', path, undefined, { condition });
        if (body.verdict === undefined) throw new Problem(body);
        return { verdict: body.verdict, ...(body.task && { task: body.task }) };
    }

    /**
     * Repeats a request until it has an answer. Repeats what was not done (429, 503), and what may
     * have been done (no answer, other 5xx) if a repetition starts within `safeFor`.
     */
    private async call(
        method: string,
        path: string,
        body?: object,
        limits: { safeFor?: number; condition?: Condition } = {},
    ): Promise<Answer> {
        const text = body && JSON.stringify(body);
        const conditions = conditionHeaders(limits.condition ?? {});
        const headers: { [name: string]: string } = { ...this.headers, ...conditions };
        if (text !== undefined) {
            headers['content-type'] = 'application/json';
            headers['content-length'] = String(Buffer.byteLength(text));
        }
        // With a condition, a repetition could be refused because of what an earlier attempt has
        // done, and the problem would say that nothing was changed.
        const isConditional = Object.keys(conditions).length > 0;
        const safeFor = isConditional ? 0 : (limits.safeFor ?? Infinity);
        const began = performance.now();
        let isUnknown = false;
        for (let attempt = 0; ; attempt++) {
            let failure: Error & { code?: string };
            let asked = 0;
            let wasPerhapsDone: boolean;
            let isFinal = false;
            try {
                const answer = await this.attempt(method, path, headers, text);
                const isLast = !REPEATED.includes(answer.status) || answer.body.type === FINAL;
                const isOfProxy = answer.status >= 400 && answer.body.type === '';
                if (isLast && !(isUnknown && isOfProxy)) {
                    return { ...answer, wasLost: isUnknown };
                }
                // A refusal of a proxy does not tell whether an earlier attempt was done.
                isFinal = isLast;
                const problem = new Problem(answer.body);
                failure = problem;
                asked = Math.min(answer.retryAfter, RETRY_AFTER_MAX);
                wasPerhapsDone = answer.status >= 500 && !NOT_DONE.includes(problem.slug);
            } catch (error) {
                failure = error as Error & { code?: string };
                // A certificate does not become right by asking again.
                isFinal = /CERT|SIGNATURE|ISSUER|SELF_SIGNED|ALTNAME/.test(failure.code ?? '');
                wasPerhapsDone = !isFinal && !NOT_CONNECTED.has(failure.code ?? '');
            }
            isUnknown ||= wasPerhapsDone;
            const pause =
                Math.max(Math.min(PAUSE_MIN * 2 ** attempt, PAUSE_MAX), asked) *
                (1 + Math.random() / 4);
            const end = isUnknown ? Math.min(this.retryFor, safeFor) : this.retryFor;
            if (isFinal || performance.now() - began + pause > end) {
                throw new NoAnswer(
                    `${method} ${path}: ${failure.message || failure.code}`,
                    isUnknown,
                    failure,
                );
            }
            await sleep(pause);
        }
    }

    private attempt(
        method: string,
        path: string,
        headers: { [name: string]: string },
        text?: string,
    ): Promise<Answer> {
        const { request } = this.base.protocol === 'https:' ? https : http;
        const url = this.base.href.replace(/\/$/, '') + path;
        const signal = AbortSignal.timeout(this.timeout);
        return new Promise((resolve, reject) => {
            const sent = request(
                url,
                { method, headers, agent: this.agent, signal },
                (response) => {
                    const chunks: Buffer[] = [];
                    response.on('data', (chunk: Buffer) => chunks.push(chunk));
                    response.on('error', reject);
                    response.on('end', () => {
                        try {
                            const status = response.statusCode!;
                            const body = read(status, Buffer.concat(chunks).toString());
                            const retryAfter =
                                1000 * (Number(response.headers['retry-after']) || 0);
                            resolve({ status, retryAfter, body, wasLost: false });
                        } catch (error) {
                            reject(error);
                        }
                    });
                },
            );
            sent.on('error', reject);
            sent.end(text);
        });
    }
}

/** Tells of a part of a call whose last answer does not say whether it was done. */
function wasPerhapsDone(result?: { status: number; problem?: { [member: string]: any } }): boolean {
    if (!result?.problem || result.status < 500 || !REPEATED.includes(result.status)) return false;
    return !NOT_DONE.includes(new Problem(result.problem).slug);
}

function successful(answer: Answer): object {
    if (answer.status >= 300) throw new Problem(answer.body);
    return answer.body;
}

/** Returns the body of an answer, or undefined if that is this problem. */
function found(answer: Answer, slug: string): object | undefined {
    return answer.body.type === `urn:punctual:problem:${slug}` ? undefined : successful(answer);
}

function idPath(id: string): string {
    return `/v1/tasks/${encodeURIComponent(id)}`;
}

function schedulePath(topic: string, name: string): string {
    return `/v1/schedules/${encodeURIComponent(topic)}/${encodeURIComponent(name)}`;
}

function topicPath(topic: string): string {
    return `/v1/topics/${encodeURIComponent(topic)}`;
}

function path(topic: string, name: string): string {
    return `${topicPath(topic)}/tasks/${encodeURIComponent(name)}`;
}

function scheduleBody(draft: ScheduleDraft): object {
    const [timing, rest] = timed(draft);
    return { ...bodyOf(rest), ...timing };
}
