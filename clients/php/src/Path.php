<?php

declare(strict_types=1);

namespace Punctual;

/**
 * The paths of requests.
 *
 * @internal
 */
final class Path
{
    public static function ofId(string $id): string
    {
        return '/v1/tasks/' . rawurlencode($id);
    }

    public static function ofTopic(string $topic): string
    {
        return '/v1/topics/' . rawurlencode($topic);
    }

    public static function ofName(string $topic, string $name): string
    {
        return self::ofTopic($topic) . '/tasks/' . rawurlencode($name);
    }

    public static function ofCallback(string $topic): string
    {
        return self::ofTopic($topic) . '/callback';
    }

    public static function ofPolicy(string $topic): string
    {
        return self::ofTopic($topic) . '/policy';
    }

    public static function ofSchedule(string $topic, string $name): string
    {
        return '/v1/schedules/' . rawurlencode($topic) . '/' . rawurlencode($name);
    }
}
