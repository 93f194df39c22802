//! A schedule, read from JSON: when it runs, and the record of its runs.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName};
use jiff::civil::Date;
use serde_json::value::RawValue;

use super::{RawMember, record_of};
use crate::api::json::times;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::problems::refusal::FieldOrigin;
use crate::api::request::fields::{
    array, boolean, count, duration, members, refuse_internal, span_within, string,
};
use crate::api::request::tracking;
use crate::domain::schedule::cron::Cron;
use crate::domain::schedule::plan::{MISSED_MAX, MissedPolicy, MissedRuns, RunOverlap};
use crate::domain::schedule::timing::{
    EXCLUDED_MAX, Gap, Overlap, Recurrence, SpecificationError, Timing,
};
use crate::domain::schedule::zone::Zone;
use crate::domain::schedule::{RevisionCondition, Schedule, Specification};
use crate::domain::task::spread::SPREAD_MAX;
use crate::domain::{ScheduleName, Timestamp, TopicName};
use crate::node::messages::Backfill;

/// The fields of a schedule.
pub const FIELDS: [&str; 24] = [
    "cron",
    "seconds",
    "time_zone",
    "dst",
    "every",
    "phase",
    "starts_at",
    "ends_at",
    "exclude",
    "runs_max",
    "missed",
    "overlap",
    "spread",
    "paused",
    "note",
    "ttr",
    "retry",
    "payload",
    "payload_text",
    "payload_base64",
    "tombstone",
    "key",
    "key_base64",
    "headers",
];

/// The field that problems about due times name. Each run is checked as if it were due now. Only a
/// first run that is too far ahead is refused for its start: see `ScheduleService::put`.
const DUE: &str = "starts_at";
/// The most runs that `runs_max` may allow.
const RUNS_MAX: u64 = 1_000_000_000_000;
/// Nodes read the expressions of hundreds of schedules at a time.
const CRON_BYTES_MAX: usize = 1_024;

/// Reads a schedule whose topic and name are in the path.
pub fn read(
    text: &str,
    topic: TopicName,
    name: ScheduleName,
) -> Result<(Schedule, FieldOrigin), Problem> {
    refuse_internal(&topic, "topic")?;
    let [
        cron,
        seconds,
        time_zone,
        dst,
        every,
        phase,
        starts_at,
        ends_at,
        exclude,
        runs_max,
        missed,
        overlap,
        spread,
        paused,
        note,
        ttr,
        retry,
        record @ ..,
    ] = members(text, &FIELDS)?;
    let recurrence = match (cron, every) {
        (Some(cron), None) => {
            refuse(phase, "phase", "it is for every; a cron expression has its own times")?;
            cron_of(cron, seconds, time_zone, dst)?
        }
        (None, Some(every)) => {
            let why = "it is for cron; every counts the time that passes, in any zone";
            refuse(seconds, "seconds", why)?;
            refuse(time_zone, "time_zone", why)?;
            refuse(dst, "dst", why)?;
            let phase = phase.map_or(Ok(Duration::ZERO), |phase| duration(phase, "phase"))?;
            Recurrence::every(duration(every, "every")?, phase).map_err(invalid)?
        }
        (None, None) => {
            let detail = "one of cron and every is required";
            return Err(Problem::new(ProblemType::MissingField, detail).at("cron"));
        }
        (Some(_), Some(_)) => {
            let detail = "give cron or every, not both";
            return Err(Problem::new(ProblemType::ConflictingFields, detail).at("every"));
        }
    };
    let excluded = exclude.map_or_else(|| Ok(BTreeSet::new()), days_of)?;
    let (starts_at, ends_at) = (time_of(starts_at, "starts_at")?, time_of(ends_at, "ends_at")?);
    let run_overlap = overlap.map_or(Ok(RunOverlap::Allow), overlap_of)?;
    if run_overlap == RunOverlap::Skip && ttr.is_none() {
        let detail =
            "with overlap skip, a time to run is required: it tells when a run is finished";
        return Err(Problem::new(ProblemType::MissingField, detail).at("ttr"));
    }
    let specification = Specification {
        timing: Timing::new(recurrence, starts_at, ends_at, excluded).map_err(invalid)?,
        runs_max: runs_max.map(runs_max_of).transpose()?,
        missed: missed.map_or(Ok(MissedRuns::LAST), missed_of)?,
        run_overlap,
        spread: spread.map_or(Ok(Duration::ZERO), spread_of)?,
        is_paused: paused.map_or(Ok(false), |paused| boolean(paused, "paused"))?,
        note: note.map(note_of).transpose()?,
    };
    let (record, payload) = record_of(topic, record, None)?;
    let tracking = tracking::of(ttr, retry, &record.topic)?.map(Box::new);
    Ok((Schedule { name, specification, record, tracking }, FieldOrigin { due: DUE, payload }))
}

