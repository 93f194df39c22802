// The story of every client (tests/integration/clients.rs), and the rules that need no node.

import assert from 'node:assert/strict';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';

import {
    ATTEMPT,
    type Answered,
    type BackfillRange,
    Client,
    type Condition,
    DUE_AT,
    DevServer,
    NoAnswer,
    Once,
    type PolicyDraft,
    type PoppedTask,
    Problem,
    type RetryPolicy,
    TASK_ID,
    type Task,
    attempt,
    dueAt,
    isGenuine,
    taskId,
} from '../src/index.js';
import { milliseconds } from '../src/span.js';

const HOUR = '1h';
const topic = process.env.PUNCTUAL_TOPIC ?? '';
const skip = topic === '' && 'needs a node: tests/integration/clients.rs starts one';
const client = new Client(process.env.PUNCTUAL_URL ?? 'http://127.0.0.1:1');
const isUnmet = (problem: Problem) => problem.status === 412;
const losing = new Client(process.env.PUNCTUAL_LOSING_URL ?? 'http://127.0.0.1:1');

/**
 * Starts a server that answers all requests alike, except that `first` is the status of the first
 * answer. Returns a client of it, and the requests.
 */
async function answering(context: TestContext, status: number, text: string, first = status) {
    const requests: string[] = [];
    const server = http.createServer((request, response) => {
        requests.push(`${request.method} ${request.url}`);
        response.writeHead(requests.length === 1 ? first : status).end(text);
    });
    await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
    const { port } = server.address() as AddressInfo;
    const client = new Client(`http://127.0.0.1:${port}`, { retryFor: 2_000 });
    context.after(() => {
        client.close();
        server.close();
    });
    return { client, requests };
}

test('a submit whose answers are lost makes one task', { skip }, async () => {
    const name = 'a name/with ü';
    const task = await losing.submit({
        topic,
        name,
        key: 'named',
        payload: { order: 1 },
        delay: HOUR,
    });
    assert.equal(task.state, 'scheduled');
    const again = await client.submit({
        topic,
        name,
        key: 'other',
        payload: { order: 2 },
        delay: HOUR,
    });
    assert.equal(again.id, task.id);
    const due = new Date(Date.now() + 3_600_000);
    await losing.submit({
        topic,
        key: 'unnamed',
        payload: null,
        dueAt: due,
        headers: { source: 'tests' },
    });
});

test('a replacement whose answers are lost leaves one task', { skip }, async () => {
    const first = await client.submit({
        topic,
        name: 'order-2',
        key: 'first',
        payload: 1,
        delay: HOUR,
    });
    const task = await losing.replace(topic, 'order-2', {
        key: 'replaced',
        payload: 2,
        delay: HOUR,
    });
    assert.equal((await client.get(topic, 'order-2'))?.id, task.id);
    assert.equal((await client.cancelById(first.id)).verdict, 'replaced');
});

test('verdicts are values', { skip }, async () => {
    await client.submit({ topic, name: 'order-3', payloadText: '3', delay: HOUR });
    const cancelled = await losing.cancel(topic, 'order-3');
    assert.deepEqual([cancelled.verdict, cancelled.task?.state], ['cancelled', 'cancelled']);
    assert.equal((await client.cancel(topic, 'nobody')).verdict, 'not_found');
    assert.equal(await client.get(topic, 'nobody'), undefined);
    let task = await client.submit({ topic, name: 'order-4', payload: 4, delay: '0s' });
    while (task.state !== 'published') task = (await client.getById(task.id))!;
    assert.ok(task.receipt!.offset >= 0);
    assert.equal((await client.cancelById(task.id)).verdict, 'too_late');
});

