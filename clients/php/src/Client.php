<?php

declare(strict_types=1);

namespace Punctual;

/**
 * A client of one node, which keeps its connection: calls for tasks, topics, consumers without
 * Kafka, and schedules.
 */
final class Client
{
    private readonly Http $http;

    /**
     * @param float $timeout  the time of one attempt in seconds
     * @param float $retryFor the time for all attempts of a call in seconds
     */
    public function __construct(
        string $url,
        #[\SensitiveParameter] ?string $token = null,
        ?string $tokenFile = null,
        ?string $caFile = null,
        float $timeout = 35.0,
        float $retryFor = 30.0,
    ) {
        if ($tokenFile !== null) {
            $text = file_get_contents($tokenFile);
            $token = $text === false
                ? throw new \InvalidArgumentException("cannot read {$tokenFile}")
                : trim($text);
        }
        $this->http = new Http($url, $token, $caFile, $timeout, $retryFor);
    }

    /**
     * Submits a task and returns it. A known name returns its first task: look at its `state`. A
     * task without a name gets a random one, so that its own repetitions make no second task.
     *
     * Lengths of time are a DateInterval, or text with a unit such as `5s`.
     *
     * @param array<string, mixed> $task
     *     `delay` or `due_at` (a DateTimeInterface);
     *     `expires_at` (a DateTimeInterface), from which on the task is not published any more;
     *     `payload` (any JSON), `payload_text`, `payload_base64` or `tombstone`;
     *     `name`, `key`, `key_base64`, `headers`;
     *     `ttr`, the time with which the consumer answers for the task, and `retry`:
     *     `attempts_max`, `backoff_min`, `backoff_max`, `backoff_factor`, `dead_topic`
     */
    public function submit(string $topic, array $task): array
    {
        return Http::successful($this->http->call('POST', '/v1/tasks', Body::named($topic, $task)));
    }

    /**
     * Submits up to 10,000 tasks for a topic. Returns for each, in order, the task or its Problem.
     *
     * @param list<array<string, mixed>> $tasks as for a submit
     * @return list<array|Problem>
     */
    public function submitMany(string $topic, array $tasks): array
    {
        $bodies = array_map(static fn (array $task) => Body::named($topic, $task), $tasks);
        $result = static fn (array $one) => $one['task'] ?? new Problem($one['problem']);
        return array_map($result, $this->http->many('/v1/tasks/batch', 'tasks', $bodies));
    }

    /** Says that the work of a tracked task is done: no further attempt is made. */
    public function finish(string $id, ?int $attempt = null): Answered
    {
        return $this->answer($id, 'finish', ['attempt' => $attempt]);
    }

    /**
     * Says that an attempt has failed. The next one follows after the back-off, in `$retryIn`,
     * or at `$retryAt`. A final failure is the last.
     */
    public function fail(
        string $id,
        int $attempt,
        ?string $reason = null,
        string|\DateInterval|null $retryIn = null,
        ?\DateTimeInterface $retryAt = null,
        ?bool $final = null,
    ): Answered {
        return $this->answer($id, 'fail', [
            'attempt' => $attempt,
            'reason' => $reason,
            'retry_in' => $retryIn,
            'retry_at' => $retryAt,
            'final' => $final,
        ]);
    }

    /** Moves the deadline to `$by` from now, or by the time to run. */
    public function extend(
        string $id,
        int $attempt,
        string|\DateInterval|null $by = null,
    ): Answered {
        return $this->answer($id, 'extend', ['attempt' => $attempt, 'by' => $by]);
    }

    /**
     * Answers for up to 10,000 attempts. Returns for each, in order, an Answered or a Problem.
     *
     * @param list<array<string, mixed>> $outcomes
     *     `outcome` (finish, fail or extend); `id`, or `topic` and `name`; and `attempt`, `reason`,
     *     `retry_in`, `retry_at`, `final`, `by` as for that call
     * @return list<Answered|Problem>
     */
    public function outcomes(array $outcomes): array
    {
        $bodies = array_map(Body::fields(...), $outcomes);
        $result = static fn (array $one) => isset($one['verdict'])
            ? Answered::of($one['status'], $one)
            : new Problem($one['problem']);
        return array_map($result, $this->http->many('/v1/outcomes', 'outcomes', $bodies));
    }

