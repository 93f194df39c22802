<?php

declare(strict_types=1);

namespace Punctual;

/**
 * Conditions of a change: If-Match, If-None-Match, and `when` of a replacement.
 *
 * @internal
 */
final class Condition
{
    /**
     * Returns the headers of a condition: each the id of a task, a list of ids, the revision of a
     * topic or a schedule, `*`, or null.
     *
     * @param string|list<string>|int|null $ifMatch
     * @param string|list<string>|int|null $ifNoneMatch
     * @return list<string>
     */
    public static function headers(
        string|array|int|null $ifMatch,
        string|array|int|null $ifNoneMatch,
    ): array {
        $headers = [];
        foreach (['if-match' => $ifMatch, 'if-none-match' => $ifNoneMatch] as $name => $ids) {
            if ($ids !== null) {
                $headers[] = "{$name}: " . self::tags($ids);
            }
        }
        return $headers;
    }

    /** Returns the query of a condition about due times, with its question mark, or no text. */
    public static function query(?string $when, ?\DateTimeInterface $notAfter): string
    {
        $given = Body::fields(['when' => $when, 'not_after' => $notAfter]);
        return $given === [] ? '' : '?' . http_build_query($given, '', '&', PHP_QUERY_RFC3986);
    }

    private static function tags(string|array|int $ids): string
    {
        if ($ids === '*') {
            return $ids;
        }
        $quoted = array_map(static fn (string|int $id) => "\"{$id}\"", (array) $ids);
        // curl would send what follows a line break as another header.
        if (preg_grep('/[\x00-\x1f]/', $quoted) !== []) {
            throw new \InvalidArgumentException('an id of a condition has a control character');
        }
        return implode(', ', $quoted);
    }
}
