<?php

// The story of every client (tests/integration/clients.rs), and the rules that need no node.

declare(strict_types=1);

use Punctual\{Body, Client, DevServer, MoveVerdict, NoAnswer, Once, Outcome, Problem, Signature, Span, Verdict};

spl_autoload_register(static fn (string $class) => require __DIR__ . '/../src/' . substr($class, 9) . '.php');

const HOUR = '1h';

function equal(mixed $expected, mixed $found): void
{
    if ($expected !== $found) {
        throw new LogicException(var_export($found, true) . ' is not ' . var_export($expected, true));
    }
}

function thrown(string $class, callable $work): Throwable
{
    try {
        $work();
    } catch (Throwable $error) {
        equal($class, $error::class);
        return $error;
    }
    throw new LogicException("no {$class}");
}

/**
 * Runs work with a client of a server that answers all requests alike, except that `$first` is the
 * status of the first answer. Returns the requests.
 *
 * @return list<string>
 */
function answering(int $status, string $text, callable $work, ?int $first = null): array
{
    $listener = stream_socket_server('tcp://127.0.0.1:0');
    $log = tmpfile();
    $next = $first ?? $status;
    $child = pcntl_fork();
    if ($child < 0) {
        throw new RuntimeException('cannot fork');
    }
    while ($child === 0) {
        $peer = stream_socket_accept($listener, 60.0);
        for ($request = ''; !str_contains($request, "\r\n\r\n");) {
            $request .= fread($peer, 65_536);
        }
        [$head, $body] = explode("\r\n\r\n", $request, 2);
        preg_match('/^content-length: (\d+)/im', $head, $found);
        while (strlen($body) < (int) ($found[1] ?? 0)) {
            $body .= fread($peer, 65_536);
        }
        fwrite($log, "{$head}\r\n\r\n{$body}\0");
        $length = 'content-length: ' . strlen($text);
        $lines = ["HTTP/1.1 {$next} -", $length, 'connection: close', '', $text];
        fwrite($peer, implode("\r\n", $lines));
        fclose($peer);
        $next = $status;
    }
    try {
        $work(new Client('http://' . stream_socket_get_name($listener, false), retryFor: 2.0));
    } finally {
        posix_kill($child, SIGKILL);
        pcntl_waitpid($child, $ended);
    }
    $requests = file_get_contents(stream_get_meta_data($log)['uri']);
    return explode("\0", rtrim($requests, "\0"));
}

$topic = (string) getenv('PUNCTUAL_TOPIC');
$client = new Client(getenv('PUNCTUAL_URL') ?: 'http://127.0.0.1:1');
$losing = new Client(getenv('PUNCTUAL_LOSING_URL') ?: 'http://127.0.0.1:1');

