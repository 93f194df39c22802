/** Schedules: when they run, backfills, and how the API shows both. */

import type { Record } from './tasks.js';
import { type Span, span } from './span.js';

/** A schedule as the API shows it. */
export interface Schedule {
    topic: string;
    name: string;
    /** Counts the changes, from 1 on. */
    revision: number;
    paused: boolean;
    runs_made: number;
    /** Missing if the schedule is paused or has ended. */
    next_run_at?: string;
    /** The upcoming runs, as many as were asked for. */
    next?: string[];
    /** The record's value, if it is JSON. Lists are without it. */
    payload?: unknown;
    [member: string]: unknown;
}

/**
 * When a schedule runs, and the record that each run publishes: one of `cron` with `timeZone`, and
 * `every`.
 */
export interface ScheduleDraft extends Omit<Record, 'delay' | 'dueAt' | 'expiresAt'> {
    /** Five fields: minute, hour, day of the month, month, day of the week. */
    cron?: string;
    /** A name of the IANA database, such as `Europe/Berlin`. */
    timeZone?: string;
    /** `cron` has six fields, the first one for seconds. */
    seconds?: boolean;
    /** The period. */
    every?: Span;
    /** Moves the instants of `every`. */
    phase?: Span;
    /** No run before this time. */
    startsAt?: Date;
    /** No run at or after this time. */
    endsAt?: Date;
    /** Days without runs, such as `2030-12-25`. */
    exclude?: string[];
    /** The schedule ends after this many runs. */
    runsMax?: number;
    /** `skip`: no run while one before is not finished. It needs `ttr`. */
    overlap?: 'allow' | 'skip';
    /** Each run is due up to this much later. */
    spread?: Span;
    /** Local times that do not exist (`gap`), or occur twice (`overlap`). */
    dst?: { gap?: 'shift' | 'skip'; overlap?: 'first' | 'both' };
    missed?: MissedRuns;
    /** A paused schedule makes no runs. Without it, a paused schedule is resumed. */
    paused?: boolean;
    note?: string;
}

/** The treatment of instants that passed without a run. */
export interface MissedRuns {
    policy?: 'last' | 'all' | 'none';
    /** How long ago the instants may be. */
    within?: Span;
    /** With `all`: the most runs. */
    countMax?: number;
}

/** A range of the past: `last`, or `from` and `to`. At most seven days, and 1,000 runs. */
export interface BackfillRange {
    /** The range is this long, and ends now. */
    last?: Span;
    from?: Date;
    /** The end, which is not part of the range. */
    to?: Date;
    /** Only count. */
    dryRun?: boolean;
}

/** The result of a backfill as the API shows it. */
export interface Backfilled {
    dry_run: boolean;
    /** The number of runs that were made; in a dry run, of those that would be. */
    made: number;
    /** The number of runs that had been made before. */
    already_made: number;
    /** The instants of the schedule in the range. */
    runs: string[];
    [member: string]: unknown;
}

/** Returns a range as the API takes it. */
export function backfillBody({ last, from, to, dryRun }: BackfillRange): object {
    return {
        last: span('last', last),
        from: from?.toISOString(),
        to: to?.toISOString(),
        dry_run: dryRun,
    };
}

/** Splits a draft into its timing as the API takes it, and the rest, with the record. */
export function timed(draft: ScheduleDraft): [timing: object, rest: Record] {
    const { timeZone, every, phase, startsAt, endsAt, runsMax, spread, missed, ...rest } = draft;
    const timing = {
        time_zone: timeZone,
        every: span('every', every),
        phase: span('phase', phase),
        starts_at: startsAt?.toISOString(),
        ends_at: endsAt?.toISOString(),
        runs_max: runsMax,
        spread: span('spread', spread),
        missed: missed && {
            policy: missed.policy,
            within: span('within', missed.within),
            count_max: missed.countMax,
        },
    };
    return [timing, rest];
}
