<?php

declare(strict_types=1);

namespace Punctual;

/** A schedule. */
final class Schedule
{
    private function __construct(
        public readonly string $topic,
        public readonly string $name,
        /** Counts the changes, from 1 on. */
        public readonly int $revision,
        public readonly bool $isPaused,
        public readonly int $runsMade,
        /** The next run, or null if the schedule is paused or has ended. */
        public readonly ?\DateTimeImmutable $nextRunAt,
        /** @var list<\DateTimeImmutable> the upcoming runs, as many as were asked for */
        public readonly array $nextRuns,
        /** The schedule as the API shows it: in a list, without headers and payload. */
        public readonly array $body,
    ) {
    }

    public static function of(array $body): self
    {
        $time = static fn (string $text) => new \DateTimeImmutable($text);
        return new self(
            $body['topic'],
            $body['name'],
            $body['revision'],
            $body['paused'],
            $body['runs_made'],
            isset($body['next_run_at']) ? $time($body['next_run_at']) : null,
            array_map($time, $body['next'] ?? []),
            $body,
        );
    }
}
