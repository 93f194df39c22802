<?php

declare(strict_types=1);

namespace Punctual;

/** The result of a cancel. */
enum Verdict: string
{
    case Cancelled = 'cancelled';
    case TooLate = 'too_late';
    case Replaced = 'replaced';
    case NotFound = 'not_found';
    /** One that this client does not know. */
    case Other = 'other';
}
