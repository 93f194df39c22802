<?php

declare(strict_types=1);

namespace Punctual;

/**
 * A connection to a node, which repeats requests.
 *
 * @internal
 */
final class Http
{
    public const PAUSE_MIN = 0.1;
    public const PAUSE_MAX = 5.0;
    private const RETRY_AFTER_MAX = 60.0;
    /** Statuses of calls that are repeated, because they were not done, or only perhaps. */
    private const REPEATED = [408, 429, 500, 503];
    /** Problems with status 503 that prove that nothing was done. */
    private const NOT_DONE = ['busy', 'draining', 'unavailable', 'not-ready'];
    /** The problem with status 429 that does not pass: a token or a host is wrong. */
    private const FINAL = 'urn:punctual:problem:denied-too-often';
    /** Errors of curl before a request is sent: nothing was done. */
    private const NOT_CONNECTED = [
        CURLE_COULDNT_RESOLVE_HOST,
        CURLE_COULDNT_CONNECT,
        CURLE_SSL_CONNECT_ERROR,
        ...self::CERTIFICATE,
    ];
    /** A certificate does not become right by asking again. */
    private const CERTIFICATE = [
        CURLE_SSL_CACERT,
        CURLE_SSL_PEER_CERTIFICATE,
        CURLE_SSL_CACERT_BADFILE,
    ];

    private readonly string $url;
    private readonly \CurlHandle $curl;

    public function __construct(
        string $url,
        #[\SensitiveParameter] private readonly ?string $token,
        private readonly ?string $caFile,
        public readonly float $timeout,
        public readonly float $retryFor,
    ) {
        $host = parse_url($url, PHP_URL_HOST);
        $isLocal = in_array($host, ['127.0.0.1', '[::1]', 'localhost'], true);
        if ($token !== null && parse_url($url, PHP_URL_SCHEME) !== 'https' && !$isLocal) {
            $reason = 'a token is sent over https:// only, or to this machine';
            throw new \InvalidArgumentException($reason);
        }
        if ($token !== null && preg_match('/^[!-~]*$/D', $token) !== 1) {
            $reason = 'a token is one line of visible ASCII characters, without spaces';
            throw new \InvalidArgumentException($reason);
        }
        $this->url = rtrim($url, '/');
        $this->curl = curl_init();
    }