test('a consumer answers for its attempts', { skip }, async () => {
    const retry = { attemptsMax: 3, backoffMin: '1s' };
    const tracked = { topic, name: 'order-6', payload: 6, delay: '0s', ttr: HOUR, retry };
    const other = { topic: 'no-such-topic', payload: 1, delay: '0s' };
    const [task, refused] = await losing.submitMany([tracked, other]);
    assert.equal((refused as Problem).slug, 'unknown-topic');
    const { id } = task as Task;
    while ((await client.getById(id))?.state !== 'awaiting');
    const failed = await losing.fail(id, 1, { reason: 'out of stock', retryIn: HOUR });
    assert.deepEqual([failed.verdict, failed.tookEffect], ['retrying', true]);
    const late = await client.extend(id, 1, HOUR);
    assert.deepEqual([late.verdict, late.tookEffect], ['already_failed', false]);
    const absent = '01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f';
    const answers = await losing.outcomes([
        { outcome: 'finish', topic, name: 'order-6' },
        { outcome: 'fail', id: absent, attempt: 1, retryAt: new Date() },
    ]);
    const verdicts = answers.map((answer) => (answer as Answered).verdict);
    assert.deepEqual(verdicts, ['finished', 'not_found']);
    assert.equal((await client.finish(id, 1)).task?.state, 'finished');
    await assert.rejects(client.fail(id, 0), (problem: Problem) => problem.field === 'attempt');
});

test('a popped task is finished', { skip }, async () => {
    const draft = { topic, key: 'popped', payload: { order: 11 }, delay: '0s' };
    const task = await client.submit({ ...draft, ttr: HOUR });
    let popped: PoppedTask[] = [];
    while (!popped.some(({ id }) => id === task.id)) {
        popped = await client.pop(topic, 'typescript', { wait: '5s', max: 100 });
    }
    const { attempt, key, payload, finish_by } = popped.find(({ id }) => id === task.id)!;
    assert.deepEqual([attempt, key, payload], [1, 'popped', { order: 11 }]);
    assert.ok(Date.parse(finish_by) > Date.now() + 1_800_000);
    assert.equal((await client.finish(task.id, attempt)).verdict, 'finished');
    assert.deepEqual(await client.pop(topic, 'typescript', { wait: '0s' }), []);
});

test('a callback is set and deleted', { skip }, async () => {
    assert.equal(await client.getCallback(topic), undefined);
    const url = 'https://jobs.example.com/orders';
    const headers = { authorization: 'secret' };
    const made = await client.setCallback(topic, { url, headers, timeout: '5s', paused: true });
    assert.deepEqual([made.timeout, made.paused], ['5s', true]);
    const known = await client.getCallback(topic);
    assert.deepEqual([known, known?.header_names], [made, ['authorization']]);
    assert.deepEqual(await client.deleteCallback(topic), known);
    assert.equal(await client.deleteCallback(topic), undefined);
    const refused = client.setCallback(topic, { url: 'https://example.org/' });
    await assert.rejects(refused, (problem: Problem) => problem.field === 'url');
});

test('a move whose answers are lost moves the task', { skip }, async () => {
    const task = await client.submit({ topic, name: 'order-7', payload: 7, delay: HOUR });
    const first = await losing.move(topic, 'order-7', { delay: '2h' });
    assert.deepEqual([first.verdict, first.task?.id], ['moved', task.id]);
    const due = { dueAt: new Date('2030-01-31T09:30:00Z') };
    const moved = await client.moveById(task.id, due);
    assert.equal(moved.task?.due_at, '2030-01-31T09:30:00.000Z');
    await client.replace(topic, 'order-7', { payload: 8, delay: HOUR });
    assert.equal((await client.moveById(task.id, due)).verdict, 'replaced');
    await client.cancel(topic, 'order-7');
    const late = await client.move(topic, 'order-7', due);
    assert.deepEqual([late.verdict, late.task?.state], ['too_late', 'cancelled']);
    assert.deepEqual(await client.move(topic, 'nobody', due), { verdict: 'not_found' });
    const both = client.move(topic, 'order-7', { ...due, delay: HOUR });
    await assert.rejects(both, (problem: Problem) => problem.slug === 'conflicting-fields');
});

test('a move of a task that may be due is not repeated', { skip }, async () => {
    await client.submit({ topic, name: 'order-8', payload: 8, delay: HOUR });
    await assert.rejects(
        losing.move(topic, 'order-8', { delay: '0s' }),
        (failure: NoAnswer) => failure instanceof NoAnswer && failure.isUnknown,
    );
});

