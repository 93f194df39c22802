/** For consumers: which task a record belongs to, and handling each task once. */

import { createHmac, timingSafeEqual } from 'node:crypto';

/** The header with the id of the task. */
export const TASK_ID = 'punctual-task-id';
/** The header with the due time in milliseconds since the epoch. */
export const DUE_AT = 'punctual-due-at';

/** The header with the number of the attempt. Only records of tracked tasks have it. */
export const ATTEMPT = 'punctual-attempt';

/** The header with the signature of a callback. */
export const SIGNATURE = 'punctual-signature';

/** Nodes take no shorter key. */
const KEY_BYTES_MIN = 24;

/** The headers of a record, as kafkajs and confluent-kafka-javascript have them. */
type Headers = { [name: string]: Buffer | string | (Buffer | string)[] | undefined } | undefined;

/** Returns the id of the task of a record. */
export function taskId(headers: Headers): string | undefined {
    return text(headers, TASK_ID);
}

/** Returns the due time of a record. */
export function dueAt(headers: Headers): Date | undefined {
    const millis = text(headers, DUE_AT);
    return millis === undefined ? undefined : new Date(Number(millis));
}

/** Returns the number of the attempt of a tracked task. */
export function attempt(headers: Headers): number | undefined {
    const number = text(headers, ATTEMPT);
    return number === undefined ? undefined : Number(number);
}

/**
 * Returns whether a node with one of these keys has sent the request of a callback. The keys are
 * the lines of the node's file, the signature is the header, the topic is the one whose tasks the
 * service takes, and the body is the bytes of the request. A signature older than `maxAge` seconds
 * is not genuine.
 */
export function isGenuine(
    keys: string[],
    signature: string | undefined,
    topic: string,
    body: Uint8Array,
    maxAge = 300,
): boolean {
    const parts = (signature ?? '').split(',').map((part) => part.split('='));
    const seconds = parts.find(([name]) => name === 't')?.[1] ?? '';
    const age = Math.abs(Date.now() / 1000 - Number(seconds));
    if (!/^[0-9]+$/.test(seconds) || age > maxAge) return false;
    const digests = secretsOf(keys).map((secret) => {
        const mac = createHmac('sha256', secret);
        return mac.update(`${seconds}\n${topic}\n`).update(body).digest();
    });
    const given = parts
        .filter(([name]) => name === 'v1')
        .map(([, value]) => Buffer.from(value ?? '', 'hex'))
        .filter((value) => value.length === 32);
    return digests.some((digest) => given.some((value) => timingSafeEqual(digest, value)));
}

/** Returns the keys of a file's lines. Anybody could sign with an empty line or a comment. */
function secretsOf(lines: string[]): Buffer[] {
    return lines
        .map((line) => line.trim())
        .filter((line) => /^[A-Za-z0-9+/]+={0,2}$/.test(line))
        .map((line) => Buffer.from(line, 'base64'))
        .filter((secret) => secret.length >= KEY_BYTES_MIN);
}

function text(headers: Headers, name: string): string | undefined {
    const value = headers?.[name];
    return (Array.isArray(value) ? value.at(-1) : value)?.toString();
}

/**
 * Runs the work of each task once, for duplicates that arrive soon after the first record.
 *
 * It remembers tasks in memory, in this process. For exactly one effect, store the id of the task
 * in the transaction of the work (docs/start/first-consumer.md).
 */
export class Once {
    private readonly seen = new Set<string>();

    constructor(private readonly remembered = 100_000) {}

    /**
     * Runs the work unless this task's work has succeeded before. Returns whether it ran. Work that
     * throws is not remembered.
     */
    async run(headers: Headers, work: () => Promise<void> | void): Promise<boolean> {
        const task = taskId(headers);
        if (task !== undefined && this.seen.has(task)) return false;
        await work();
        if (task !== undefined) this.seen.add(task);
        if (this.seen.size > this.remembered) this.seen.delete(this.seen.values().next().value!);
        return true;
    }
}