    /**
     * Repeats a request until it has an answer. Repeats what was not done (429, 503), and what may
     * have been done (no answer, other 5xx) if a repetition starts within `$safeFor`.
     *
     * @param list<string> $condition the headers of a condition
     * @return array{int, float, array, bool} status, seconds of Retry-After, body, and whether an
     *     attempt before this one may have been done
     */
    public function call(
        string $method,
        string $path,
        array|\stdClass|null $body = null,
        float $safeFor = INF,
        array $condition = [],
    ): array {
        $flags = JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION;
        try {
            $text = $body === null ? null : json_encode($body, $flags);
        } catch (\JsonException $error) {
            $advice = match ($error->getCode()) {
                JSON_ERROR_UTF8 => "; bytes are sent as 'payload_base64' => base64_encode(\$bytes)"
                    . ' in place of payload, key_base64 for a key, and base64 for a header',
                default => '',
            };
            throw new \InvalidArgumentException($error->getMessage() . $advice, 0, $error);
        }
        // With a condition, a repetition could be refused because of what an earlier attempt has
        // done, and the problem would say that nothing was changed.
        $safeFor = $condition === [] ? $safeFor : 0.0;
        $began = hrtime(true);
        $isUnknown = false;
        for ($attempt = 0; ; $attempt++) {
            $answer = $this->attempt($method, $path, $text, $condition, $safeFor !== INF);
            $asked = 0.0;
            $isFinal = false;
            if (is_int($answer)) {
                $failure = curl_strerror($answer) ?? "error {$answer} of curl";
                $isFinal = in_array($answer, self::CERTIFICATE, true);
                $isUnknown = $isUnknown || !in_array($answer, self::NOT_CONNECTED, true);
            } elseif (is_string($answer)) {
                $failure = $answer;
                $isUnknown = true;
            } elseif (
                !in_array($answer[0], self::REPEATED, true)
                || ($answer[2]['type'] ?? '') === self::FINAL
            ) {
                // A refusal of a proxy does not tell whether an earlier attempt was done.
                if ($isUnknown && $answer[0] >= 400 && !Problem::isOfNode($answer[2])) {
                    $failure = (new Problem($answer[2]))->getMessage();
                    throw new NoAnswer("{$method} {$path}: {$failure}", true);
                }
                return [...$answer, $isUnknown];
            } else {
                $problem = new Problem($answer[2]);
                $failure = $problem->getMessage();
                $asked = min($answer[1], self::RETRY_AFTER_MAX);
                $isNotDone = $answer[0] < 500 || in_array($problem->slug, self::NOT_DONE, true);
                $isUnknown = $isUnknown || !$isNotDone;
            }
            $doubled = min(self::PAUSE_MIN * 2 ** min($attempt, 16), self::PAUSE_MAX);
            $pause = max($doubled, $asked) * (1 + random_int(0, 250) / 1000);
            $end = $isUnknown ? min($this->retryFor, $safeFor) : $this->retryFor;
            if ($isFinal || (hrtime(true) - $began) / 1e9 + $pause > $end) {
                throw new NoAnswer("{$method} {$path}: {$failure}", $isUnknown);
            }
            usleep((int) ($pause * 1e6));
        }
    }

    /**
     * Returns the body of an answer. A refusal is a problem.
     *
     * @param array{int, float, array} $answer
     */
    public static function successful(array $answer): array
    {
        return $answer[0] < 300 ? $answer[2] : throw new Problem($answer[2]);
    }

    /** Yields the members of a list, page by page. */
    public function pages(
        string $path,
        array $query,
        string $member,
        string $parameter,
        string $following,
    ): \Generator {
        do {
            // Parameters of null are left out.
            $text = http_build_query($query, '', '&', PHP_QUERY_RFC3986);
            $page = self::successful($this->call('GET', "{$path}?{$text}"));
            foreach ($page[$member] as $one) {
                yield $one;
            }
            $query[$parameter] = $page[$following];
        } while ($query[$parameter] !== null);
    }

    /**
     * Makes a call with many parts. Repeats those that were not done, or perhaps. Once some parts
     * have their answer, a failure leaves the others with their problem.
     */
    public function many(string $path, string $member, array $bodies): array
    {
        $results = [];
        $left = array_values($bodies);
        $began = hrtime(true);
        for ($pause = self::PAUSE_MIN; $left !== []; $pause = min($pause * 2, self::PAUSE_MAX)) {
            $body = [$member => array_values($left)];
            $wasLost = false;
            try {
                $answer = $this->call('POST', $path, $body);
                $wasLost = $answer[3];
                $answers = self::successful($answer)['results'];
            } catch (NoAnswer | Problem $failure) {
                if ($results === []) {
                    throw $failure;
                }
                if ($wasLost || ($failure instanceof NoAnswer && $failure->isUnknown)) {
                    $result = self::unknown($failure);
                    $results = array_fill_keys(array_keys($left), $result) + $results;
                }
                break;
            }
            $wait = $pause;
            foreach (array_combine(array_keys($left), $answers) as $index => $result) {
                if (in_array($result['status'], self::REPEATED, true)) {
                    $asked = (float) ($result['problem']['retry_after'] ?? 0);
                    $wait = max($wait, min($asked, self::RETRY_AFTER_MAX));
                    // A refusal does not tell whether an earlier attempt was done.
                    if (self::wasPerhapsDone($results[$index] ?? null)) {
                        continue;
                    }
                    if ($wasLost && !self::wasPerhapsDone($result)) {
                        $result = self::unknown(new Problem($result['problem']));
                    }
                } else {
                    unset($left[$index]);
                }
                $results[$index] = $result;
            }
            if ($left === [] || (hrtime(true) - $began) / 1e9 + $wait > $this->retryFor) {
                break;
            }
            usleep((int) ($wait * (1e6 + random_int(0, 250_000))));
        }
        ksort($results);
        return $results;
    }

