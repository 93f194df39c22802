<?php

declare(strict_types=1);

namespace Punctual;

/** A refused request. Nothing was done, and the same request is refused again. */
final class Problem extends \RuntimeException
{
    private const PREFIX = 'urn:punctual:problem:';

    /**
     * The last part of the type, such as `unknown-topic`. Decide by it. Empty if a proxy has
     * refused the request.
     */
    public readonly string $slug;
    public readonly int $status;
    public readonly string $detail;
    /** The wrong field, such as `due_at`, or null. */
    public readonly ?string $field;

    public function __construct(public readonly array $body)
    {
        $this->slug = str_replace(self::PREFIX, '', (string) ($body['type'] ?? ''));
        $this->status = (int) ($body['status'] ?? 0);
        $this->detail = (string) ($body['detail'] ?? '');
        $this->field = is_string($body['field'] ?? null) ? $body['field'] : null;
        $reason = $this->slug === '' ? "status {$this->status}" : $this->slug;
        parent::__construct("{$reason}: {$this->detail}");
    }

    /**
     * Returns the problem of a part of a call that may have been done by an attempt that failed.
     *
     * @internal
     */
    public static function unknown(\RuntimeException $failure): array
    {
        $detail = $failure->getMessage();
        return ['type' => self::PREFIX . 'outcome-unknown', 'status' => 503, 'detail' => $detail];
    }

    /** @internal */
    public static function isOfNode(array $body): bool
    {
        return str_starts_with((string) ($body['type'] ?? ''), self::PREFIX);
    }
}