test('a change is made only under its condition', { skip }, async () => {
    const other = '01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f';
    const name = 'order-12';
    const draft = { payload: 1, delay: HOUR };
    const { id } = await client.replace(topic, name, draft, { ifNoneMatch: '*' });
    const dueAt = new Date(Date.now() + 7_200_000);
    const refused = [
        () => client.replace(topic, name, draft, { ifNoneMatch: '*' }),
        () => client.replace(topic, name, draft, { when: 'absent' }),
        () => client.replace(topic, name, { payload: 2, dueAt }, { when: 'earlier' }),
        () => client.replace(topic, name, draft, { ifMatch: [other] }),
        () => client.move(topic, name, { delay: HOUR }, { ifMatch: other }),
        () => client.cancel(topic, name, { ifNoneMatch: [other, id] }),
    ];
    for (const call of refused) {
        await assert.rejects(call, (problem: Problem) => {
            assert.deepEqual([problem.slug, problem.body.current_id], ['precondition-failed', id]);
            return true;
        });
    }
    await assert.rejects(client.cancelById(id, { ifMatch: other }), isUnmet);
    await assert.rejects(client.moveById(id, { delay: HOUR }, { ifMatch: other }), isUnmet);
    const moved = await client.move(topic, name, { delay: HOUR }, { ifMatch: [other, id] });
    assert.equal(moved.verdict, 'moved');
    const later = { when: 'later', notAfter: dueAt } as const;
    const second = await client.replace(topic, name, { payload: 2, delay: '3h' }, later);
    assert.ok(Date.parse(second.due_at) < dueAt.getTime() + 1_000);
    const cancelled = await client.cancel(topic, name, { ifMatch: second.id, ifNoneMatch: id });
    assert.equal(cancelled.verdict, 'cancelled');
});

test('a call with a condition is not repeated once it may be done', { skip }, async () => {
    const [name, payload] = ['order-13', 1];
    const calls = [
        () => losing.replace(topic, name, { payload, delay: HOUR }, { ifNoneMatch: '*' }),
        () => losing.replace(topic, name, { payload, delay: '2h' }, { when: 'later' }),
        () => losing.move(topic, name, { delay: HOUR }, { ifMatch: '*' }),
        () => losing.cancel(topic, name, { ifMatch: '*' }),
    ];
    for (const call of calls) {
        await assert.rejects(
            call,
            (failure: NoAnswer) => failure instanceof NoAnswer && failure.isUnknown,
        );
    }
    assert.equal((await client.get(topic, name))?.state, 'cancelled');
});

test('a dead letter is redriven once', { skip }, async () => {
    const ids: string[] = [];
    for (const name of ['order-9', 'order-10']) {
        const { id } = await client.submit({ topic, name, payload: 9, delay: '0s', ttr: HOUR });
        while ((await client.getById(id))?.state !== 'awaiting');
        await client.fail(id, 1, { reason: 'out of stock', final: true });
        ids.push(id);
    }
    let dead: Task[] = [];
    while (dead.length < 2) {
        dead = [];
        for await (const task of client.deadLetters(topic)) dead.push(task);
    }
    assert.deepEqual(
        dead.map((task) => task.id),
        ids,
    );
    assert.match(String(dead[0]!.reason), /out of stock/);
    assert.equal((await losing.redrive(ids[0]!))?.id, ids[0]);
    while ((await client.getById(ids[0]!))?.state !== 'awaiting');
    const one = { count: 1, hasMore: false };
    assert.deepEqual(await client.redriveMany(topic, { dryRun: true }), one);
    const early = { dueTo: new Date('2020-01-01T00:00:00Z') };
    assert.equal((await client.redriveMany(topic, early)).count, 0);
    const toTopic = 'no-such-topic';
    const isUnknown = (problem: Problem) => problem.slug === 'unknown-topic';
    await assert.rejects(client.redrive(ids[1]!, toTopic), isUnknown);
    await assert.rejects(client.redriveMany(topic, { toTopic }), isUnknown);
    assert.deepEqual(await client.redriveMany(topic), one);
    assert.equal(await client.redrive('01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f'), undefined);
    for (const id of ids) {
        while ((await client.getById(id))?.state !== 'awaiting');
        await client.finish(id);
    }
});

test('a pause whose answers are lost pauses the topic', { skip }, async (context) => {
    context.after(() => client.resumeTopic(topic));
    const { paused } = await losing.pauseTopic(topic, 'the consumer fails');
    assert.equal(paused?.reason, 'the consumer fails');
    assert.ok(Math.abs(Date.now() - Date.parse(paused.since)) < 300_000);
    assert.deepEqual((await client.getTopic(topic))?.paused, paused);
    const task = await client.submit({ topic, payload: 11, delay: '0s' });
    assert.equal((await client.cancelById(task.id)).verdict, 'cancelled');
    assert.equal((await losing.resumeTopic(topic)).paused, undefined);
    assert.equal(await client.getTopic('no-such-topic'), undefined);
    await assert.rejects(
        client.pauseTopic('no-such-topic'),
        (problem: Problem) => problem.slug === 'unknown-topic',
    );
});

