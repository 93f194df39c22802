<?php

declare(strict_types=1);

namespace Punctual;

/** A topic. */
final class Topic
{
    private function __construct(
        public readonly string $topic,
        /** Counts the changes of the policy and the pauses. */
        public readonly int $revision,
        /** Null without a policy. */
        public readonly ?Policy $policy,
        /** Null if the topic is not paused. */
        public readonly ?Pause $paused,
        /** Tasks that are claimed and not settled: a pause does not stop them. Null if resumed. */
        public readonly ?int $inFlight,
        /** The topic as the API shows it, with the number of pending tasks. */
        public readonly array $body,
    ) {
    }

    public static function of(array $body): self
    {
        $paused = isset($body['paused']) ? Pause::of($body['paused']) : null;
        $policy = isset($body['policy']) ? Policy::of($body['policy']) : null;
        $inFlight = $body['in_flight'] ?? null;
        return new self($body['topic'], $body['revision'], $policy, $paused, $inFlight, $body);
    }
}