/// Reads what the revision of a schedule must be, from `If-Match` and `If-None-Match`.
pub fn condition_of(headers: &HeaderMap) -> Result<RevisionCondition, Problem> {
    let value = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => Ok(Some(value.as_bytes().trim_ascii())),
            (Some(_), Some(_)) => Err(wrong_tag(name)),
        }
    };
    match (value(&IF_MATCH)?, value(&IF_NONE_MATCH)?) {
        (None, None) => Ok(RevisionCondition::None),
        (Some(b"*"), None) => Ok(RevisionCondition::Exists),
        (None, Some(b"*")) => Ok(RevisionCondition::IsNew),
        (Some(tag), None) => {
            let number = tag.strip_prefix(b"\"").and_then(|tag| tag.strip_suffix(b"\""));
            let number = number.and_then(|number| std::str::from_utf8(number).ok());
            let revision = number.and_then(|number| number.parse().ok());
            revision.map(RevisionCondition::Is).ok_or_else(|| wrong_tag(&IF_MATCH))
        }
        (_, Some(_)) => Err(wrong_tag(&IF_NONE_MATCH)),
    }
}

fn wrong_tag(name: &HeaderName) -> Problem {
    let detail = "nothing was done: expected If-Match with * or the ETag of the schedule, such as \
                  \"3\", or If-None-Match with *, and only one of them";
    Problem::invalid(String::from(name.as_str()), detail)
}

fn invalid(error: SpecificationError) -> Problem {
    Problem::invalid(error.field, error.reason)
}

fn refuse(member: RawMember<'_>, field: &'static str, why: &'static str) -> Result<(), Problem> {
    match member {
        None => Ok(()),
        Some(_) => Err(Problem::new(ProblemType::ConflictingFields, why).at(field)),
    }
}

fn cron_of(
    cron: &RawValue,
    seconds: RawMember<'_>,
    time_zone: RawMember<'_>,
    dst: RawMember<'_>,
) -> Result<Recurrence, Problem> {
    let has_seconds = seconds.map_or(Ok(false), |seconds| boolean(seconds, "seconds"))?;
    let text = string(cron, "cron")?;
    if text.len() > CRON_BYTES_MAX {
        let detail = format!("cron has {} bytes, and at most {CRON_BYTES_MAX} may be", text.len());
        return Err(Problem::invalid("cron", detail));
    }
    let cron =
        Cron::parse(&text, has_seconds).map_err(|reason| Problem::invalid("cron", reason))?;
    let Some(time_zone) = time_zone else {
        let detail = "cron needs a time zone: give the name of a place, such as Europe/Berlin, or \
                      UTC";
        return Err(Problem::new(ProblemType::MissingField, detail).at("time_zone"));
    };
    let zone = Zone::named(&string(time_zone, "time_zone")?)
        .map_err(|reason| Problem::invalid("time_zone", reason))?;
    let (gap, overlap) = dst.map_or_else(|| Ok(Default::default()), dst_of)?;
    Ok(Recurrence::Cron { cron, zone, gap, overlap })
}

