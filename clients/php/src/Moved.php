<?php

declare(strict_types=1);

namespace Punctual;

/** A verdict with its task as the API shows it, or null if there is none. */
final class Moved
{
    public function __construct(public readonly MoveVerdict $verdict, public readonly ?array $task)
    {
    }
}
