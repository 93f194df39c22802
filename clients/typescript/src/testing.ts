/** For tests: a dev server, which is a node with a broker, and a clock that the test sets. */

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import { createInterface } from 'node:readline';

import { Client } from './client.js';
import { Problem } from './problems.js';
import { type Span, span as checked } from './span.js';

/** In milliseconds. The server answers after 10 minutes at the latest. */
const TIMEOUT = 610_000;

/** A record that was published. */
export interface PublishedRecord {
    key?: string;
    /** A key that is not UTF-8. */
    key_base64?: string;
    payload?: any;
    /** Text that is not JSON. */
    payload_text?: string;
    payload_base64?: string;
    tombstone?: boolean;
    /** A value that is not UTF-8 is in base64. */
    headers: { [name: string]: string | { base64: string } };
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
        await this.send('/dev/clock', { method: 'POST', headers }, body);
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

    /** `fetch` waits for five minutes at most. */
    private async send(
        path: string,
        request: http.RequestOptions,
        text?: string,
    ): Promise<{ [member: string]: any }> {
        const signal = AbortSignal.timeout(TIMEOUT);
        const sent = http.request(this.url + path, { ...request, signal }).end(text);
        const [response] = (await once(sent, 'response')) as [http.IncomingMessage];
        const chunks: Buffer[] = [];
        for await (const chunk of response) chunks.push(chunk);
        const body = JSON.parse(Buffer.concat(chunks).toString());
        if (response.statusCode !== 200) throw new Problem(body);
        return body;
    }
}
