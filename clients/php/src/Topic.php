<?php

declare(strict_types=1);

namespace Punctual;

/** A topic. */
final class Topic
{
    private function __construct(
        public readonly string $topic,
        /** Null if the topic is not paused. */
        public readonly ?Pause $paused,
        /** Tasks that are claimed and not settled: a pause does not stop them. Null if resumed. */
        public readonly ?int $inFlight,
        /** The topic as the API shows it, with its policy and the number of pending tasks. */
        public readonly array $body,
    ) {
    }

    public static function of(array $body): self
    {
        $paused = isset($body['paused']) ? Pause::of($body['paused']) : null;
        return new self($body['topic'], $paused, $body['in_flight'] ?? null, $body);
    }
}
