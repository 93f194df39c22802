// Parses answers with a generated client and writes them again: parse.js FILE. All members must
// be the same afterwards. Prints the number of parsed answers.
import { deepStrictEqual } from 'node:assert';
import { readFileSync } from 'node:fs';
import * as models from './client/models/index';

const functions = models as unknown as Record<string, (value: unknown) => unknown>;

/** Returns the part of `value` that has the members of `wanted`; a null may be left out. */
function part(value: any, wanted: any): unknown {
    if (Array.isArray(wanted)) return wanted.map((item, index) => part(value?.[index], item));
    if (wanted === null) return value ?? null;
    if (typeof wanted !== 'object') return value;
    return Object.fromEntries(
        Object.keys(wanted).map((name) => [name, part(value?.[name], wanted[name])]),
    );
}

let count = 0;
for (const line of readFileSync(process.argv[2], 'utf8')
    .split('\n')
    .filter((line) => line !== '')) {
    const { schema, answer } = JSON.parse(line);
    const parsed = functions[`${schema}FromJSON`](answer);
    if (!functions[`instanceOf${schema}`](parsed)) throw new Error(`no ${schema}: ${line}`);
    deepStrictEqual(part(functions[`${schema}ToJSON`](parsed), answer), answer, line);
    count++;
}
console.log(count);
