/** Lengths of time, and the members of a task that are none of JSON. */

/** A length of time: text with a unit, such as `'5s'`, `'1h 30m'` or `'PT30M'`. */
export type Span = string;

const MILLISECONDS: { [unit: string]: number } = {
    ms: 1,
    s: 1_000,
    m: 60_000,
    h: 3_600_000,
    d: 86_400_000,
    w: 604_800_000,
};

/** Throws unless a member is a length of time, or missing. A bare number has no unit. */
export function span(member: string, value: Span | undefined): Span | undefined {
    if (value === undefined || typeof value === 'string') return value;
    throw new TypeError(`${member} is ${value}: give text with a unit such as '5s'`);
}

/**
 * Returns a length of time in milliseconds. Returns undefined for text that only a node can read,
 * such as `'PT30M'`.
 */
export function milliseconds(member: string, value: Span): number | undefined {
    const text = span(member, value)!;
    if (!/^(\s*\d+\s*(ms|[smhdw])(?![a-z]))+$/.test(text)) return undefined;
    const parts = [...text.matchAll(/(\d+)\s*([a-z]+)/g)];
    return parts.reduce((sum, part) => sum + Number(part[1]) * MILLISECONDS[part[2]!]!, 0);
}

/** Throws for members that an object does not have, such as `delay_max` for `delayMax`. */
export function noOthers(owner: string, unknown: object): void {
    const [name] = Object.keys(unknown);
    if (name !== undefined) throw new TypeError(`${owner} has no member ${name}`);
}

/** Throws for bytes, which JSON would show as an object of numbers. */
export function noBytes(payload: unknown): void {
    if (payload instanceof ArrayBuffer || ArrayBuffer.isView(payload)) {
        throw new TypeError(
            "bytes are not JSON: give payloadBase64: Buffer.from(data).toString('base64') " +
                'in place of payload',
        );
    }
}