    /**
     * Creates the task of a name, or replaces a pending one, and returns the new task. A task on
     * its way is a Problem with the slug `too-late`.
     *
     * With `$when` `later`, a pending task is replaced only by one that is due later, but at
     * `$notAfter` at the latest; with `earlier` only by one that is due earlier; with `absent`
     * never. `$ifMatch` is the task that the name must have, `$ifNoneMatch` the one that it must
     * not have: an id, a list of ids, or `*` for any.
     *
     * A condition that does not hold is a Problem with the slug `precondition-failed`. With a
     * condition, the call is not repeated once it may have been done.
     *
     * @param array<string, mixed> $task as for a submit, without `name`
     * @param string|list<string>|null $ifMatch
     * @param string|list<string>|null $ifNoneMatch
     */
    public function replace(
        string $topic,
        string $name,
        array $task,
        ?string $when = null,
        ?\DateTimeInterface $notAfter = null,
        string|array|null $ifMatch = null,
        string|array|null $ifNoneMatch = null,
    ): array {
        $path = Path::ofName($topic, $name) . Condition::query($when, $notAfter);
        // Once the task may be due, a repetition would schedule another one. With `$when`, it would
        // compare the new task with itself.
        $dueIn = Body::dueIn($task['delay'] ?? null, $task['due_at'] ?? null);
        $safeFor = $when === null ? $dueIn : 0.0;
        $condition = Condition::headers($ifMatch, $ifNoneMatch);
        $answer = $this->http->call('PUT', $path, Body::of($task), $safeFor, $condition);
        return Http::successful($answer);
    }

    /** Returns the task of a name, or null. */
    public function get(string $topic, string $name): ?array
    {
        return $this->look(Path::ofName($topic, $name));
    }

    public function getById(string $id): ?array
    {
        return $this->look(Path::ofId($id));
    }

    /**
     * Cancels the task of a name. The verdict says whether its record will ever exist. `$ifMatch`
     * and `$ifNoneMatch` are as for `replace`.
     */
    public function cancel(
        string $topic,
        string $name,
        string|array|null $ifMatch = null,
        string|array|null $ifNoneMatch = null,
    ): Cancelled {
        $condition = Condition::headers($ifMatch, $ifNoneMatch);
        return $this->cancelAt(Path::ofName($topic, $name), $condition);
    }

    public function cancelById(
        string $id,
        string|array|null $ifMatch = null,
        string|array|null $ifNoneMatch = null,
    ): Cancelled {
        return $this->cancelAt(Path::ofId($id), Condition::headers($ifMatch, $ifNoneMatch));
    }

    /**
     * Gives the pending task of a name another due time: `$dueAt`, or after `$delay`, which counts
     * from the attempt that is answered. The verdict says whether it has it. Id, name and record
     * stay. `$ifMatch` and `$ifNoneMatch` are as for `replace`.
     */
    public function move(
        string $topic,
        string $name,
        string|\DateInterval|null $delay = null,
        ?\DateTimeInterface $dueAt = null,
        string|array|null $ifMatch = null,
        string|array|null $ifNoneMatch = null,
    ): Moved {
        $condition = Condition::headers($ifMatch, $ifNoneMatch);
        return $this->moveAt(Path::ofName($topic, $name), $delay, $dueAt, $condition);
    }

    public function moveById(
        string $id,
        string|\DateInterval|null $delay = null,
        ?\DateTimeInterface $dueAt = null,
        string|array|null $ifMatch = null,
        string|array|null $ifNoneMatch = null,
    ): Moved {
        $condition = Condition::headers($ifMatch, $ifNoneMatch);
        return $this->moveAt(Path::ofId($id), $delay, $dueAt, $condition);
    }

    /**
     * Yields the dead letters, of one topic or of all, in the order of their due times. Each is a
     * task with its `reason`, without headers and payload.
     *
     * @return \Generator<int, array>
     */
    public function deadLetters(?string $topic = null): \Generator
    {
        return $this->http->pages('/v1/dead', ['topic' => $topic], 'tasks', 'cursor', 'cursor');
    }

    /**
     * Makes a dead letter due now, in its topic or in another one. Returns the task, or null.
     *
     * A task that is no dead letter (any more) is returned as it is: look at its `state`. It is
     * `dead` if the dead letter was dropped.
     */
    public function redrive(string $id, ?string $toTopic = null): ?array
    {
        $body = Body::fields(['to_topic' => $toTopic]) ?: new \stdClass();
        $answer = $this->http->call('POST', '/v1/dead/' . rawurlencode($id) . '/redrive', $body);
        return self::found($answer, 'task-not-found') ?? $this->getById($id);
    }

