<?php

declare(strict_types=1);

namespace Punctual;

/** The pause of a topic. */
final class Pause
{
    private function __construct(
        public readonly \DateTimeImmutable $since,
        /** The reason that was given, or null. */
        public readonly ?string $reason,
        /** The principal that paused the topic, or null for an anonymous caller. */
        public readonly ?string $by,
    ) {
    }

    public static function of(array $body): self
    {
        $since = new \DateTimeImmutable($body['since']);
        return new self($since, $body['reason'] ?? null, $body['by'] ?? null);
    }
}
