<?php

declare(strict_types=1);

namespace Punctual;

/** Lengths of time: a DateInterval, or text with a unit, such as `5s`, `1h 30m` or `PT30M`. */
final class Span
{
    private const SECONDS = [
        'ms' => 0.001, 's' => 1, 'm' => 60, 'h' => 3600, 'd' => 86_400, 'w' => 604_800,
    ];

    /** Returns milliseconds or text for the API. A bare number has no unit, and is refused. */
    public static function of(string $member, mixed $value): int|string
    {
        if (is_string($value)) {
            return $value;
        }
        if (!$value instanceof \DateInterval) {
            $found = is_scalar($value) ? var_export($value, true) : get_debug_type($value);
            $wanted = 'give a DateInterval, or text with a unit such as "5s"';
            throw new \InvalidArgumentException("{$member} is {$found}: {$wanted}");
        }
        if ($value->days === false && ($value->y !== 0 || $value->m !== 0)) {
            throw new \InvalidArgumentException("{$member} has years or months: give days");
        }
        $days = $value->days === false ? $value->d : $value->days;
        $seconds = (($days * 24 + $value->h) * 60 + $value->i) * 60 + $value->s + $value->f;
        return (int) round(($value->invert === 1 ? -1000 : 1000) * $seconds);
    }

    /** Returns the seconds of a length of time, or null for text that only a node can read. */
    public static function seconds(string $member, mixed $value): ?float
    {
        $span = self::of($member, $value);
        if (is_int($span)) {
            return $span / 1000;
        }
        if (preg_match('/^(\s*\d+\s*(ms|[smhdw])(?![a-z]))+$/', $span) !== 1) {
            return null;
        }
        preg_match_all('/(\d+)\s*([a-z]+)/', $span, $parts, PREG_SET_ORDER);
        $seconds = static fn (array $part) => (int) $part[1] * self::SECONDS[$part[2]];
        return (float) array_sum(array_map($seconds, $parts));
    }
}