    /**
     * Redrives all dead letters of a topic, or those of a range of due times, `$dueTo` not
     * included. The count lacks those of an attempt whose answer was lost. The call may be
     * repeated. If it fails after some, they are counted, and there are more. A dry run fails.
     */
    public function redriveMany(
        string $topic,
        ?\DateTimeInterface $dueFrom = null,
        ?\DateTimeInterface $dueTo = null,
        ?string $toTopic = null,
        bool $dryRun = false,
    ): Redriven {
        $range = ['due_from' => $dueFrom, 'due_to' => $dueTo, 'to_topic' => $toTopic];
        $body = Body::fields(['topic' => $topic, 'dry_run' => $dryRun] + $range);
        [$count, $cursor, $since, $pause] = [0, null, hrtime(true), Http::PAUSE_MIN];
        while (true) {
            $part = $body + ['cursor' => $cursor];
            try {
                $answer = Http::successful($this->http->call('POST', '/v1/dead/redrive', $part));
            } catch (NoAnswer | Problem $failure) {
                if ($count === 0 || $dryRun) {
                    throw $failure;
                }
                return new Redriven($count, true);
            }
            $hasMoved = $answer['cursor'] !== null && $answer['cursor'] !== $cursor;
            $cursor = $answer['cursor'];
            $count += $answer['redriven'];
            if (!$answer['more'] || ($dryRun && !$hasMoved)) {
                return new Redriven($count, $answer['more']);
            }
            if ($answer['redriven'] > 0 || $hasMoved) {
                [$since, $pause] = [hrtime(true), Http::PAUSE_MIN];
                continue;
            }
            if ((hrtime(true) - $since) / 1e9 + $pause > $this->http->retryFor) {
                return new Redriven($count, true);
            }
            usleep((int) ($pause * (1e6 + random_int(0, 250_000))));
            $pause = min($pause * 2, Http::PAUSE_MAX);
        }
    }

    /** Returns a topic, or null if Kafka has none of this name. */
    public function getTopic(string $topic): ?Topic
    {
        $body = self::found($this->http->call('GET', Path::ofTopic($topic)), 'topic-not-found');
        return $body === null ? null : Topic::of($body);
    }

    /**
     * Pauses a topic and returns it. From now on none of its tasks is claimed. Submits and cancels
     * are as before. Tasks that are in flight may still be published. A topic that is paused
     * already keeps its reason.
     */
    public function pauseTopic(string $topic, ?string $reason = null): Topic
    {
        return $this->changeTopic($topic, 'pause', $reason);
    }

    /** Ends the pause of a topic and returns it. Overdue tasks are published now. */
    public function resumeTopic(string $topic, ?string $reason = null): Topic
    {
        return $this->changeTopic($topic, 'resume', $reason);
    }

    /**
     * Sets the whole policy of a topic, for the tasks to come, and returns the topic. To change one
     * member, give the others as well: `['spread' => '10m'] + $topic->policy->body`, with `ifMatch:
     * $topic->revision`. `$ifNoneMatch` of `*` is for a topic without a policy and without a pause.
     * These conditions are as for `replace`.
     *
     * @param array<string, mixed> $policy
     *     `ttr` and `retry`, as for a submit; `delay_max`, `expire_after`, `spread` (lengths of
     *     time), `pending_max`, `submitted_by_header`;
     *     `paused`, without which the topic stays paused or not
     */
    public function setPolicy(
        string $topic,
        array $policy,
        ?int $ifMatch = null,
        ?string $ifNoneMatch = null,
    ): Topic {
        // An empty array would be a list in JSON.
        $body = Body::of($policy) ?: new \stdClass();
        $condition = Condition::headers($ifMatch, $ifNoneMatch);
        $answer = $this->http->call('PUT', Path::ofPolicy($topic), $body, INF, $condition);
        return Topic::of(Http::successful($answer));
    }

    /**
     * Takes the policy of a topic away, and returns the topic. With `$ifMatch`, the topic must have
     * this revision.
     */
    public function deletePolicy(string $topic, ?int $ifMatch = null): Topic
    {
        $condition = Condition::headers($ifMatch, null);
        $answer = $this->http->call('DELETE', Path::ofPolicy($topic), condition: $condition);
        return Topic::of(Http::successful($answer));
    }