fn dst_of(dst: &RawValue) -> Result<(Gap, Overlap), Problem> {
    let [gap, overlap] =
        members(dst.get(), &["gap", "overlap"]).map_err(|problem| problem.within("dst"))?;
    let gap = gap.map_or(Ok(Gap::default()), |gap| {
        let known = Gap::named(&string(gap, "dst.gap")?);
        known.ok_or_else(|| Problem::invalid("dst.gap", "expected skip or shift"))
    });
    let overlap = overlap.map_or(Ok(Overlap::default()), |overlap| {
        let known = Overlap::named(&string(overlap, "dst.overlap")?);
        known.ok_or_else(|| Problem::invalid("dst.overlap", "expected first or both"))
    });
    Ok((gap?, overlap?))
}

fn time_of(member: RawMember<'_>, field: &'static str) -> Result<Option<Timestamp>, Problem> {
    let time = member.map(times::due_at).transpose();
    time.map_err(|wrong| Problem::invalid(field, wrong))
}

fn days_of(exclude: &RawValue) -> Result<BTreeSet<Date>, Problem> {
    let days = array(exclude, "exclude")?;
    if days.count > EXCLUDED_MAX {
        let detail = format!("{} days; expected {EXCLUDED_MAX} at most", days.count);
        return Err(Problem::invalid("exclude", detail));
    }
    let day = |value: &&RawValue| {
        let text = string(value, "exclude")?;
        let wrong = || Problem::invalid("exclude", "expected days such as \"2026-12-25\"");
        // The library reads more forms, and a time would be ignored.
        let date: Date = text.parse().map_err(|_no_day| wrong())?;
        if date.to_string() == text { Ok(date) } else { Err(wrong()) }
    };
    days.items.iter().map(day).collect()
}

fn runs_max_of(value: &RawValue) -> Result<u64, Problem> {
    let wanted = "a whole number from 1 to 1000000000000";
    let number = times::whole_number(value.get(), wanted)
        .map_err(|wrong| Problem::invalid("runs_max", wrong))?;
    if (1..=RUNS_MAX).contains(&number) {
        return Ok(number);
    }
    Err(Problem::invalid("runs_max", format!("this is {number}; expected {wanted}")))
}

fn missed_of(missed: &RawValue) -> Result<MissedRuns, Problem> {
    let [policy, within, count_max] = members(missed.get(), &["policy", "within", "count_max"])
        .map_err(|problem| problem.within("missed"))?;
    let policy = match policy {
        None => MissedPolicy::Last,
        Some(policy) => {
            let name = string(policy, "missed.policy")?;
            let known = MissedPolicy::ALL.into_iter().find(|known| known.as_str() == name);
            let wrong = || Problem::invalid("missed.policy", "expected none, last or all");
            known.ok_or_else(wrong)?
        }
    };
    let within = within.map(|within| duration(within, "missed.within")).transpose()?;
    let count_max =
        count_max.map(|value| count(value, MISSED_MAX, "missed.count_max")).transpose()?;
    MissedRuns::new(policy, within, count_max).map_err(invalid)
}

fn overlap_of(overlap: &RawValue) -> Result<RunOverlap, Problem> {
    let known = RunOverlap::named(&string(overlap, "overlap")?);
    known.ok_or_else(|| Problem::invalid("overlap", "expected allow or skip"))
}

fn spread_of(spread: &RawValue) -> Result<Duration, Problem> {
    span_within(spread, "spread", Duration::ZERO..=SPREAD_MAX)
}

