<?php

declare(strict_types=1);

namespace Punctual;

/** The result of a consumer's answer, with the task as the API shows it, or null. */
final class Answered
{
    private function __construct(
        public readonly Outcome $verdict,
        /** False if the answer came too late, or was wrong: nothing was changed. */
        public readonly bool $tookEffect,
        /** Finished, and an attempt that was claimed before may still reach the topic. */
        public readonly bool $inFlight,
        /** Finished after a later attempt was made. */
        public readonly bool $superseded,
        public readonly ?array $task,
    ) {
    }

    /** Reads an answer. A call without a verdict is a problem. */
    public static function of(int $status, array $body): self
    {
        $problem = $body['problem'] ?? $body;
        $verdict = $body['verdict'] ?? throw new Problem($problem);
        return new self(
            Outcome::tryFrom($verdict) ?? Outcome::Other,
            $status < 300,
            $body['in_flight'] ?? false,
            $body['superseded'] ?? false,
            $body['task'] ?? $problem['task'] ?? null,
        );
    }
}