test('a schedule whose answers are lost is there once', { skip }, async () => {
    const name = 'a schedule/with ü';
    const startsAt = new Date('2030-01-31T09:30:00Z');
    const draft = { every: HOUR, phase: '30m', startsAt, payload: { do: 'poll' } };
    const made = await losing.setSchedule(topic, name, draft);
    assert.deepEqual([made.revision, made.next_run_at], [1, startsAt.toISOString()]);
    assert.deepEqual(made.payload, { do: 'poll' });
    assert.equal((await losing.pauseSchedule(topic, name)).paused, true);
    assert.equal((await losing.resumeSchedule(topic, name)).paused, false);
    await assert.rejects(
        losing.triggerSchedule(topic, name),
        (failure: NoAnswer) => failure instanceof NoAnswer && failure.isUnknown,
    );
    // An attempt without an answer has deleted it.
    assert.equal(await losing.deleteSchedule(topic, name), undefined);
    assert.equal(await client.getSchedule(topic, name), undefined);
});

test('the error of a gateway does not tell what was done', { skip }, async () => {
    const url = process.env.PUNCTUAL_LOSING_URL;
    const stalled = new Client(`${url}/stalled`, { timeout: 1_000, retryFor: 0 });
    for (const one of [new Client(`${url}/gateway`), stalled]) {
        await assert.rejects(
            one.triggerSchedule(topic, 'poll'),
            (failure: NoAnswer) => failure instanceof NoAnswer && failure.isUnknown,
        );
    }
});

test('a failure after some parts leaves the others with their problem', { skip }, async () => {
    const drafts = [0, 1, 2].map((payload) => ({ topic, payload }));
    for (const [way, second] of [
        ['refused', 'unavailable'],
        ['lost', 'outcome-unknown'],
    ]) {
        const url = `${process.env.PUNCTUAL_LOSING_URL}/partly-${way}`;
        const [done, ...others] = await new Client(url, { retryFor: 3_000 }).submitMany(drafts);
        assert.equal((done as Task).state, 'scheduled');
        const slugs = others.map((one) => (one as Problem).slug);
        assert.deepEqual(slugs, [second, 'outcome-unknown']);
    }
});

test('a refused request is a problem with a type', { skip }, async () => {
    const refused = client.submit({ topic: 'no-such-topic', payload: 1, delay: HOUR });
    await assert.rejects(
        refused,
        (problem: Problem) => problem.slug === 'unknown-topic' && problem.status === 422,
    );
    const wrong = client.submit({ topic, payload: 1, delay: '5' });
    await assert.rejects(
        wrong,
        (problem: Problem) => problem.slug === 'invalid-value' && problem.field === 'delay',
    );
});

test('a replacement of a task that may be due is not repeated', { skip }, async () => {
    const lost = losing.replace(topic, 'order-5', { payload: 5, delay: '0s' });
    await assert.rejects(
        lost,
        (failure: NoAnswer) => failure instanceof NoAnswer && failure.isUnknown,
    );
});

test('a token and a CA file are used', { skip }, async () => {
    const [url, caFile] = [process.env.PUNCTUAL_SECURE_URL!, process.env.PUNCTUAL_CA_FILE!];
    const secure = new Client(url, { caFile, tokenFile: process.env.PUNCTUAL_TOKEN_FILE! });
    await secure.submit({ topic, key: 'secure', payload: 6, delay: HOUR });
    const anonymous = new Client(url, { caFile }).submit({ topic, payload: 6, delay: HOUR });
    await assert.rejects(anonymous, (problem: Problem) => problem.slug === 'unauthenticated');
    const distrustful = new Client(url).submit({ topic, payload: 6, delay: HOUR });
    await assert.rejects(
        distrustful,
        (failure: NoAnswer) => failure instanceof NoAnswer && !failure.isUnknown,
    );
});

