<?php

declare(strict_types=1);

namespace Punctual;

/** The policy of a topic. Lengths of time are text with a unit. A missing member is null. */
final class Policy
{
    private function __construct(
        public readonly ?string $ttr,
        /** `attempts_max`, `backoff_min`, ..; as for a submit. */
        public readonly ?array $retry,
        public readonly ?string $delayMax,
        public readonly ?string $expireAfter,
        public readonly ?string $spread,
        public readonly ?int $pendingMax,
        public readonly bool $submittedByHeader,
        /** The policy as the API shows it, and as setPolicy takes it. */
        public readonly array $body,
    ) {
    }

    public static function of(array $body): self
    {
        return new self(
            $body['ttr'] ?? null,
            $body['retry'] ?? null,
            $body['delay_max'] ?? null,
            $body['expire_after'] ?? null,
            $body['spread'] ?? null,
            $body['pending_max'] ?? null,
            $body['submitted_by_header'] ?? false,
            $body,
        );
    }
}