    /**
     * Waits for tracked tasks of a topic, and returns up to `$max` of them, or none. Each goes to
     * one caller of the group: `finish`, `fail` or `extend` it. `$wait` must be shorter than the
     * timeout of this client. Tasks of a lost answer come again after their time to run.
     *
     * @return list<PoppedTask>
     */
    public function pop(
        string $topic,
        string $group,
        string|\DateInterval $wait = '20s',
        int $max = 1,
    ): array {
        $seconds = Span::seconds('wait', $wait);
        if ($seconds === null) {
            $reason = "wait is {$wait}: give a DateInterval, or text in units such as \"20s\"";
            throw new \InvalidArgumentException($reason);
        }
        if ($seconds >= $this->http->timeout) {
            $reason = "wait is not shorter than the timeout, {$this->http->timeout} s";
            throw new \InvalidArgumentException($reason);
        }
        $body = Body::fields(['group' => $group, 'wait' => $wait, 'max' => $max]);
        $answer = $this->http->call('POST', Path::ofTopic($topic) . '/pop', $body);
        return array_map(PoppedTask::of(...), Http::successful($answer)['tasks']);
    }

    /**
     * Has nodes POST each tracked task of a topic to a URL, and returns the callback.
     * Signature::isGenuine checks in the service who calls it.
     *
     * @param array<string, mixed> $callback
     *     `headers`, `timeout` (a length of time), `concurrency`, `max_per_second`, `paused`
     */
    public function setCallback(string $topic, string $url, array $callback = []): array
    {
        $body = Body::fields(['url' => $url] + $callback);
        return Http::successful($this->http->call('PUT', Path::ofCallback($topic), $body));
    }

    /** Returns the callback of a topic, without the values of its headers, or null. */
    public function getCallback(string $topic): ?array
    {
        $answer = $this->http->call('GET', Path::ofCallback($topic));
        return self::found($answer, 'callback-not-found');
    }

    /** Ends the callback of a topic. Returns it as it was, or null if there is none. */
    public function deleteCallback(string $topic): ?array
    {
        $answer = $this->http->call('DELETE', Path::ofCallback($topic));
        return self::found($answer, 'callback-not-found');
    }

    /**
     * Creates a schedule, or replaces it as a whole, and returns it.
     *
     * Lengths of time are a DateInterval, or text with a unit such as `15m`.
     *
     * @param array<string, mixed> $schedule
     *     `cron` with `time_zone`, and `seconds` (true) if it has a sixth field for seconds;
     *     or `every`, a period, moved by `phase`;
     *     `starts_at`, `ends_at` (a DateTimeInterface), `exclude` (days: a list of
     *     DateTimeInterface, or of text such as `2030-12-25`), `runs_max`, `spread`;
     *     `overlap` (`skip`), `dst` (`gap`, `overlap`), `missed` (`policy`, `within`,
     *     `count_max`), `paused`, without which a paused schedule is resumed, `note`;
     *     the record of each run, with `ttr` and `retry`, as for a submit
     * @param ?int    $ifMatch     the revision that the schedule must have
     * @param ?string $ifNoneMatch `*`, to create and never replace; both are as for `replace`
     */
    public function setSchedule(
        string $topic,
        string $name,
        array $schedule,
        ?int $ifMatch = null,
        ?string $ifNoneMatch = null,
    ): Schedule {
        $path = Path::ofSchedule($topic, $name);
        $condition = Condition::headers($ifMatch, $ifNoneMatch);
        $answer = $this->http->call('PUT', $path, Body::of($schedule), INF, $condition);
        return Schedule::of(Http::successful($answer));
    }

    /**
     * Checks a schedule without storing it. Its nextRuns are the first runs.
     *
     * @param array<string, mixed> $schedule as for setSchedule
     */
    public function previewSchedule(
        string $topic,
        string $name,
        array $schedule,
        int $runs = 5,
    ): Schedule {
        $path = Path::ofSchedule($topic, $name) . "?dry_run=true&next={$runs}";
        $answer = $this->http->call('PUT', $path, Body::of($schedule));
        return Schedule::of(Http::successful($answer));
    }

    /** Returns a schedule, with so many of its nextRuns, or null. */
    public function getSchedule(string $topic, string $name, int $runs = 0): ?Schedule
    {
        $query = $runs === 0 ? '' : "?next={$runs}";
        return $this->foundSchedule('GET', Path::ofSchedule($topic, $name) . $query);
    }

    /**
     * Yields the schedules of a topic in the order of their names.
     *
     * @return \Generator<int, Schedule>
     */
    public function schedules(string $topic): \Generator
    {
        $path = '/v1/schedules/' . rawurlencode($topic);
        foreach ($this->http->pages($path, [], 'schedules', 'after', 'next_after') as $schedule) {
            yield Schedule::of($schedule);
        }
    }

    /** Pauses a schedule and returns it. Its runs that are not claimed are withdrawn. */
    public function pauseSchedule(string $topic, string $name): Schedule
    {
        $answer = $this->http->call('POST', Path::ofSchedule($topic, $name) . '/pause');
        return Schedule::of(Http::successful($answer));
    }

