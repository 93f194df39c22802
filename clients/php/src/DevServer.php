<?php

declare(strict_types=1);

namespace Punctual;

/** For tests: runs `punctual dev`, with a broker and a clock that a test sets, until it is closed. */
final class DevServer
{
    public readonly string $url;
    /** The bootstrap server for Kafka clients. */
    public readonly string $kafka;
    /** @var resource */
    private $process;

    /**
     * @param list<string> $topics  NAME:PARTITIONS
     * @param ?string      $program else that of PUNCTUAL_BIN, or `punctual` on the PATH
     */
    public function __construct(array $topics = [], ?string $program = null)
    {
        $program ??= getenv('PUNCTUAL_BIN') ?: 'punctual';
        $words = [$program, 'dev', '--port', '0', '--kafka-port', '0', '--json'];
        $words = [...$words, ...array_map(static fn (string $topic) => "--topic={$topic}", $topics)];
        $environment = array_filter(getenv(), static fn ($name) => !str_starts_with($name, 'PUNCTUAL_'), ARRAY_FILTER_USE_KEY);
        $this->process = proc_open($words, [1 => ['pipe', 'w'], 2 => STDERR], $pipes, null, $environment);
        $told = json_decode(fgets($pipes[1]) ?: 'null', true);
        if (!is_array($told)) {
            throw new \RuntimeException('punctual dev has ended: its errors are above');
        }
        ['url' => $this->url, 'kafka' => $this->kafka] = $told;
    }

    public function client(): Client
    {
        return new Client($this->url);
    }

    /** Lets seconds pass. Returns when all that is due until then is published. */
    public function advance(float $seconds): void
    {
        $body = json_encode(['advance' => (int) round($seconds * 1000) . 'ms'], JSON_THROW_ON_ERROR);
        $this->send('/dev/clock', ['method' => 'POST', 'header' => 'content-type: application/json', 'content' => $body]);
    }

    /** Returns the records of a topic, in order. */
    public function published(string $topic): array
    {
        return $this->send('/dev/published?topic=' . rawurlencode($topic), [])['records'];
    }

    public function close(): void
    {
        proc_terminate($this->process);
        proc_close($this->process);
    }

    private function send(string $path, array $options): array
    {
        $text = file_get_contents($this->url . $path, false, stream_context_create(['http' => $options]));
        return $text === false ? throw new \RuntimeException("{$path} is refused") : json_decode($text, true);
    }
}
