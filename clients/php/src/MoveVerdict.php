<?php

declare(strict_types=1);

namespace Punctual;

/** The result of a move: only Moved has changed the task. */
enum MoveVerdict: string
{
    /** The task is due at the new time. */
    case Moved = 'moved';
    /** The task is on its way, or has ended. */
    case TooLate = 'too_late';
    /** Another task has replaced the one of this id: move the one of `replaced_by`. */
    case Replaced = 'replaced';
    case NotFound = 'not_found';
    /** One that this client does not know. */
    case Other = 'other';
}
