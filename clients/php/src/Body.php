<?php

declare(strict_types=1);

namespace Punctual;

/**
 * The bodies of requests, from what callers give.
 *
 * @internal
 */
final class Body
{
    /** Members that are lengths of time. */
    private const SPANS = [
        'delay', 'ttr', 'backoff_min', 'backoff_max', 'retry_in', 'by',
        'every', 'phase', 'spread', 'within', 'wait', 'timeout', 'last',
        'delay_max', 'expire_after',
    ];
    /** Members that are times. */
    private const TIMES = [
        'due_at', 'expires_at', 'retry_at', 'due_from', 'due_to', 'starts_at', 'ends_at',
        'not_after', 'from', 'to',
    ];

    /** Returns the body of a submit. A task without a name gets a random one. */
    public static function named(string $topic, array $task): array
    {
        $name = $task['name'] ?? 'client-' . bin2hex(random_bytes(16));
        return ['topic' => $topic, 'name' => $name] + self::of($task);
    }

    /** Returns the body of a task without topic and name, of a schedule, or of a policy. */
    public static function of(array $task): array
    {
        foreach (['retry', 'missed', 'dst'] as $part) {
            if (isset($task[$part])) {
                $task[$part] = self::fields($task[$part]) ?: new \stdClass();
            }
        }
        $null = array_key_exists('payload', $task) ? ['payload' => $task['payload']] : [];
        return $null + self::fields($task);
    }

    /**
     * Returns members with spans in milliseconds, times as text and headers as an object, without
     * those of null.
     */
    public static function fields(array $members): array
    {
        foreach (self::SPANS as $span) {
            if (isset($members[$span])) {
                $members[$span] = Span::of($span, $members[$span]);
            }
        }
        foreach (self::TIMES as $time) {
            if (($members[$time] ?? null) instanceof \DateTimeInterface) {
                $members[$time] = $members[$time]->format('Y-m-d\TH:i:s.uP');
            }
        }
        if (is_array($members['headers'] ?? null)) {
            // An empty array would be a list in JSON.
            $members['headers'] = (object) $members['headers'];
        }
        foreach ($members['exclude'] ?? [] as $index => $day) {
            if ($day instanceof \DateTimeInterface) {
                $members['exclude'][$index] = $day->format('Y-m-d');
            }
        }
        return array_filter($members, static fn (mixed $value) => $value !== null);
    }

    /** Returns the seconds until a task is due, by this machine's clock if it has a due time. */
    public static function dueIn(mixed $delay, ?\DateTimeInterface $dueAt): float
    {
        return $dueAt === null
            // A length of time that only a node can read may be over at once.
            ? Span::seconds('delay', $delay ?? '0s') ?? 0.0
            : (float) $dueAt->format('U.u') - microtime(true);
    }
}
