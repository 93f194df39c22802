/** Consumers without Kafka: tasks that a caller takes, and callbacks of services. */

import { type Span, span } from './span.js';

/** The limits of a pop. */
export interface PopOptions {
    /** How long to wait for the first task: `20s` unless given. Less than the `timeout`. */
    wait?: Span;
    /** The most tasks, up to 1,000: 1 unless given. */
    max?: number;
}

/** An attempt of a tracked task, with its record, as the API shows it. */
export interface PoppedTask {
    id: string;
    topic: string;
    /** The number of this attempt, for `finish`, `fail` and `extend`. */
    attempt: number;
    attempts_max: number;
    due_at: string;
    published_at: string;
    /** The task comes again afterwards. */
    finish_by: string;
    partition: number;
    offset: number;
    key?: string;
    headers?: { [name: string]: unknown };
    /** The record's value, if it is JSON. */
    payload?: unknown;
    payload_text?: string;
    payload_base64?: string;
    tombstone?: true;
    [member: string]: unknown;
}

/** The service to which nodes POST each tracked task of a topic. */
export interface CallbackDraft {
    url: string;
    headers?: { [name: string]: string };
    /** How long the service may take. */
    timeout?: Span;
    /** The most requests that wait for an answer. */
    concurrency?: number;
    maxPerSecond?: number;
    /** Nothing is sent. */
    paused?: boolean;
}

/** A callback as the API shows it, without the values of its headers. */
export interface Callback {
    topic: string;
    /** Another one after each change. */
    revision: number;
    url: string;
    header_names: string[];
    timeout: string;
    concurrency: number;
    max_per_second?: number;
    paused: boolean;
    /** Why a node has paused it. */
    pause_reason?: string;
    [member: string]: unknown;
}

/** Returns a callback as the API takes it. */
export function callbackBody({ timeout, maxPerSecond, ...same }: CallbackDraft): object {
    return { ...same, timeout: span('timeout', timeout), max_per_second: maxPerSecond };
}
