<?php

declare(strict_types=1);

namespace Punctual;

/** For services that are called back: whether a node has sent a request. */
final class Signature
{
    /** The header with the signature of a callback. */
    public const HEADER = 'punctual-signature';
    /** Nodes take no shorter key. */
    private const KEY_BYTES_MIN = 24;

    /**
     * Returns whether a node with one of these keys has sent the request.
     *
     * @param list<string> $keys the lines of the node's file
     * @param string $topic the one whose tasks the service takes
     * @param string $body the bytes of the request
     * @param int $maxAge in seconds; an older signature is not genuine
     */
    public static function isGenuine(
        array $keys,
        ?string $signature,
        string $topic,
        string $body,
        int $maxAge = 300,
    ): bool {
        [$seconds, $given] = ['', []];
        foreach (explode(',', $signature ?? '') as $part) {
            [$name, $value] = explode('=', $part, 2) + ['', ''];
            if ($name === 't') {
                $seconds = $value;
            } elseif ($name === 'v1') {
                $given[] = $value;
            }
        }
        if (!ctype_digit($seconds) || abs(time() - (int) $seconds) > $maxAge) {
            return false;
        }
        foreach ($keys as $line) {
            $secret = (string) base64_decode(trim($line), true);
            if (strlen($secret) < self::KEY_BYTES_MIN) {
                continue; // Anybody could sign with an empty line or a comment.
            }
            $digest = hash_hmac('sha256', "{$seconds}\n{$topic}\n{$body}", $secret);
            foreach ($given as $value) {
                if (hash_equals($digest, $value)) {
                    return true;
                }
            }
        }
        return false;
    }
}
