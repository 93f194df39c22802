<?php

declare(strict_types=1);

namespace Punctual;

/** An attempt of a tracked task, with its record. */
final class PoppedTask
{
    private function __construct(
        public readonly string $id,
        /** The number of this attempt, for `finish`, `fail` and `extend`. */
        public readonly int $attempt,
        /** The end of the time to run: the task comes again afterwards. */
        public readonly \DateTimeImmutable $finishBy,
        /**
         * The task as the API shows it: `payload` (or `payload_text`, `payload_base64`,
         * `tombstone`), `key`, `headers`, `attempts_max`, `due_at`, ..
         */
        public readonly array $body,
    ) {
    }

    public static function of(array $body): self
    {
        $finishBy = new \DateTimeImmutable($body['finish_by']);
        return new self($body['id'], $body['attempt'], $finishBy, $body);
    }
}
