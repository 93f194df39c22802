<?php

declare(strict_types=1);

namespace Punctual;

/**
 * The verdict on a consumer's answer. The first five took effect, the others changed nothing,
 * except for Other: see `tookEffect`.
 */
enum Outcome: string
{
    case Finished = 'finished';
    /** The next attempt has a due time. */
    case Retrying = 'retrying';
    /** The task is a dead letter, or about to be one: by this answer, or before it. */
    case Dead = 'dead';
    case Extended = 'extended';
    /** It takes effect once the node knows that the record was published. */
    case Noted = 'noted';
    case NotPublishedYet = 'not_published_yet';
    case AttemptTooHigh = 'attempt_too_high';
    /** A later attempt was made: stop the work. */
    case AttemptSuperseded = 'attempt_superseded';
    case AlreadyFailed = 'already_failed';
    case AlreadyFinished = 'already_finished';
    case Cancelled = 'cancelled';
    case NotTracked = 'not_tracked';
    case NotFound = 'not_found';
    /** One that this client does not know. */
    case Other = 'other';
}