$story = [
    'a submit whose answers are lost makes one task' => static function () use ($topic, $client, $losing): void {
        $task = ['name' => 'a name/with ü', 'key' => 'named', 'payload' => ['order' => 1], 'delay' => HOUR];
        $first = $losing->submit($topic, $task);
        equal('scheduled', $first['state']);
        equal($first['id'], $client->submit($topic, ['key' => 'other'] + $task)['id']);
        $due = new DateTimeImmutable('+1 hour');
        $losing->submit($topic, ['key' => 'unnamed', 'payload' => null, 'due_at' => $due, 'headers' => ['source' => 'tests']]);
    },
    'a replacement whose answers are lost leaves one task' => static function () use ($topic, $client, $losing): void {
        $first = $client->submit($topic, ['name' => 'order-2', 'key' => 'first', 'payload' => 1, 'delay' => HOUR]);
        $task = $losing->replace($topic, 'order-2', ['key' => 'replaced', 'payload' => 2, 'delay' => HOUR]);
        equal($task['id'], $client->get($topic, 'order-2')['id']);
        equal(Verdict::Replaced, $client->cancelById($first['id'])->verdict);
    },
    'verdicts are values' => static function () use ($topic, $client, $losing): void {
        $client->submit($topic, ['name' => 'order-3', 'payload_text' => '3', 'delay' => HOUR]);
        $cancelled = $losing->cancel($topic, 'order-3');
        equal([Verdict::Cancelled, 'cancelled'], [$cancelled->verdict, $cancelled->task['state']]);
        equal(Verdict::NotFound, $client->cancel($topic, 'nobody')->verdict);
        equal(null, $client->get($topic, 'nobody'));
        $task = $client->submit($topic, ['name' => 'order-4', 'payload' => 4, 'delay' => '0s']);
        while ($task['state'] !== 'published') {
            $task = $client->getById($task['id']);
        }
        equal(true, $task['receipt']['offset'] >= 0);
        equal(Verdict::TooLate, $client->cancelById($task['id'])->verdict);
    },
    'a consumer answers for its attempts' => static function () use ($topic, $client, $losing): void {
        $retry = ['attempts_max' => 3, 'backoff_min' => new DateInterval('PT1S')];
        $tracked = ['name' => 'order-6', 'payload' => 6, 'delay' => '0s', 'ttr' => HOUR, 'retry' => $retry];
        $wrong = ['payload' => null, 'delay' => '0s', 'ttr' => '1ms'];
        [$task, $refused] = $losing->submitMany($topic, [$tracked, $wrong]);
        equal('tasks[1].ttr', $refused->field);
        while ($client->getById($task['id'])['state'] !== 'awaiting') {
            usleep(20_000);
        }
        $failed = $losing->fail($task['id'], 1, 'out of stock', retryIn: HOUR);
        equal([Outcome::Retrying, true], [$failed->verdict, $failed->tookEffect]);
        $late = $client->extend($task['id'], 1, HOUR);
        equal([Outcome::AlreadyFailed, false], [$late->verdict, $late->tookEffect]);
        $absent = '01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f';
        [$finished, $unknown] = $losing->outcomes([
            ['outcome' => 'finish', 'topic' => $topic, 'name' => 'order-6'],
            ['outcome' => 'fail', 'id' => $absent, 'attempt' => 1, 'retry_at' => new DateTimeImmutable()],
        ]);
        equal([Outcome::Finished, Outcome::NotFound], [$finished->verdict, $unknown->verdict]);
        equal('finished', $client->finish($task['id'])->task['state']);
        equal('attempt', thrown(Problem::class, static fn () => $client->fail($task['id'], 0))->field);
    },
    'a popped task is finished' => static function () use ($topic, $client): void {
        $task = ['key' => 'popped', 'payload' => ['order' => 11], 'delay' => '0s', 'ttr' => HOUR];
        $id = $client->submit($topic, $task)['id'];
        do {
            $popped = $client->pop($topic, 'php', '5s', 100);
            $mine = array_values(array_filter($popped, static fn ($task) => $task->id === $id));
        } while ($mine === []);
        [$task] = $mine;
        equal([1, 'popped'], [$task->attempt, $task->body['key']]);
        equal(['order' => 11], $task->body['payload']);
        equal(true, $task->finishBy > new DateTimeImmutable('+30 minutes'));
        equal(Outcome::Finished, $client->finish($id, $task->attempt)->verdict);
        equal([], $client->pop($topic, 'php', '0s'));
        thrown(InvalidArgumentException::class, static fn () => $client->pop($topic, 'php', HOUR));
    },
    'a callback is set and deleted' => static function () use ($topic, $client): void {
        equal(null, $client->getCallback($topic));
        $headers = ['authorization' => 'secret'];
        $callback = ['headers' => $headers, 'timeout' => '5s', 'paused' => true];
        $made = $client->setCallback($topic, 'https://jobs.example.com/orders', $callback);
        equal(['5s', ['authorization']], [$made['timeout'], $made['header_names']]);
        equal($made, $client->getCallback($topic));
        equal($made, $client->deleteCallback($topic));
        equal(null, $client->deleteCallback($topic));
        $elsewhere = static fn () => $client->setCallback($topic, 'https://example.org/');
        equal('url', thrown(Problem::class, $elsewhere)->field);
    },
    'a move whose answers are lost moves the task' => static function () use ($topic, $client, $losing): void {
        $task = $client->submit($topic, ['name' => 'order-7', 'payload' => 7, 'delay' => HOUR]);
        $moved = $losing->move($topic, 'order-7', delay: new DateInterval('PT2H'));
        equal([MoveVerdict::Moved, $task['id']], [$moved->verdict, $moved->task['id']]);
        $due = new DateTimeImmutable('2030-01-31T09:30:00Z');
        equal('2030-01-31T09:30:00.000Z', $client->moveById($task['id'], dueAt: $due)->task['due_at']);
        $client->replace($topic, 'order-7', ['payload' => 8, 'delay' => HOUR]);
        equal(MoveVerdict::Replaced, $client->moveById($task['id'], HOUR)->verdict);
        $client->cancel($topic, 'order-7');
        $late = $client->move($topic, 'order-7', HOUR);
        equal([MoveVerdict::TooLate, 'cancelled'], [$late->verdict, $late->task['state']]);
        $nobody = $client->move($topic, 'nobody', HOUR);
        equal([MoveVerdict::NotFound, null], [$nobody->verdict, $nobody->task]);
        $problem = thrown(Problem::class, static fn () => $client->move($topic, 'order-7'));
        equal('missing-field', $problem->slug);
    },
    'a move of a task that may be due is not repeated' => static function () use ($topic, $client, $losing): void {
        $client->submit($topic, ['name' => 'order-8', 'payload' => 8, 'delay' => HOUR]);
        $move = static fn () => $losing->move($topic, 'order-8', '0s');
        equal(true, thrown(NoAnswer::class, $move)->isUnknown);
    },
    'a change is made only under its condition' => static function () use ($topic, $client): void {
        [$name, $other] = ['order-12', '01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f'];
        $draft = ['payload' => 1, 'delay' => HOUR];
        $id = $client->replace($topic, $name, $draft, ifNoneMatch: '*')['id'];
        $due = new DateTimeImmutable('+2 hours');
        $soon = ['payload' => 2, 'due_at' => $due];
        $refused = [
            static fn () => $client->replace($topic, $name, $draft, ifNoneMatch: '*'),
            static fn () => $client->replace($topic, $name, $draft, when: 'absent'),
            static fn () => $client->replace($topic, $name, $soon, when: 'earlier'),
            static fn () => $client->replace($topic, $name, $draft, ifMatch: [$other]),
            static fn () => $client->move($topic, $name, HOUR, ifMatch: $other),
            static fn () => $client->cancel($topic, $name, ifNoneMatch: [$other, $id]),
        ];
        foreach ($refused as $call) {
            $problem = thrown(Problem::class, $call);
            equal(['precondition-failed', $id], [$problem->slug, $problem->body['current_id']]);
        }
        $cancel = static fn () => $client->cancelById($id, ifMatch: $other);
        equal(412, thrown(Problem::class, $cancel)->status);
        $move = static fn () => $client->moveById($id, HOUR, ifMatch: $other);
        equal(412, thrown(Problem::class, $move)->status);
        $moved = $client->move($topic, $name, HOUR, ifMatch: [$other, $id]);
        equal(MoveVerdict::Moved, $moved->verdict);
        $draft['delay'] = '3h';
        $second = $client->replace($topic, $name, $draft, when: 'later', notAfter: $due);
        equal(true, new DateTimeImmutable($second['due_at']) < $due->modify('+1 second'));
        $cancelled = $client->cancel($topic, $name, ifMatch: $second['id'], ifNoneMatch: $id);
        equal(Verdict::Cancelled, $cancelled->verdict);
    },
    'a call with a condition is not repeated once it may be done' => static function () use ($topic, $client, $losing): void {
        [$name, $draft] = ['order-13', ['payload' => 1, 'delay' => HOUR]];
        $calls = [
            static fn () => $losing->replace($topic, $name, $draft, ifNoneMatch: '*'),
            static fn () => $losing->replace($topic, $name, ['delay' => '2h'] + $draft, 'later'),
            static fn () => $losing->move($topic, $name, HOUR, ifMatch: '*'),
            static fn () => $losing->cancel($topic, $name, ifMatch: '*'),
        ];
        foreach ($calls as $call) {
            equal(true, thrown(NoAnswer::class, $call)->isUnknown);
        }
        equal('cancelled', $client->get($topic, $name)['state']);
    },
    'a dead letter is redriven once' => static function () use ($topic, $client, $losing): void {
        $waitFor = static function (string $id, string $state) use ($client): void {
            while ($client->getById($id)['state'] !== $state) {
                usleep(20_000);
            }
        };
        $ids = [];
        foreach (['order-9', 'order-10'] as $name) {
            $tracked = ['name' => $name, 'payload' => 9, 'delay' => '0s', 'ttr' => HOUR];
            $ids[] = $id = $client->submit($topic, $tracked)['id'];
            $waitFor($id, 'awaiting');
            $client->fail($id, 1, 'out of stock', final: true);
        }
        do {
            $dead = iterator_to_array($client->deadLetters($topic));
        } while (count($dead) < 2);
        equal($ids, array_column($dead, 'id'));
        equal(true, str_contains($dead[0]['reason'], 'out of stock'));
        equal($ids[0], $losing->redrive($ids[0])['id']);
        $waitFor($ids[0], 'awaiting');
        $dry = $client->redriveMany($topic, dryRun: true);
        equal([1, false], [$dry->count, $dry->hasMore]);
        equal(0, $client->redriveMany($topic, dueTo: new DateTimeImmutable('2020-01-01'))->count);
        $other = 'no-such-topic';
        $redrive = static fn () => $client->redrive($ids[1], $other);
        equal('unknown-topic', thrown(Problem::class, $redrive)->slug);
        $redriveMany = static fn () => $client->redriveMany($topic, toTopic: $other);
        equal('unknown-topic', thrown(Problem::class, $redriveMany)->slug);
        $redriven = $client->redriveMany($topic);
        equal([1, false], [$redriven->count, $redriven->hasMore]);
        equal(null, $client->redrive('01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f'));
        foreach ($ids as $id) {
            $waitFor($id, 'awaiting');
            $client->finish($id);
        }
    },
    'a pause whose answers are lost pauses the topic' => static function () use ($topic, $client, $losing): void {
        try {
            $paused = $losing->pauseTopic($topic, 'the consumer fails')->paused;
            equal('the consumer fails', $paused->reason);
            equal(true, abs(time() - $paused->since->getTimestamp()) < 300);
            equal($paused->since->format('U.v'), $client->getTopic($topic)->paused->since->format('U.v'));
            $task = $client->submit($topic, ['payload' => 11, 'delay' => '0s']);
            equal(Verdict::Cancelled, $client->cancelById($task['id'])->verdict);
        } finally {
            equal(null, $losing->resumeTopic($topic)->paused);
        }
        equal(null, $client->getTopic('no-such-topic'));
        $pause = static fn () => $client->pauseTopic('no-such-topic');
        equal('unknown-topic', thrown(Problem::class, $pause)->slug);
    },
    'the error of a gateway does not tell what was done' => static function () use ($topic): void {
        $url = getenv('PUNCTUAL_LOSING_URL');
        $stalled = new Client("{$url}/stalled", timeout: 1.0, retryFor: 0.0);
        foreach ([new Client("{$url}/gateway"), $stalled] as $one) {
            $trigger = static fn () => $one->triggerSchedule($topic, 'poll');
            equal(true, thrown(NoAnswer::class, $trigger)->isUnknown);
        }
    },
    'a failure after some parts leaves the others with their problem' => static function () use ($topic): void {
        foreach (['refused' => 'unavailable', 'lost' => 'outcome-unknown'] as $way => $second) {
            $client = new Client(getenv('PUNCTUAL_LOSING_URL') . "/partly-{$way}", retryFor: 3.0);
            $drafts = array_map(static fn (int $payload) => ['payload' => $payload], [0, 1, 2]);
            [$done, $one, $other] = $client->submitMany($topic, $drafts);
            equal('scheduled', $done['state']);
            equal([$second, 'outcome-unknown'], [$one->slug, $other->slug]);
        }
    },
    'a schedule whose answers are lost is there once' => static function () use ($topic, $client, $losing): void {
        [$name, $start] = ['a schedule/with ü', new DateTimeImmutable('2030-01-31T09:30:00Z')];
        $draft = ['every' => HOUR, 'phase' => '30m', 'starts_at' => $start, 'payload' => ['do' => 'poll']];
        $made = $losing->setSchedule($topic, $name, $draft);
        equal([1, $start->getTimestamp()], [$made->revision, $made->nextRunAt->getTimestamp()]);
        equal(['do' => 'poll'], $made->body['payload']);
        equal(true, $losing->pauseSchedule($topic, $name)->isPaused);
        equal(false, $losing->resumeSchedule($topic, $name)->isPaused);
        $trigger = static fn () => $losing->triggerSchedule($topic, $name);
        equal(true, thrown(NoAnswer::class, $trigger)->isUnknown);
        // An attempt without an answer has deleted it.
        equal(null, $losing->deleteSchedule($topic, $name));
        equal(null, $client->getSchedule($topic, $name));
    },
    'a schedule runs until it is paused' => static function (): void {
        $dev = new DevServer(['orders:2']);
        $client = $dev->client();
        $workdays = [
            'cron' => '0 30 2 * * 1-5', 'seconds' => true, 'time_zone' => 'Europe/Berlin',
            'starts_at' => new DateTimeImmutable('2029-12-25T00:00:00Z'),
            'exclude' => [new DateTimeImmutable('2029-12-26')],
            'dst' => ['gap' => 'skip', 'overlap' => 'both'],
            'missed' => ['policy' => 'all', 'within' => new DateInterval('PT2H'), 'count_max' => 5],
            'payload' => 1,
        ];
        $preview = $client->previewSchedule('orders', 'nightly', $workdays, 2);
        $days = array_map(static fn ($run) => $run->format('m-d H:i'), $preview->nextRuns);
        equal(['12-25 01:30', '12-27 01:30'], $days);
        equal('2h', $preview->body['missed']['within']);
        equal(null, $client->getSchedule('orders', 'nightly'));

        $client->setSchedule('orders', 'poll', ['every' => HOUR, 'key' => 'poll', 'payload' => 1]);
        $dev->advance(HOUR);
        equal([1], array_column($dev->published('orders'), 'payload'));
        equal(null, $client->pauseSchedule('orders', 'poll')->nextRunAt);
        $dev->advance('2h');
        equal(1, count($dev->published('orders')));
        equal('poll', $client->triggerSchedule('orders', 'poll')['key']);
        $dev->advance('1s');
        equal(2, count($dev->published('orders')));
        equal([], $client->getSchedule('orders', 'poll', 3)->nextRuns);

        $names = ['poll', ...array_map(static fn (int $number) => "poll-{$number}", range(100, 200))];
        foreach (array_slice($names, 1) as $name) {
            $client->setSchedule('orders', $name, ['every' => '1h', 'payload' => 1, 'paused' => true]);
        }
        $listed = [];
        foreach ($client->schedules('orders') as $schedule) {
            $listed[] = $schedule->name;
        }
        equal($names, $listed);
        equal('poll', $client->deleteSchedule('orders', 'poll')->name);
        $resume = static fn () => $client->resumeSchedule('orders', 'poll');
        equal('schedule-not-found', thrown(Problem::class, $resume)->slug);
        $dev->close();
    },
    'a backfill makes no run twice' => static function (): void {
        $dev = new DevServer(['orders:2']);
        $client = $dev->client();
        $client->setSchedule('orders', 'poll', ['every' => HOUR, 'payload' => 1, 'paused' => true]);
        $would = $client->backfillSchedule('orders', 'poll', new DateInterval('PT3H'), dryRun: true);
        equal([3, 0, 3], [$would->made, $would->alreadyMade, count($would->runs)]);
        [$from, $second, $third] = $would->runs;
        $first = $client->backfillSchedule('orders', 'poll', from: $from, to: $second);
        equal([1, 0, 1], [$first->made, $first->alreadyMade, count($first->runs)]);
        equal($from->getTimestamp(), $first->runs[0]->getTimestamp());
        $both = $client->backfillSchedule('orders', 'poll', from: $from, to: $third);
        equal([1, 1], [$both->made, $both->alreadyMade]);
        $dev->advance('1s');
        equal(2, count($dev->published('orders')));
        $long = static fn () => $client->backfillSchedule('orders', 'poll', '8d');
        equal('last', thrown(Problem::class, $long)->field);
        $absent = static fn () => $client->backfillSchedule('orders', 'nobody', HOUR);
        equal('schedule-not-found', thrown(Problem::class, $absent)->slug);
        $dev->close();
    },
    'a schedule is changed only under its condition' => static function (): void {
        $dev = new DevServer(['orders:2']);
        $client = $dev->client();
        $draft = ['every' => HOUR, 'payload' => 1];
        $stale = $client->setSchedule('orders', 'poll', $draft, ifNoneMatch: '*')->revision;
        $draft['payload'] = 2;
        $current = $client->setSchedule('orders', 'poll', $draft, $stale)->revision;
        $refused = [
            static fn () => $client->setSchedule('orders', 'poll', $draft, ifNoneMatch: '*'),
            static fn () => $client->setSchedule('orders', 'poll', $draft, $stale),
            static fn () => $client->deleteSchedule('orders', 'poll', $stale),
        ];
        foreach ($refused as $call) {
            equal('precondition-failed', thrown(Problem::class, $call)->slug);
        }
        equal(2, $client->deleteSchedule('orders', 'poll', $current)->body['payload']);
        $dev->close();
    },
    'a policy is set, changed and deleted' => static function (): void {
        $dev = new DevServer(['orders:2']);
        $client = $dev->client();
        equal(null, $client->getTopic('orders')->policy);
        $made = $client->setPolicy('orders', [
            'ttr' => '30s', 'retry' => ['attempts_max' => 3, 'backoff_min' => new DateInterval('PT1M')],
            'delay_max' => new DateInterval('P90D'), 'expire_after' => HOUR, 'pending_max' => 1000,
            'submitted_by_header' => true, 'paused' => true,
        ]);
        equal(false, $made->paused === null);
        $policy = $made->policy;
        equal(['90d', HOUR, null], [$policy->delayMax, $policy->expireAfter, $policy->spread]);
        equal([1000, true], [$policy->pendingMax, $policy->submittedByHeader]);
        equal(['30s', '1m'], [$policy->ttr, $policy->retry['backoff_min']]);
        $changed = $client->setPolicy('orders', ['spread' => '10m'] + $policy->body, $made->revision);
        equal(['10m', $policy->retry], [$changed->policy->spread, $changed->policy->retry]);
        equal($changed->policy->body, $client->getTopic('orders')->policy->body);
        $refused = [
            static fn () => $client->setPolicy('orders', [], ifMatch: $made->revision),
            static fn () => $client->setPolicy('orders', [], ifNoneMatch: '*'),
            static fn () => $client->deletePolicy('orders', $made->revision),
        ];
        foreach ($refused as $call) {
            equal('precondition-failed', thrown(Problem::class, $call)->slug);
        }
        equal(null, $client->setPolicy('orders', [], $changed->revision)->policy);
        equal(null, $client->deletePolicy('orders')->policy);
        $long = static fn () => $client->setPolicy('orders', ['spread' => '2d']);
        equal('spread', thrown(Problem::class, $long)->field);
        $dev->close();
    },
    'a refused request is a problem with a type' => static function () use ($topic, $client): void {
        $problem = thrown(Problem::class, static fn () => $client->submit('no-such-topic', ['payload' => 1, 'delay' => HOUR]));
        equal(['unknown-topic', 422], [$problem->slug, $problem->status]);
        $problem = thrown(Problem::class, static fn () => $client->submit($topic, ['payload' => 1, 'delay' => '5']));
        equal('delay', $problem->field);
    },
    'a replacement of a task that may be due is not repeated' => static function () use ($topic, $losing): void {
        $replace = static fn () => $losing->replace($topic, 'order-5', ['payload' => 5, 'delay' => '0s']);
        equal(true, thrown(NoAnswer::class, $replace)->isUnknown);
    },
    'a token and a CA file are used' => static function () use ($topic): void {
        [$url, $ca, $token] = array_map('getenv', ['PUNCTUAL_SECURE_URL', 'PUNCTUAL_CA_FILE', 'PUNCTUAL_TOKEN_FILE']);
        $task = ['key' => 'secure', 'payload' => 6, 'delay' => HOUR];
        (new Client($url, tokenFile: $token, caFile: $ca))->submit($topic, $task);
        $anonymous = static fn () => (new Client($url, caFile: $ca))->submit($topic, $task);
        equal('unauthenticated', thrown(Problem::class, $anonymous)->slug);
        $distrustful = static fn () => (new Client($url))->submit($topic, $task);
        equal(false, thrown(NoAnswer::class, $distrustful)->isUnknown);
    },
    'a month passes in a test' => static function (): void {
        $dev = new DevServer(['orders:2']);
        $month = '30d';
        $draft = ['key' => 'order-7', 'payload' => ['order' => 7], 'delay' => $month];
        $task = $dev->client()->submit('orders', $draft);
        equal([], $dev->published('orders'));
        $dev->advance($month);
        [$record] = $dev->published('orders');
        equal(['order' => 7], $record['payload']);
        equal($task['id'], $record['headers'][Once::TASK_ID]);
        $problem = thrown(Problem::class, static fn () => $dev->published('ordres'));
        equal(true, str_contains($problem->detail, 'no such topic'));
        thrown(TypeError::class, static fn () => $dev->advance(30));
        equal('advance', thrown(Problem::class, static fn () => $dev->advance('30'))->field);
        $dev->close();
    },
];

