/** The client: submit, replace, look up, cancel; and finish, fail, extend. */

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';

import { type Answered, type Failure, type Outcome, answered, outcomeBody } from './outcomes.js';
import { NoAnswer, Problem } from './problems.js';
import { type Span, milliseconds, noBytes, span } from './span.js';

const [PAUSE_MIN, PAUSE_MAX, RETRY_AFTER_MAX] = [100, 5_000, 60_000];
/** Statuses of calls, and of parts of them, that were not done, or perhaps: they are repeated. */
const REPEATED = [408, 429, 500, 503];
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

interface Answer {
    status: number;
    retryAfter: number;
    body: { [member: string]: any };
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
     * Creates the task of a name, or replaces a pending one. A task on its way is a `Problem` with
     * the slug `too-late`.
     */
    async replace(topic: string, name: string, record: Record): Promise<Task> {
        // Once the task may be due, a repetition would schedule another one.
        const untilDue = record.dueAt ? record.dueAt.getTime() - Date.now() : 0;
        const safeFor =
            record.delay === undefined ? untilDue : milliseconds('delay', record.delay);
        return successful(
            await this.call('PUT', path(topic, name), bodyOf(record), safeFor),
        ) as Task;
    }

    /** Returns the task of a name. */
    async get(topic: string, name: string): Promise<Task | undefined> {
        return this.look(path(topic, name));
    }

    async getById(id: string): Promise<Task | undefined> {
        return this.look(`/v1/tasks/${encodeURIComponent(id)}`);
    }

    /** Cancels the task of a name. The verdict says whether its record will ever exist. */
    async cancel(topic: string, name: string): Promise<Cancelled> {
        return this.cancelAt(path(topic, name));
    }

    async cancelById(id: string): Promise<Cancelled> {
        return this.cancelAt(`/v1/tasks/${encodeURIComponent(id)}`);
    }

    /** Closes the connections that are kept. */
    close(): void {
        this.agent.destroy();
    }

    private async answer(id: string, call: string, body: object): Promise<Answered> {
        const path = `/v1/tasks/${encodeURIComponent(id)}/${call}`;
        const answer = await this.call('POST', path, outcomeBody(body));
        return answered(answer.status, answer.body);
    }

    /** Makes a call with many parts. Repeats those that were not done, or perhaps. */
    private async many(path: string, member: string, bodies: object[]): Promise<any[]> {
        const results: any[] = new Array(bodies.length);
        let left = bodies.map((_, index) => index);
        const began = performance.now();
        for (let pause = PAUSE_MIN; left.length > 0; pause = Math.min(pause * 2, PAUSE_MAX)) {
            const body = { [member]: left.map((index) => bodies[index]) };
            const answer = successful(await this.call('POST', path, body)) as { results: any[] };
            left.forEach((index, place) => (results[index] = answer.results[place]));
            left = left.filter((index) => REPEATED.includes(results[index].status));
            if (performance.now() - began + pause > this.retryFor) break;
            if (left.length > 0) await sleep(pause * (1 + Math.random() / 4));
        }
        return results;
    }

    private async look(path: string): Promise<Task | undefined> {
        const answer = await this.call('GET', path);
        if (answer.body.type === 'urn:punctual:problem:task-not-found') return undefined;
        return successful(answer) as Task;
    }

    private async cancelAt(path: string): Promise<Cancelled> {
        const { body } = await this.call('DELETE', path);
        if (body.verdict === undefined) throw new Problem(body);
        return { verdict: body.verdict, ...(body.task && { task: body.task }) };
    }

    /**
     * Repeats a request until it has an answer. Repeats what was not done (429, 503), and what may
     * have been done (no answer, 500, `outcome-unknown`) if a repetition starts within `safeFor`.
     */
    private async call(
        method: string,
        path: string,
        body?: object,
        safeFor = Infinity,
    ): Promise<Answer> {
        const text = body && JSON.stringify(body);
        const began = performance.now();
        let isUnknown = false;
        for (let attempt = 0; ; attempt++) {
            let failure: Error & { code?: string };
            let asked = 0;
            let wasPerhapsDone: boolean;
            let isFinal = false;
            try {
                const answer = await this.attempt(method, path, text);
                if (!REPEATED.includes(answer.status)) return answer;
                const problem = new Problem(answer.body);
                failure = problem;
                asked = Math.min(answer.retryAfter, RETRY_AFTER_MAX);
                wasPerhapsDone = ['outcome-unknown', 'internal'].includes(problem.slug);
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

    private attempt(method: string, path: string, text?: string): Promise<Answer> {
        const { request } = this.base.protocol === 'https:' ? https : http;
        const headers =
            text === undefined
                ? this.headers
                : {
                      ...this.headers,
                      'content-type': 'application/json',
                      'content-length': Buffer.byteLength(text),
                  };
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
                            const body = JSON.parse(Buffer.concat(chunks).toString());
                            const retryAfter =
                                1000 * (Number(response.headers['retry-after']) || 0);
                            resolve({ status: response.statusCode!, retryAfter, body });
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

function successful(answer: Answer): object {
    if (answer.status >= 300) throw new Problem(answer.body);
    return answer.body;
}

function path(topic: string, name: string): string {
    return `/v1/topics/${encodeURIComponent(topic)}/tasks/${encodeURIComponent(name)}`;
}

function named(task: Record & { topic: string; name?: string }): object {
    const { topic, name, ...record } = task;
    return { topic, name: name ?? `client-${randomUUID()}`, ...bodyOf(record) };
}

function bodyOf(record: Record): object {
    const { dueAt, expiresAt, keyBase64, payloadText, payloadBase64, ...others } = record;
    const { delay, ttr, retry, ...same } = others;
    noBytes(others.payload);
    return {
        ...same,
        retry: retry && {
            attempts_max: retry.attemptsMax,
            backoff_min: span('backoffMin', retry.backoffMin),
            backoff_max: span('backoffMax', retry.backoffMax),
            backoff_factor: retry.backoffFactor,
            dead_topic: retry.deadTopic,
        },
        delay: span('delay', delay),
        ttr: span('ttr', ttr),
        due_at: dueAt?.toISOString(),
        expires_at: expiresAt?.toISOString(),
        key_base64: keyBase64,
        payload_text: payloadText,
        payload_base64: payloadBase64,
    };
}