    /** Returns the result of a part of a call that may have been done by an attempt that failed. */
    private static function unknown(\RuntimeException $failure): array
    {
        return ['status' => 503, 'problem' => Problem::unknown($failure)];
    }

    /** Tells of a part of a call whose last answer does not say whether it was done. */
    private static function wasPerhapsDone(?array $result): bool
    {
        $status = $result['status'] ?? 0;
        if ($status < 500 || !in_array($status, self::REPEATED, true)) {
            return false;
        }
        return !in_array((new Problem($result['problem']))->slug, self::NOT_DONE, true);
    }

    /**
     * @return int|string|array{int, float, array} the error of curl, the failure of a proxy, or the
     *     answer
     */
    private function attempt(
        string $method,
        string $path,
        ?string $text,
        array $condition,
        bool $isOnce,
    ): int|string|array {
        $retryAfter = 0.0;
        // Curl takes an empty body for a form, and without any body gives no length.
        $contentType = $text === null ? 'content-type:' : 'content-type: application/json';
        $text ??= $method === 'POST' ? '' : null;
        $headers = ['expect:', $contentType, ...$condition];
        if ($this->token !== null) {
            $headers[] = "authorization: Bearer {$this->token}";
        }
        curl_reset($this->curl);
        curl_setopt_array($this->curl, [
            CURLOPT_URL => $this->url . $path,
            CURLOPT_CUSTOMREQUEST => $method,
            CURLOPT_HTTPHEADER => $headers,
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_TIMEOUT_MS => (int) ($this->timeout * 1000),
            // On a kept connection that ends without an answer, curl repeats the request by itself.
            CURLOPT_FRESH_CONNECT => $isOnce,
            CURLOPT_HEADERFUNCTION => static function ($curl, string $line) use (&$retryAfter) {
                if (stripos($line, 'retry-after:') === 0) {
                    $retryAfter = (float) substr($line, 12);
                }
                return strlen($line);
            },
        ] + ($text === null ? [] : [CURLOPT_POSTFIELDS => $text])
          + ($this->caFile === null ? [] : [CURLOPT_CAINFO => $this->caFile]));
        $answer = curl_exec($this->curl);
        if ($answer === false) {
            $error = curl_errno($this->curl);
            // Curl may have sent the request before, on a kept connection that has ended.
            $isSent = curl_getinfo($this->curl, CURLINFO_REQUEST_SIZE) > 0;
            $isHidden = $isSent && in_array($error, self::NOT_CONNECTED, true);
            return $isHidden ? CURLE_GOT_NOTHING : $error;
        }
        $status = curl_getinfo($this->curl, CURLINFO_RESPONSE_CODE);
        $body = self::read($status, $answer);
        return is_array($body) ? [$status, $retryAfter, $body] : $body;
    }

    /**
     * Returns the body of an answer. A 4xx of a proxy becomes a problem without a type. Any other
     * answer of a proxy does not say what was done, and is an error.
     */
    private static function read(int $status, string $text): array|string
    {
        $body = str_starts_with(ltrim($text), '{') ? json_decode($text, true) : null;
        if ($body !== null && ($status < 400 || Problem::isOfNode($body))) {
            return $body;
        }
        $reason = 'the answer is not of Punctual';
        if ($status < 400 || $status >= 500) {
            return "status {$status}: {$reason}";
        }
        return ['type' => '', 'status' => $status] + ($body ?? []) + ['detail' => $reason];
    }
}