$rules = [
    'without a node nothing was done' => static function (): void {
        $alone = new Client('http://127.0.0.1:1', retryFor: 0.3);
        $submit = static fn () => $alone->submit('demo', ['payload' => 1, 'delay' => HOUR]);
        equal(false, thrown(NoAnswer::class, $submit)->isUnknown);
    },
    'a refusal of a proxy is a problem' => static function (): void {
        $answers = [
            404 => '<html>404 Not Found</html>', 413 => '', 400 => '[]',
            403 => '{"message":"Forbidden"}',
            422 => '{"type":"about:blank","status":"error","field":7}',
        ];
        foreach ($answers as $status => $text) {
            $check = static function (Client $client) use ($status): void {
                $draft = ['payload' => 1, 'delay' => HOUR];
                $submit = static fn () => $client->submit('demo', $draft);
                foreach ([$submit, static fn () => $client->get('demo', 'order-1')] as $call) {
                    $problem = thrown(Problem::class, $call);
                    $found = [$problem->slug, $problem->status, $problem->field];
                    equal(['', $status, null], $found);
                    equal('the answer is not of Punctual', $problem->detail);
                    equal("status {$status}: {$problem->detail}", $problem->getMessage());
                }
            };
            equal(2, count(answering($status, $text, $check)));
        }
    },
    'another answer of a proxy is none' => static function (): void {
        $answers = [
            429 => 'slow down', 408 => '[]', 200 => '<html>a login</html>',
            502 => '<html>bad gateway</html>', 503 => '{"message":"Service Unavailable"}',
        ];
        foreach ($answers as $status => $text) {
            $check = static function (Client $client) use ($status): void {
                $draft = ['payload' => 1, 'delay' => HOUR];
                $failure = thrown(NoAnswer::class, static fn () => $client->submit('demo', $draft));
                $reason = "status {$status}: the answer is not of Punctual";
                equal(true, str_ends_with($failure->getMessage(), $reason));
                equal(!in_array($status, [408, 429], true), $failure->isUnknown);
            };
            equal(true, count(answering($status, $text, $check)) > 1);
        }
    },
    'a refusal of a proxy does not tell of an earlier attempt' => static function (): void {
        $check = static function (Client $client): void {
            $submit = static fn () => $client->submit('demo', ['payload' => 1, 'delay' => HOUR]);
            $failure = thrown(NoAnswer::class, $submit);
            $reason = 'status 404: the answer is not of Punctual';
            equal(true, str_ends_with($failure->getMessage(), $reason));
            equal(true, $failure->isUnknown);
        };
        equal(2, count(answering(404, '<html>of a proxy</html>', $check, 502)));
    },
    'a caller that was denied too often does not repeat' => static function (): void {
        $problem = '{"type":"urn:punctual:problem:denied-too-often","status":429}';
        $requests = answering(429, $problem, static function (Client $client): void {
            $submit = static fn () => $client->submit('demo', ['payload' => 1, 'delay' => HOUR]);
            equal('denied-too-often', thrown(Problem::class, $submit)->slug);
        });
        equal(1, count($requests));
    },
    'a verdict of a later version is other' => static function (): void {
        answering(200, '{"verdict":"postponed"}', static function (Client $client): void {
            equal(Verdict::Other, $client->cancel('demo', 'order-1')->verdict);
            equal(MoveVerdict::Other, $client->move('demo', 'order-1', HOUR)->verdict);
            $finished = $client->finish('7');
            equal([Outcome::Other, true], [$finished->verdict, $finished->tookEffect]);
        });
        $problem = '{"type":"urn:punctual:problem:postponed","verdict":"postponed"}';
        answering(409, $problem, static function (Client $client): void {
            $finished = $client->finish('7');
            equal([Outcome::Other, false], [$finished->verdict, $finished->tookEffect]);
        });
    },
    'headers without members are an object' => static function (): void {
        $record = ['payload' => 1, 'headers' => []];
        $requests = answering(403, '', static function (Client $client) use ($record): void {
            $calls = [
                static fn () => $client->submit('demo', ['delay' => HOUR] + $record),
                static fn () => $client->replace('demo', 'order-1', ['delay' => HOUR] + $record),
                static fn () => $client->setSchedule('demo', 'poll', ['every' => HOUR] + $record),
                static fn () => $client->setCallback('demo', 'https://a.eu', ['headers' => []]),
            ];
            array_map(static fn (callable $call) => thrown(Problem::class, $call), $calls);
        });
        equal(4, count($requests));
        foreach ($requests as $request) {
            equal(true, str_contains($request, '"headers":{}'));
        }
    },
    'a call without a body says so' => static function (): void {
        $requests = answering(403, '', static function (Client $client): void {
            $calls = [
                static fn () => $client->triggerSchedule('demo', 'poll'),
                static fn () => $client->pauseSchedule('demo', 'poll'),
                static fn () => $client->resumeSchedule('demo', 'poll'),
                static fn () => $client->get('demo', 'order-1'),
                static fn () => $client->cancel('demo', 'order-1'),
            ];
            array_map(static fn (callable $call) => thrown(Problem::class, $call), $calls);
        });
        equal(5, count($requests));
        foreach ($requests as $request) {
            $isPost = str_starts_with($request, 'POST');
            equal($isPost, stripos($request, "\r\ncontent-length: 0") !== false);
            equal(false, stripos($request, 'content-type'));
        }
    },
    'a token is not sent in clear over the network' => static function (): void {
        thrown(InvalidArgumentException::class, static fn () => new Client('http://punctual.example:7070', 'pt_1'));
    },
    'a token that HTTP cannot carry is refused' => static function (): void {
        foreach (["pt_1\nx", "pt_1\n", 'pt 1', 'ü'] as $token) {
            $open = static fn () => new Client('http://127.0.0.1:1', $token);
            $message = thrown(InvalidArgumentException::class, $open)->getMessage();
            equal(true, str_starts_with($message, 'a token is one line'));
        }
    },
    'a number is no length of time' => static function (): void {
        $alone = new Client('http://127.0.0.1:1', retryFor: 0.0);
        $draft = ['payload' => 1, 'delay' => HOUR];
        $extend = ['outcome' => 'extend', 'id' => '1', 'attempt' => 1];
        $calls = [
            static fn () => $alone->submit('demo', ['delay' => 5] + $draft),
            static fn () => $alone->submit('demo', ['ttr' => 30.0] + $draft),
            static fn () => $alone->submit('demo', ['retry' => ['backoff_min' => 5]] + $draft),
            static fn () => $alone->submitMany('demo', [['delay' => 5] + $draft]),
            static fn () => $alone->replace('demo', 'order-1', ['delay' => 5] + $draft),
            static fn () => $alone->outcomes([['by' => 5] + $extend]),
            static fn () => $alone->setSchedule('demo', 'poll', ['every' => 5, 'payload' => 1]),
            static fn () => $alone->previewSchedule('demo', 'poll', ['missed' => ['within' => 5]]),
            static fn () => $alone->setPolicy('demo', ['expire_after' => 5]),
            static fn () => $alone->setPolicy('demo', ['retry' => ['backoff_max' => 5]]),
        ];
        foreach ($calls as $call) {
            $message = thrown(InvalidArgumentException::class, $call)->getMessage();
            equal(true, str_contains($message, 'give a DateInterval, or text with a unit'));
        }
        thrown(TypeError::class, static fn () => $alone->move('demo', 'order-1', 5));
        thrown(TypeError::class, static fn () => $alone->fail('1', 1, retryIn: 5));
        thrown(TypeError::class, static fn () => $alone->extend('1', 1, 5));
        thrown(TypeError::class, static fn () => $alone->backfillSchedule('demo', 'poll', 5));
    },
    'a pop waits less than its client' => static function (): void {
        $hasty = new Client('http://127.0.0.1:1', timeout: 5.0);
        foreach (['5s' => 'wait is not shorter than the timeout', 'PT5S' => 'wait is PT5S: give'] as $wait => $reason) {
            $pop = static fn () => $hasty->pop('demo', 'group', $wait);
            $message = thrown(InvalidArgumentException::class, $pop)->getMessage();
            equal(true, str_starts_with($message, $reason));
        }
    },
    'a condition needs ids that HTTP can carry' => static function (): void {
        $alone = new Client('http://127.0.0.1:1', retryFor: 0.0);
        $draft = ['payload' => 1, 'delay' => HOUR];
        $ids = ['', "1\r\nx-other: 2", "1\n", 'a"b', 'a b', 'ü', "\xff", "\x7f"];
        $lists = [[], ['1', '*'], ['*'], ...array_map(static fn ($id) => [$id], $ids)];
        foreach ([...$ids, ...$lists] as $wrong) {
            $calls = [
                static fn () => $alone->replace('demo', 'order-1', $draft, ifNoneMatch: $wrong),
                static fn () => $alone->cancel('demo', 'order-1', ifMatch: $wrong),
                static fn () => $alone->cancelById('1', ifMatch: $wrong),
                static fn () => $alone->move('demo', 'order-1', HOUR, ifMatch: $wrong),
            ];
            foreach ($calls as $call) {
                $message = thrown(InvalidArgumentException::class, $call)->getMessage();
                equal(true, str_contains($message, 'a condition'));
            }
        }
    },
    'a replacement knows the time until its task is due' => static function (): void {
        equal(5400.5, Span::seconds('delay', '1h 30m500ms'));
        equal(5400.0, Span::seconds('delay', new DateInterval('PT1H30M')));
        equal(null, Span::seconds('delay', 'PT30M'));
        $month = static fn () => Span::of('delay', new DateInterval('P1M'));
        thrown(InvalidArgumentException::class, $month);
    },
    'a time keeps its microseconds, so that no task is early' => static function (): void {
        $time = new DateTimeImmutable('2030-01-01T00:00:00.000999Z');
        equal(['due_at' => '2030-01-01T00:00:00.000999+00:00'], Body::fields(['due_at' => $time]));
    },
    'bytes are no payload' => static function (): void {
        $alone = new Client('http://127.0.0.1:1', retryFor: 0.0);
        $submit = static fn () => $alone->submit('demo', ['payload' => "\xff", 'delay' => HOUR]);
        $message = thrown(InvalidArgumentException::class, $submit)->getMessage();
        equal(true, str_contains($message, "'payload_base64' => base64_encode"));
    },
    'a dev server needs its program' => static function (): void {
        $start = static fn () => new DevServer(['orders'], 'no-punctual');
        $message = thrown(RuntimeException::class, $start)->getMessage();
        equal(true, str_starts_with($message, 'no program `no-punctual` on the PATH; set PUNCTUAL_BIN'));
    },
    'the work of a task succeeds once' => static function (): void {
        $once = new Once(2);
        $headers = [Once::TASK_ID => '1'];
        thrown(RangeException::class, static fn () => $once->run($headers, static fn () => throw new RangeException()));
        equal(true, $once->run($headers, static fn () => null));
        equal(false, $once->run($headers, static fn () => null));
    },
    'a signature of one of the keys is genuine' => static function (): void {
        [$key, $other] = ['a2V5IG9uZSBrZXkgb25lIGtleSBvbmUga2V5', 'a2V5IHR3byBrZXkgdHdvIGtleSB0d28ga2V5'];
        $digest = 'c9762b2a2c7c6d1c6402686ecf40a8651d6d1f9b3a6149cc986fa0098419bd69';
        [$zeros, $ever] = [str_repeat('0', 64), 10_000_000_000];
        $signature = "t=1700000000,v1={$zeros},v1={$digest}";
        equal(true, Signature::isGenuine([$other, $key], $signature, 'orders', '{"a":1}', $ever));
        equal(false, Signature::isGenuine([$key], $signature, 'orders', '{"a":1}'));
        equal(false, Signature::isGenuine([$other], $signature, 'orders', '{"a":1}', $ever));
        equal(false, Signature::isGenuine([$key], $signature, 'orders', '{"a":2}', $ever));
        equal(false, Signature::isGenuine([$key], $signature, 'other', '{"a":1}', $ever));
        foreach ([null, '', 't=x', "v1={$digest}", 't=1700000000', 't=1700000000,v1=ü'] as $wrong) {
            equal(false, Signature::isGenuine([$key], $wrong, 'orders', '{"a":1}', $ever));
        }
        // Lines of the file that are no keys. Anybody can sign with an empty one.
        $lines = ['', '# from May on', 'bm8ga2V5'];
        $forged = 't=1700000000,v1=6cde8cf8039aa61608e23e4308366f55e7ae30b6ab33a6db6a9cbb7d21ea6682';
        equal(false, Signature::isGenuine($lines, $forged, 'orders', '{"a":1}', $ever));
        equal(true, Signature::isGenuine([...$lines, "{$key}\n"], $signature, 'orders', '{"a":1}', $ever));
    },
];

foreach ($topic === '' ? $rules : $story + $rules as $name => $test) {
    $test();
    echo "ok: {$name}\n";
}
