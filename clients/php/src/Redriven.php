<?php

declare(strict_types=1);

namespace Punctual;

/** The result of a redrive of many dead letters. */
final class Redriven
{
    public function __construct(
        /** The tasks that were redriven; in a dry run, those that would be. */
        public readonly int $count,
        /** There are more: other callers were at work at them, or the call has failed there. */
        public readonly bool $hasMore,
    ) {
    }
}
