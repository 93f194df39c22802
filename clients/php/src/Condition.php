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
     * topic or a schedule, `*`, or null. Throws for an empty list, and for an id that HTTP cannot
     * carry.
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
        if ($ids === []) {
            // curl sends no header without a value, so that there would be no condition.
            throw new \InvalidArgumentException('a condition has no ids: give null for none');
        }
        $quoted = static function (string|int $id): string {
            // A `*` in quotes is the tag of no task, so ifNoneMatch would always hold.
            if ($id === '*' || preg_match('/^[!#-~]+$/D', (string) $id) !== 1) {
                $reason = json_encode($id, JSON_INVALID_UTF8_SUBSTITUTE)
                    . ' in a condition is not an id or a revision; "*" stands alone';
                throw new \InvalidArgumentException($reason);
            }
            return "\"{$id}\"";
        };
        return implode(', ', array_map($quoted, (array) $ids));
    }
}