test('a month passes in a test', { skip }, async (context) => {
    const dev = await DevServer.start(['orders:2']);
    context.after(() => dev.close());
    const month = '30d';
    const draft = { topic: 'orders', key: 'order-7', payload: { order: 7 }, delay: month };
    const task = await dev.client().submit(draft);
    assert.deepEqual(await dev.published('orders'), []);
    await dev.advance(month);
    const [record] = await dev.published('orders');
    assert.deepEqual([record?.payload, record?.headers[TASK_ID]], [{ order: 7 }, task.id]);
    await assert.rejects(dev.published('ordres'), /no such topic/);
    await assert.rejects(dev.advance(30 as any), /text with a unit/);
    await assert.rejects(dev.advance('30'), /without a unit/);
});

test('a schedule runs until it is paused', { skip }, async (context) => {
    const dev = await DevServer.start(['orders:2']);
    context.after(() => dev.close());
    const client = dev.client();
    const workdays = {
        cron: '0 30 2 * * 1-5',
        seconds: true,
        timeZone: 'Europe/Berlin',
        startsAt: new Date('2029-12-25T00:00:00Z'),
        exclude: ['2029-12-26'],
        dst: { gap: 'skip', overlap: 'both' },
        missed: { policy: 'all', within: '2h', countMax: 5 },
        payload: 1,
    } as const;
    const draft = { ...workdays, exclude: [...workdays.exclude] };
    const preview = await client.previewSchedule('orders', 'nightly', draft, 2);
    assert.deepEqual(preview.next, ['2029-12-25T01:30:00.000Z', '2029-12-27T01:30:00.000Z']);
    assert.deepEqual(preview.missed, { policy: 'all', within: '2h', count_max: 5 });
    assert.equal(await client.getSchedule('orders', 'nightly'), undefined);

    const poll = { every: HOUR, key: 'poll', payload: { do: 'poll' } };
    await client.setSchedule('orders', 'poll', poll);
    await dev.advance(HOUR);
    const payloads = (await dev.published('orders')).map((run) => run.payload);
    assert.deepEqual(payloads, [{ do: 'poll' }]);
    assert.equal((await client.pauseSchedule('orders', 'poll')).next_run_at, undefined);
    await dev.advance('2h');
    assert.equal((await dev.published('orders')).length, 1);
    assert.equal((await client.triggerSchedule('orders', 'poll')).topic, 'orders');
    await dev.advance('1s');
    assert.equal((await dev.published('orders')).length, 2);
    assert.deepEqual((await client.getSchedule('orders', 'poll', 3))?.next, []);

    const names = ['poll', ...Array.from({ length: 101 }, (_, number) => `poll-${100 + number}`)];
    for (const name of names.slice(1)) {
        await client.setSchedule('orders', name, { every: '1h', payload: 1, paused: true });
    }
    const listed: string[] = [];
    for await (const schedule of client.schedules('orders')) listed.push(schedule.name);
    assert.deepEqual(listed, names);
    assert.equal((await client.deleteSchedule('orders', 'poll'))?.name, 'poll');
    await assert.rejects(
        client.resumeSchedule('orders', 'poll'),
        (problem: Problem) => problem.slug === 'schedule-not-found',
    );
});

test('a backfill makes no run twice', { skip }, async (context) => {
    const dev = await DevServer.start(['orders:2']);
    context.after(() => dev.close());
    const client = dev.client();
    await client.setSchedule('orders', 'poll', { every: HOUR, payload: 1, paused: true });
    const backfill = (range: BackfillRange) => client.backfillSchedule('orders', 'poll', range);
    const { made, already_made, runs } = await backfill({ last: '3h', dryRun: true });
    assert.deepEqual([made, already_made, runs.length], [3, 0, 3]);
    const [from, second, third] = runs.map((run) => new Date(run)) as [Date, Date, Date];
    assert.deepEqual((await backfill({ from, to: second })).runs, [runs[0]]);
    const both = await backfill({ from, to: third });
    assert.deepEqual([both.made, both.already_made, both.runs], [1, 1, runs.slice(0, 2)]);
    await dev.advance('1s');
    assert.equal((await dev.published('orders')).length, 2);
    await assert.rejects(backfill({ last: '8d' }), (problem: Problem) => problem.field === 'last');
    await assert.rejects(
        client.backfillSchedule('orders', 'nobody', { last: HOUR }),
        (problem: Problem) => problem.slug === 'schedule-not-found',
    );
});

