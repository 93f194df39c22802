/** For tests: a dev server, which is a node with a broker, and a clock that the test sets. */

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

import { Client } from './client.js';
import { Problem } from './problems.js';
import { type Span, span as checked } from './span.js';

/** In milliseconds. The server gives up on a task that it cannot publish for 10 seconds. */
const TIMEOUT = 60_000;

/** A record that was published. */
export interface PublishedRecord {
    key?: string;
    payload?: any;
    headers: { [name: string]: string };
}

/** Runs `punctual dev` until it is closed. */
export class DevServer {
    private constructor(
        private readonly process: ChildProcess,
        readonly url: string,
        readonly kafka: string,
    ) {}

    /**
     * Starts a server with topics (NAME:PARTITIONS). The program is that of PUNCTUAL_BIN by
     * default, otherwise `punctual` from the PATH.
     */
    static async start(
        topics: string[] = [],
        program = process.env.PUNCTUAL_BIN ?? 'punctual',
    ): Promise<DevServer> {
        const words = ['dev', '--port', '0', '--kafka-port', '0', '--json'];
        words.push(...topics.map((topic) => `--topic=${topic}`));
        const variables = Object.entries(process.env);
        const env = Object.fromEntries(
            variables.filter(([name]) => !name.startsWith('PUNCTUAL_')),
        );
        const child = spawn(program, words, { env, stdio: ['ignore', 'pipe', 'inherit'] });
        const lines = createInterface(child.stdout);
        const ended = once(child, 'exit').then(
            ([code]) => {
                throw new Error(`punctual dev has ended with ${code}: its errors are above`);
            },
            (error) => {
                if (error.code !== 'ENOENT') throw error;
                const advice = 'set PUNCTUAL_BIN, or give the program to DevServer.start';
                throw new Error(`no program \`${program}\` on the PATH; ${advice}`);
            },
        );
        const [line] = await Promise.race([once(lines, 'line'), ended]);
        ended.catch(() => {}); // its end later is no failure
        const places = JSON.parse(line);
        return new DevServer(child, places.url, places.kafka);
    }

    client(): Client {
        return new Client(this.url);
    }

    /** Lets time pass. Returns when every task that is due until then is published. */
    async advance(span: Span): Promise<void> {
        const headers = { 'content-type': 'application/json' };
        const body = JSON.stringify({ advance: checked('advance', span) });
        await this.send('/dev/clock', { method: 'POST', headers, body });
    }

    /** Returns the records of a topic, in order. */
    async published(topic: string): Promise<PublishedRecord[]> {
        const answer = await this.send(`/dev/published?topic=${encodeURIComponent(topic)}`, {});
        return (answer as { records: PublishedRecord[] }).records;
    }

    async close(): Promise<void> {
        const ended = once(this.process, 'exit');
        this.process.kill();
        await ended;
    }

    private async send(path: string, request: RequestInit): Promise<unknown> {
        const signal = AbortSignal.timeout(TIMEOUT);
        const answer = await fetch(this.url + path, { ...request, signal });
        const body = await answer.json();
        if (!answer.ok) throw new Problem(body as { [member: string]: unknown });
        return body;
    }
}