/// Reads the range of a backfill at `now`: from one time to another, or the last span of time.
pub fn backfill(text: &str, now: Timestamp) -> Result<Backfill, Problem> {
    let [from, to, last, dry_run] = members(text, &["from", "to", "last", "dry_run"])?;
    let time = |member: RawMember<'_>, field: &'static str| {
        let missing = || Problem::new(ProblemType::MissingField, "the time is required").at(field);
        time_of(member, field)?.ok_or_else(missing)
    };
    let now = now.floor_millis();
    let (from, to) = match last {
        Some(last) => {
            let why = "give from and to, or last";
            refuse(from, "from", why)?;
            refuse(to, "to", why)?;
            (now.minus(duration(last, "last")?), now)
        }
        None => (time(from, "from")?, time(to, "to")?),
    };
    let is_dry_run = dry_run.map_or(Ok(false), |dry_run| boolean(dry_run, "dry_run"))?;
    Ok(Backfill { from, to, asked_at: now, is_last: last.is_some(), is_dry_run })
}

fn note_of(note: &RawValue) -> Result<String, Problem> {
    Specification::checked_note(&string(note, "note")?).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(members: &str) -> Result<Schedule, Problem> {
        let text = format!(r#"{{"payload":1,{members}}}"#);
        let (topic, name) = (TopicName::new("t").unwrap(), ScheduleName::new("n").unwrap());
        read(&text, topic, name).map(|(schedule, _)| schedule)
    }

    const DAILY: &str = r#""cron":"30 2 * * *","time_zone":"Europe/Berlin""#;

    #[test]
    fn each_wrong_schedule_is_refused_with_its_field() {
        use ProblemType as P;
        let of_daily = |more: &str| format!("{DAILY},{more}");
        let long = format!(r#""cron":"{}0 0 * * *","time_zone":"UTC""#, "0,".repeat(600));
        for (members, kind, field) in [
            (r#""note":"a""#.to_owned(), P::MissingField, "cron"),
            (r#""cron":"@daily""#.to_owned(), P::MissingField, "time_zone"),
            (of_daily(r#""every":"1h""#), P::ConflictingFields, "every"),
            (of_daily(r#""phase":"1h""#), P::ConflictingFields, "phase"),
            (r#""every":"1h","time_zone":"UTC""#.to_owned(), P::ConflictingFields, "time_zone"),
            (r#""every":"1h","dst":{}"#.to_owned(), P::ConflictingFields, "dst"),
            (r#""every":"1h","seconds":true"#.to_owned(), P::ConflictingFields, "seconds"),
            (r#""every":"999ms""#.to_owned(), P::InvalidValue, "every"),
            (r#""every":"1h","phase":"1h""#.to_owned(), P::InvalidValue, "phase"),
            (r#""cron":"0 0 30 2 *","time_zone":"UTC""#.to_owned(), P::InvalidValue, "cron"),
            (long, P::InvalidValue, "cron"),
            (r#""cron":"0 0 * * *","time_zone":"CET""#.to_owned(), P::InvalidValue, "time_zone"),
            (r#""cron":"0 0 * * *","time_zone":"+01:00""#.to_owned(), P::InvalidValue, "time_zone"),
            (of_daily(r#""dst":{"gap":"later"}"#), P::InvalidValue, "dst.gap"),
            (of_daily(r#""dst":{"overlap":"last"}"#), P::InvalidValue, "dst.overlap"),
            (of_daily(r#""dst":{"fold":"first"}"#), P::UnknownField, "dst.fold"),
            (of_daily(r#""starts_at":"tomorrow""#), P::InvalidValue, "starts_at"),
            (
                of_daily(r#""starts_at":"2030-01-02T00:00:00Z","ends_at":"2030-01-01T00:00:00Z""#),
                P::InvalidValue,
                "ends_at",
            ),
            (of_daily(r#""exclude":["2026-13-01"]"#), P::InvalidValue, "exclude"),
            (of_daily(r#""exclude":["2026-12-25T00:00"]"#), P::InvalidValue, "exclude"),
            (of_daily(r#""runs_max":0"#), P::InvalidValue, "runs_max"),
            (of_daily(r#""missed":{"policy":"some"}"#), P::InvalidValue, "missed.policy"),
            (of_daily(r#""missed":{"count_max":5}"#), P::InvalidValue, "missed.count_max"),
            (
                of_daily(r#""missed":{"policy":"all","count_max":1001}"#),
                P::InvalidValue,
                "missed.count_max",
            ),
            (
                of_daily(r#""missed":{"policy":"none","within":"1h"}"#),
                P::InvalidValue,
                "missed.within",
            ),
            (of_daily(r#""note":"a\u0000b""#), P::InvalidValue, "note"),
            (of_daily(r#""retry":{}"#), P::MissingField, "ttr"),
            (of_daily(r#""due_at":1"#), P::UnknownField, "due_at"),
            (of_daily(r#""overlap":"skip""#), P::MissingField, "ttr"),
            (of_daily(r#""overlap":"queue""#), P::InvalidValue, "overlap"),
            (of_daily(r#""spread":"25h""#), P::InvalidValue, "spread"),
        ] {
            let problem = read_with(&members).unwrap_err();
            let json = serde_json::to_value(problem.json()).unwrap();
            assert_eq!((problem.kind(), json["field"].as_str()), (kind, Some(field)), "{members}");
        }
    }

    #[test]
    fn a_schedule_without_more_has_the_defaults() {
        let schedule = read_with(DAILY).unwrap();
        assert_eq!(schedule.specification.missed, MissedRuns::LAST);
        assert!(!schedule.specification.is_paused && schedule.specification.runs_max.is_none());
        let Recurrence::Cron { gap, overlap, .. } = schedule.specification.timing.recurrence()
        else {
            panic!("{schedule:?}");
        };
        assert_eq!((*gap, *overlap), (Gap::Shift, Overlap::First));
    }

    #[test]
    fn a_schedule_may_skip_runs_and_be_spread() {
        let schedule =
            read_with(r#""every":"1m","overlap":"skip","ttr":"30s","spread":"20s""#).unwrap();
        let of = schedule.specification;
        assert_eq!((of.run_overlap, of.spread), (RunOverlap::Skip, Duration::from_secs(20)));
    }

    #[test]
    fn a_backfill_has_a_range() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let backfill = |text: &str| backfill(text, now);
        let read = backfill(r#"{"from":"2026-01-01T00:00:00Z","to":"2026-01-02T00:00:00Z"}"#);
        let read = read.unwrap();
        assert_eq!((read.to.since(read.from).as_secs(), read.is_dry_run), (86_400, false));
        let last = backfill(r#"{"last":"1h","dry_run":true}"#).unwrap();
        assert_eq!((last.from, last.to), (now.minus(Duration::from_secs(3600)), now));
        assert!(last.is_last && !read.is_last);
        for (text, field) in [
            (r#"{"last":"1h","to":"2026-01-02T00:00:00Z"}"#, "to"),
            (r#"{"to":"2026-01-02T00:00:00Z"}"#, "from"),
            (r#"{"from":"2026-01-02T00:00:00Z"}"#, "to"),
            (r#"{"from":"soon","to":"2026-01-02T00:00:00Z"}"#, "from"),
            (r#"{"since":1}"#, "since"),
        ] {
            let json = serde_json::to_value(backfill(text).unwrap_err().json()).unwrap();
            assert_eq!(json["field"], field, "{text}");
        }
    }

    #[test]
    fn a_condition_is_one_revision_or_any_or_none() {
        let read = |name: &'static str, value: &str| {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())]);
            condition_of(&headers)
        };
        assert_eq!(condition_of(&HeaderMap::new()).unwrap(), RevisionCondition::None);
        assert_eq!(read("if-match", "\"7\"").unwrap(), RevisionCondition::Is(7));
        assert_eq!(read("if-match", "*").unwrap(), RevisionCondition::Exists);
        assert_eq!(read("if-none-match", "*").unwrap(), RevisionCondition::IsNew);
        for (name, value) in
            [("if-match", "7"), ("if-match", "W/\"7\""), ("if-none-match", "\"7\"")]
        {
            assert!(read(name, value).is_err(), "{name}: {value}");
        }
    }
}