test('a schedule is changed only under its condition', { skip }, async (context) => {
    const dev = await DevServer.start(['orders:2']);
    context.after(() => dev.close());
    const client = dev.client();
    const set = (payload: number, condition: Condition) =>
        client.setSchedule('orders', 'poll', { every: HOUR, payload }, condition);
    const stale = { ifMatch: (await set(1, { ifNoneMatch: '*' })).revision };
    const current = { ifMatch: (await set(2, stale)).revision };
    await assert.rejects(set(3, { ifNoneMatch: '*' }), isUnmet);
    await assert.rejects(set(3, stale), isUnmet);
    await assert.rejects(client.deleteSchedule('orders', 'poll', stale), isUnmet);
    assert.equal((await client.deleteSchedule('orders', 'poll', current))?.payload, 2);
});

test('a policy is set, changed and deleted', { skip }, async (context) => {
    const dev = await DevServer.start(['orders:2']);
    context.after(() => dev.close());
    const client = dev.client();
    assert.equal((await client.getTopic('orders'))?.policy, undefined);
    const draft = {
        ttr: '30s',
        retry: { attemptsMax: 3, backoffMin: '1m' },
        delayMax: '90d',
        expireAfter: HOUR,
        pendingMax: 1_000,
        submittedByHeader: true,
        paused: true,
    };
    const made = await client.setPolicy('orders', draft);
    assert.ok(made.paused);
    const { paused, ...policy } = draft;
    const retry = { ...made.policy?.retry, ...draft.retry };
    assert.deepEqual(made.policy, { ...policy, retry });
    const stale = { ifMatch: made.revision };
    const spread = { ...made.policy, spread: '10m' };
    const changed = await client.setPolicy('orders', spread, stale);
    assert.deepEqual(changed.policy, spread);
    const current = { ifMatch: changed.revision };
    assert.deepEqual((await client.getTopic('orders'))?.policy, spread);
    await assert.rejects(client.setPolicy('orders', {}, stale), isUnmet);
    await assert.rejects(client.setPolicy('orders', {}, { ifNoneMatch: '*' }), isUnmet);
    await assert.rejects(client.deletePolicy('orders', stale), isUnmet);
    assert.equal((await client.deletePolicy('orders', current)).policy, undefined);
    const refused = client.setPolicy('orders', { spread: '2d' });
    await assert.rejects(refused, (problem: Problem) => problem.field === 'spread');
});

test('without a node nothing was done', async () => {
    const alone = new Client('http://127.0.0.1:1', { retryFor: 300 });
    const lost = alone.submit({ topic: 'demo', payload: 1, delay: HOUR });
    await assert.rejects(
        lost,
        (failure: NoAnswer) => failure instanceof NoAnswer && !failure.isUnknown,
    );
});

test('a refusal of a proxy is a problem', async (context) => {
    for (const [status, text] of [
        [404, '<html>404 Not Found</html>'],
        [413, ''],
        [400, '[]'],
        [403, '{"message":"Forbidden"}'],
        [422, '{"type":"about:blank","status":"error","field":7}'],
    ] as const) {
        const { client, requests } = await answering(context, status, text);
        const refused = [
            () => client.submit({ topic: 'demo', payload: 1, delay: HOUR }),
            () => client.get('demo', 'order-1'),
        ];
        for (const call of refused) {
            await assert.rejects(call, (problem: Problem) => {
                assert.ok(problem instanceof Problem);
                assert.deepEqual([problem.slug, problem.status], ['', status]);
                assert.equal(problem.detail, 'the answer is not of Punctual');
                assert.equal(problem.message, `status ${status}: ${problem.detail}`);
                return true;
            });
        }
        assert.equal(requests.length, 2);
    }
});

test('another answer of a proxy is none', async (context) => {
    for (const [status, text, isUnknown] of [
        [429, 'slow down', false],
        [408, '[]', false],
        [200, '<html>a login</html>', true],
        [502, '<html>bad gateway</html>', true],
        [503, '{"message":"Service Unavailable"}', true],
    ] as const) {
        const { client, requests } = await answering(context, status, text);
        const lost = client.submit({ topic: 'demo', payload: 1, delay: HOUR });
        await assert.rejects(lost, (failure: NoAnswer) => {
            assert.ok(failure instanceof NoAnswer);
            assert.ok(failure.message.includes(`status ${status}: the answer is not of`));
            assert.equal(failure.isUnknown, isUnknown);
            return true;
        });
        assert.ok(requests.length > 1);
    }
});

