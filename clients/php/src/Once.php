<?php

declare(strict_types=1);

namespace Punctual;

/**
 * For consumers: runs the work of each task once, for duplicates that arrive soon after the first
 * record.
 *
 * It remembers tasks in memory, in this process. For exactly one effect, store the id of the task
 * in the transaction of the work (docs/start/first-consumer.md).
 */
final class Once
{
    /** The header with the id of the task. */
    public const TASK_ID = 'punctual-task-id';
    /** The header with the due time in milliseconds since the epoch. */
    public const DUE_AT = 'punctual-due-at';
    /** The header with the number of the attempt. Only records of tracked tasks have it. */
    public const ATTEMPT = 'punctual-attempt';

    /** @var array<string, true> in the order of their end */
    private array $seen = [];

    public function __construct(private readonly int $remembered = 100_000)
    {
    }

    /**
     * Runs the work unless this task's work has succeeded before. Returns whether it ran. Work that
     * throws is not remembered.
     *
     * @param array<string, string> $headers of the record, as php-rdkafka has them
     */
    public function run(array $headers, callable $work): bool
    {
        $task = $headers[self::TASK_ID] ?? null;
        if ($task !== null && isset($this->seen[$task])) {
            return false;
        }
        $work();
        if ($task !== null) {
            $this->seen[$task] = true;
            if (count($this->seen) > $this->remembered) {
                unset($this->seen[array_key_first($this->seen)]);
            }
        }
        return true;
    }
}
