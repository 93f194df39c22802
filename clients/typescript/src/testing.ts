/** For tests: a Punctual of their own, with a broker and a clock that a test sets. */

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

import { Client } from './client.js';

/** Runs `punctual dev` until it is closed. */
export class DevServer {
    private constructor(private readonly process: ChildProcess, readonly url: string, readonly kafka: string) {}

    /** The program is that of PUNCTUAL_BIN, or `punctual` on the PATH. */
    static async start(topics: string[] = [], program = process.env.PUNCTUAL_BIN ?? 'punctual'): Promise<DevServer> {
        const words = ['dev', '--port', '0', '--kafka-port', '0', '--json', ...topics.map((topic) => `--topic=${topic}`)];
        const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('PUNCTUAL_')));
        const child = spawn(program, words, { env, stdio: ['ignore', 'pipe', 'inherit'] });
        const lines = createInterface(child.stdout);
        const ended = once(child, 'exit').then(([code]) => {
            throw new Error(`punctual dev has ended with ${code}`);
        });
        const [line] = await Promise.race([once(lines, 'line'), ended]);
        ended.catch(() => {}); // its end later is no failure
        const told = JSON.parse(line);
        return new DevServer(child, told.url, told.kafka);
    }

    client(): Client {
        return new Client(this.url);
    }

    /** Lets milliseconds pass. Returns when all that is due until then is published. */
    async advance(milliseconds: number): Promise<void> {
        const body = JSON.stringify({ advance: `${milliseconds}ms` });
        const headers = { 'content-type': 'application/json' };
        const answer = await fetch(`${this.url}/dev/clock`, { method: 'POST', headers, body });
        if (!answer.ok) throw new Error(await answer.text());
    }

    /** Returns the records of a topic, in order. */
    async published(topic: string): Promise<{ key?: string; payload?: any; headers: { [name: string]: string } }[]> {
        const answer = await fetch(`${this.url}/dev/published?topic=${encodeURIComponent(topic)}`);
        if (!answer.ok) throw new Error(await answer.text());
        return ((await answer.json()) as { records: any[] }).records;
    }

    async close(): Promise<void> {
        const ended = once(this.process, 'exit');
        this.process.kill();
        await ended;
    }
}