test('a refusal of a proxy does not tell of an earlier attempt', async (context) => {
    const { client, requests } = await answering(context, 404, '<html>of a proxy</html>', 502);
    const refused = client.submit({ topic: 'demo', payload: 1, delay: HOUR });
    await assert.rejects(refused, (failure: NoAnswer) => {
        assert.ok(failure instanceof NoAnswer);
        assert.ok(failure.message.includes('status 404: the answer is not of'));
        assert.ok(failure.isUnknown);
        return true;
    });
    assert.equal(requests.length, 2);
});

test('a caller that was denied too often does not repeat', async (context) => {
    const problem = { type: 'urn:punctual:problem:denied-too-often', status: 429 };
    const { client, requests } = await answering(context, 429, JSON.stringify(problem));
    await assert.rejects(
        client.submit({ topic: 'demo', payload: 1, delay: HOUR }),
        (problem: Problem) => problem.slug === 'denied-too-often',
    );
    assert.equal(requests.length, 1);
});

test('a verdict of a later version is its text', async (context) => {
    const { client } = await answering(context, 200, '{"verdict":"postponed"}');
    assert.equal((await client.cancel('demo', 'order-1')).verdict, 'postponed');
    assert.equal((await client.move('demo', 'order-1', { delay: HOUR })).verdict, 'postponed');
    const finished = await client.finish('7');
    assert.deepEqual([finished.verdict, finished.tookEffect], ['postponed', true]);
});

test('a token is not sent in clear over the network', () => {
    assert.throws(() => new Client('http://punctual.example:7070', { token: 'pt_1' }), TypeError);
});

test('a token that HTTP cannot carry is refused', () => {
    for (const token of ['pt_1\nx', 'pt_1\n', 'pt 1', 'ü']) {
        const open = () => new Client('http://127.0.0.1:1', { token });
        assert.throws(open, { name: 'TypeError', message: /a token is one line/ });
    }
});

test('a condition needs ids that HTTP can carry', async () => {
    const alone = new Client('http://127.0.0.1:1', { retryFor: 0 });
    const draft = { payload: 1, delay: HOUR };
    const ids = ['', 'a\nb', '1\n', 'a"b', 'a b', 'ü', '\x7f', true, null] as string[];
    for (const wrong of [[], ...ids, ...ids.map((id) => [id]), ['1', '*'], ['*']]) {
        const [is, isNot] = [{ ifMatch: wrong }, { ifNoneMatch: wrong }];
        const calls = [
            () => alone.replace('demo', 'order-1', draft, isNot),
            () => alone.cancel('demo', 'order-1', is),
            () => alone.move('demo', 'order-1', { delay: HOUR }, is),
            () => alone.setPolicy('demo', {}, is),
            () => alone.setSchedule('demo', 'poll', { every: HOUR, payload: 1 }, is),
        ];
        for (const call of calls) {
            await assert.rejects(call, { name: 'TypeError', message: /a condition/ });
        }
    }
});

test('a pop waits less than its client', async () => {
    const hasty = new Client('http://127.0.0.1:1', { timeout: 5_000 });
    await assert.rejects(hasty.pop('demo', 'group', { wait: '5s' }), /less than the timeout/);
    await assert.rejects(hasty.pop('demo', 'group', { wait: 'PT5S' }), /give text in units/);
});

test('a number is no length of time', async () => {
    const alone = new Client('http://127.0.0.1:1', { retryFor: 0 });
    const bare = 5 as any;
    const draft = { topic: 'demo', payload: 1, delay: HOUR };
    const calls = [
        () => alone.submit({ ...draft, delay: bare }),
        () => alone.submit({ ...draft, ttr: bare }),
        () => alone.submit({ ...draft, retry: { backoffMin: bare } }),
        () => alone.submit({ ...draft, retry: { backoffMax: bare } }),
        () => alone.submitMany([{ ...draft, delay: bare }]),
        () => alone.replace('demo', 'order-1', { payload: 1, delay: bare }),
        () => alone.move('demo', 'order-1', { delay: bare }),
        () => alone.setSchedule('demo', 'poll', { every: bare, payload: 1 }),
        () => alone.previewSchedule('demo', 'poll', { missed: { within: bare }, payload: 1 }),
        () => alone.fail('1', 1, { retryIn: bare }),
        () => alone.extend('1', 1, bare),
        () => alone.outcomes([{ outcome: 'extend', id: '1', attempt: 1, by: bare }]),
        () => alone.pop('demo', 'group', { wait: bare }),
        () => alone.setCallback('demo', { url: 'https://jobs.example.com', timeout: bare }),
        () => alone.backfillSchedule('demo', 'poll', { last: bare }),
        () => alone.setPolicy('demo', { expireAfter: bare }),
        () => alone.setPolicy('demo', { ttr: HOUR, retry: { backoffMax: bare } }),
    ];
    for (const call of calls) {
        await assert.rejects(call, (error: Error) =>
            /is 5: give text with a unit/.test(error.message),
        );
    }
});

