/** The reasons why a call fails. */

const PREFIX = 'urn:punctual:problem:';

/** A refused request. Nothing was done, and the same request is refused again. */
export class Problem extends Error {
    /**
     * The last part of the type, such as `unknown-topic`. Decide by it. Empty if a proxy has
     * refused the request.
     */
    readonly slug: string;
    readonly status: number;
    readonly detail: string;
    /** The wrong field, such as `due_at`. */
    readonly field: string | undefined;

    constructor(readonly body: { [member: string]: any }) {
        const slug = String(body.type ?? '').replace(PREFIX, '');
        super(`${slug || `status ${body.status}`}: ${body.detail}`);
        this.name = 'Problem';
        this.slug = slug;
        this.status = body.status ?? 0;
        this.detail = body.detail ?? '';
        this.field = body.field;
    }
}

/**
 * Returns the body of an answer. A 4xx of a proxy becomes a problem without a type. Any other
 * answer of a proxy does not say what was done, and is an error.
 */
export function read(status: number, text: string): { [member: string]: any } {
    let body: any;
    try {
        body = JSON.parse(text);
    } catch {
        // of a proxy
    }
    const isObject = typeof body === 'object' && body !== null && !Array.isArray(body);
    if (isObject && (status < 400 || String(body.type).startsWith(PREFIX))) return body;
    const detail = 'the answer is not of Punctual';
    if (status >= 400 && status < 500) return { detail, ...(isObject && body), type: '', status };
    throw new Error(`status ${status}: ${detail}`);
}

/** Returns the result of a part of a call that may have been done by an attempt that failed. */
export function unknown(failure: Error): object {
    const type = `${PREFIX}outcome-unknown`;
    return { status: 503, problem: { type, status: 503, detail: failure.message } };
}

/** No attempt got an answer in time. */
export class NoAnswer extends Error {
    /** @param isUnknown true if an attempt may have taken effect; false if nothing was done */
    constructor(
        message: string,
        readonly isUnknown: boolean,
        cause: unknown,
    ) {
        super(message, { cause });
        this.name = 'NoAnswer';
    }
}
