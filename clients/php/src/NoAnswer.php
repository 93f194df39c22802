<?php

declare(strict_types=1);

namespace Punctual;

/** No attempt got an answer in time. */
final class NoAnswer extends \RuntimeException
{
    /** @param bool $isUnknown true if an attempt may have taken effect; false: nothing was done */
    public function __construct(string $message, public readonly bool $isUnknown)
    {
        parent::__construct($message);
    }
}
