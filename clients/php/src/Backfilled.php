<?php

declare(strict_types=1);

namespace Punctual;

/** The result of a backfill of a schedule. */
final class Backfilled
{
    private function __construct(
        /** The number of runs that were made; in a dry run, of those that would be. */
        public readonly int $made,
        /** The number of runs that had been made before. */
        public readonly int $alreadyMade,
        /** @var list<\DateTimeImmutable> the instants of the schedule in the range */
        public readonly array $runs,
    ) {
    }

    public static function of(array $body): self
    {
        $time = static fn (string $text) => new \DateTimeImmutable($text);
        return new self($body['made'], $body['already_made'], array_map($time, $body['runs']));
    }
}