test('a replacement knows the time until its task is due', () => {
    assert.equal(milliseconds('delay', '1h 30m500ms'), 5_400_500);
    assert.equal(milliseconds('delay', 'PT30M'), undefined);
});

test('a policy has no unknown members', async () => {
    const alone = new Client('http://127.0.0.1:1', { retryFor: 0 });
    const retry = { attempts_max: 3 } as RetryPolicy;
    const calls = [
        () => alone.setPolicy('demo', { delay_max: '90d' } as PolicyDraft),
        () => alone.setPolicy('demo', { ttr: HOUR, retry }),
        () => alone.submit({ topic: 'demo', payload: 1, delay: HOUR, retry }),
    ];
    for (const call of calls) {
        await assert.rejects(call, { name: 'TypeError', message: /has no member \w+_max/ });
    }
});

test('bytes are no payload', async () => {
    const alone = new Client('http://127.0.0.1:1', { retryFor: 0 });
    const task = { topic: 'demo', payload: Buffer.from('1'), delay: HOUR };
    await assert.rejects(alone.submit(task), /give payloadBase64/);
});

test('a dev server needs its program', async () => {
    const started = DevServer.start(['orders'], 'no-punctual');
    await assert.rejects(started, /no program `no-punctual` on the PATH; set PUNCTUAL_BIN/);
});

test('the work of a task succeeds once', async () => {
    const once = new Once(2);
    const headers = { [TASK_ID]: Buffer.from('1'), [DUE_AT]: '1896082200000', [ATTEMPT]: ['2'] };
    assert.equal(attempt(headers), 2);
    assert.deepEqual([taskId(headers), dueAt(headers)?.getTime()], ['1', 1896082200000]);
    await assert.rejects(once.run(headers, () => Promise.reject(new Error('broken'))));
    assert.equal(await once.run(headers, () => {}), true);
    assert.equal(await once.run(headers, () => {}), false);
});

test('a signature of one of the keys is genuine', () => {
    const [key, other] = ['a2V5IG9uZSBrZXkgb25lIGtleSBvbmUga2V5', 'a2V5IHR3byBrZXkgdHdvIGtleSB0d28ga2V5'];
    const digest = 'c9762b2a2c7c6d1c6402686ecf40a8651d6d1f9b3a6149cc986fa0098419bd69';
    const signature = `t=1700000000,v1=${'0'.repeat(64)},v1=${digest}`;
    const [body, ever] = [Buffer.from('{"a":1}'), 1e10];
    assert.ok(isGenuine([other, key], signature, 'orders', body, ever));
    assert.ok(!isGenuine([key], signature, 'orders', body));
    assert.ok(!isGenuine([other], signature, 'orders', body, ever));
    assert.ok(!isGenuine([key], signature, 'other', body, ever));
    assert.ok(!isGenuine([key], signature, 'orders', Buffer.from('{"a":2}'), ever));
    for (const wrong of [undefined, '', 't=x', `v1=${digest}`, 't=1700000000', 't=1700000000,v1=ü']) {
        assert.ok(!isGenuine([key], wrong, 'orders', body, ever));
    }
    // Lines of the file that are no keys. Anybody can sign with an empty one.
    const lines = ['', '# from May on', 'bm8ga2V5'];
    const forged = 't=1700000000,v1=6cde8cf8039aa61608e23e4308366f55e7ae30b6ab33a6db6a9cbb7d21ea6682';
    assert.ok(!isGenuine(lines, forged, 'orders', body, ever));
    assert.ok(isGenuine([...lines, `${key}\n`], signature, 'orders', body, ever));
});
