<?php

declare(strict_types=1);

namespace Punctual;

/**
 * For tests: runs `punctual dev` until it is closed, a node with a broker, and a clock that the
 * test sets.
 */
final class DevServer
{
    /** In seconds. The server answers after 10 minutes at the latest. */
    private const TIMEOUT = 610;

    public readonly string $url;
    /** The bootstrap server for Kafka clients. */
    public readonly string $kafka;
    /** @var resource */
    private $process;

    /**
     * @param list<string> $topics  NAME:PARTITIONS
     * @param ?string      $program by default that of PUNCTUAL_BIN, otherwise `punctual` from the
     * PATH
     */
    public function __construct(array $topics = [], ?string $program = null)
    {
        $program ??= getenv('PUNCTUAL_BIN') ?: 'punctual';
        $words = [$program, 'dev', '--port', '0', '--kafka-port', '0', '--json'];
        $words = [...$words, ...array_map(static fn (string $topic) => "--topic={$topic}", $topics)];
        $isKept = static fn (string $name) => !str_starts_with($name, 'PUNCTUAL_');
        $environment = array_filter(getenv(), $isKept, ARRAY_FILTER_USE_KEY);
        $ways = [1 => ['pipe', 'w'], 2 => STDERR];
        if (!self::isProgram($program)) {
            $advice = 'set PUNCTUAL_BIN, or give the program to new DevServer';
            throw new \RuntimeException("no program `{$program}` on the PATH; {$advice}");
        }
        $this->process = proc_open($words, $ways, $pipes, null, $environment);
        $places = json_decode(fgets($pipes[1]) ?: 'null', true);
        if (!is_array($places)) {
            throw new \RuntimeException('punctual dev has ended: its errors are above');
        }
        ['url' => $this->url, 'kafka' => $this->kafka] = $places;
    }

    public function __destruct()
    {
        $this->close();
    }

    public function client(): Client
    {
        return new Client($this->url);
    }

    /** Lets time pass. Returns when every task that is due until then is published. */
    public function advance(string|\DateInterval $span): void
    {
        $this->send('/dev/clock', [
            'method' => 'POST',
            'header' => 'content-type: application/json',
            'content' => json_encode(['advance' => Span::of('advance', $span)], JSON_THROW_ON_ERROR),
        ]);
    }

    /** Returns the records of a topic, in order. */
    public function published(string $topic): array
    {
        return $this->send('/dev/published?topic=' . rawurlencode($topic), [])['records'];
    }

    public function close(): void
    {
        if (is_resource($this->process)) {
            proc_terminate($this->process);
            proc_close($this->process);
        }
    }

    private static function isProgram(string $program): bool
    {
        $folders = str_contains($program, '/') ? [''] : explode(':', getenv('PATH') ?: '');
        foreach ($folders as $folder) {
            $path = $folder === '' ? $program : "{$folder}/{$program}";
            if (is_file($path) && is_executable($path)) {
                return true;
            }
        }
        return false;
    }

    private function send(string $path, array $options): array
    {
        $options += ['timeout' => self::TIMEOUT, 'ignore_errors' => true];
        $context = stream_context_create(['http' => $options]);
        $text = file_get_contents($this->url . $path, false, $context);
        $answer = json_decode($text ?: 'null', true);
        if (isset($answer['status'])) {
            throw new Problem($answer);
        }
        if (!is_array($answer)) {
            throw new \RuntimeException("{$path}: " . ($text ?: 'no answer'));
        }
        return $answer;
    }
}