    /** Ends the pause of a schedule and returns it. */
    public function resumeSchedule(string $topic, string $name): Schedule
    {
        $answer = $this->http->call('POST', Path::ofSchedule($topic, $name) . '/resume');
        return Schedule::of(Http::successful($answer));
    }

    /**
     * Submits one more run, which is due now, and returns its task. It is not repeated once it may
     * have been done, because each call makes a run.
     */
    public function triggerSchedule(string $topic, string $name): array
    {
        $path = Path::ofSchedule($topic, $name) . '/trigger';
        return Http::successful($this->http->call('POST', $path, null, 0.0));
    }

    /**
     * Makes the runs of the past that were never made, due now. The range is the `$last` length of
     * time, or begins at `$from` and ends before `$to`. It begins at most seven days ago, and has
     * at most 1,000 runs. A dry run only counts.
     *
     * No run is made twice, so the call may be repeated. Runs of an attempt whose answer was lost
     * count as already made.
     */
    public function backfillSchedule(
        string $topic,
        string $name,
        string|\DateInterval|null $last = null,
        ?\DateTimeInterface $from = null,
        ?\DateTimeInterface $to = null,
        bool $dryRun = false,
    ): Backfilled {
        $range = ['last' => $last, 'from' => $from, 'to' => $to, 'dry_run' => $dryRun];
        $path = Path::ofSchedule($topic, $name) . '/backfill';
        $answer = $this->http->call('POST', $path, Body::fields($range));
        return Backfilled::of(Http::successful($answer));
    }

    /**
     * Deletes a schedule, and withdraws its runs that are not claimed. Returns the schedule as it
     * was, or null if there is none (any more). With `$ifMatch`, the schedule must have this
     * revision.
     */
    public function deleteSchedule(string $topic, string $name, ?int $ifMatch = null): ?Schedule
    {
        $condition = Condition::headers($ifMatch, null);
        return $this->foundSchedule('DELETE', Path::ofSchedule($topic, $name), $condition);
    }

    private function moveAt(
        string $path,
        string|\DateInterval|null $delay,
        ?\DateTimeInterface $dueAt,
        array $condition,
    ): Moved {
        $due = Body::fields(['delay' => $delay, 'due_at' => $dueAt]) ?: new \stdClass();
        // Once the task may be due, a repetition would say too_late of a move that was made.
        $safeFor = Body::dueIn($delay, $dueAt);
        $body = $this->http->call('PATCH', $path, $due, $safeFor, $condition)[2];
        if (!isset($body['verdict'])) {
            throw new Problem($body);
        }
        $verdict = MoveVerdict::tryFrom($body['verdict']) ?? MoveVerdict::Other;
        return new Moved($verdict, $body['task'] ?? null);
    }

    private function changeTopic(string $topic, string $change, ?string $reason): Topic
    {
        $body = Body::fields(['reason' => $reason]) ?: new \stdClass();
        $answer = $this->http->call('POST', Path::ofTopic($topic) . "/{$change}", $body);
        return Topic::of(Http::successful($answer));
    }

    private function foundSchedule(
        string $method,
        string $path,
        array $condition = [],
    ): ?Schedule {
        $answer = $this->http->call($method, $path, condition: $condition);
        $body = self::found($answer, 'schedule-not-found');
        return $body === null ? null : Schedule::of($body);
    }

    private function answer(string $id, string $call, array $body): Answered
    {
        $path = Path::ofId($id) . "/{$call}";
        // An empty array would be a list in JSON.
        $answer = $this->http->call('POST', $path, Body::fields($body) ?: new \stdClass());
        return Answered::of($answer[0], $answer[2]);
    }

    private function look(string $path): ?array
    {
        return self::found($this->http->call('GET', $path), 'task-not-found');
    }

    private function cancelAt(string $path, array $condition): Cancelled
    {
        $body = $this->http->call('DELETE', $path, condition: $condition)[2];
        if (!isset($body['verdict'])) {
            throw new Problem($body);
        }
        $verdict = Verdict::tryFrom($body['verdict']) ?? Verdict::Other;
        return new Cancelled($verdict, $body['task'] ?? null);
    }

    /**
     * Returns the body of an answer, or null if that is this problem.
     *
     * @param array{int, float, array} $answer
     */
    private static function found(array $answer, string $slug): ?array
    {
        $isMissing = ($answer[2]['type'] ?? '') === "urn:punctual:problem:{$slug}";
        return $isMissing ? null : Http::successful($answer);
    }
}
