//! The instants against a second implementation, which looks at each quarter of an hour.

use std::collections::BTreeSet;

use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use proptest::prelude::*;

use super::*;

/// Lord Howe changes by half an hour. Apia left out a day in 2011, Kwajalein one in 1993.
/// Casablanca goes back for each Ramadan, and Dublin for each winter by its own law. Beirut, Havana
/// and Sao Paulo change at midnight. Kathmandu is 5 h 45 min ahead.
const ZONES: [&str; 12] = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kwajalein",
    "Africa/Casablanca",
    "Europe/Dublin",
    "Asia/Beirut",
    "America/Havana",
    "America/Sao_Paulo",
    "Asia/Kathmandu",
    "UTC",
];

const QUARTER: i64 = 900;

fn rules_of(zone: &str) -> Option<TimeZone> {
    TimeZoneDatabase::bundled().get(zone).ok()
}

/// Fields of an expression, as numbers. An empty field is a star.
#[derive(Clone, Debug)]
struct Fields {
    minutes: Vec<i8>,
    hours: Vec<i8>,
    days: Vec<i8>,
    months: Vec<i8>,
    weekdays: Vec<i8>,
}

impl Fields {
    fn text(&self) -> String {
        let field = |values: &[i8]| match values {
            [] => "*".to_owned(),
            values => values.iter().map(i8::to_string).collect::<Vec<_>>().join(","),
        };
        [&self.minutes, &self.hours, &self.days, &self.months, &self.weekdays]
            .map(|values| field(values))
            .join(" ")
    }

    fn matches(&self, local: DateTime) -> bool {
        let has = |values: &[i8], value: i8| values.is_empty() || values.contains(&value);
        let weekday = local.weekday().to_sunday_zero_offset();
        let is_day = if self.days.is_empty() || self.weekdays.is_empty() {
            has(&self.days, local.day()) && has(&self.weekdays, weekday)
        } else {
            self.days.contains(&local.day()) || self.weekdays.contains(&weekday)
        };
        has(&self.minutes, local.minute())
            && has(&self.hours, local.hour())
            && has(&self.months, local.month())
            && is_day
    }
}

/// Walks from quarter to quarter, and decides each by itself.
fn walked(
    fields: &Fields,
    zone: &TimeZone,
    policy: (Gap, Overlap),
    from: i64,
    to: i64,
) -> Vec<i64> {
    let local_at = |second: i64| zone.to_datetime(jiff::Timestamp::from_second(second).unwrap());
    let quarter = jiff::SignedDuration::from_secs(QUARTER);
    // The walk begins two days early, to know which local times have been.
    let begin = from - 2 * 86_400;
    let mut latest = local_at(begin - QUARTER);
    let mut found = Vec::new();
    for second in (begin..to).step_by(QUARTER.try_into().unwrap()) {
        let local = local_at(second);
        let is_repeated = local <= latest;
        let mut is_run = fields.matches(local) && (policy.1 == Overlap::Both || !is_repeated);
        let mut skipped = latest + quarter;
        while policy.0 == Gap::Shift && skipped < local {
            is_run = is_run || fields.matches(skipped);
            skipped += quarter;
        }
        latest = latest.max(local);
        if is_run && second >= from {
            found.push(second);
        }
    }
    found
}

fn computed(
    fields: &Fields,
    zone: &str,
    (gap, overlap): (Gap, Overlap),
    from: i64,
    to: i64,
) -> Vec<i64> {
    let cron = Cron::parse(&fields.text(), false).unwrap();
    let recurrence = Recurrence::Cron { cron, zone: Zone::named(zone).unwrap(), gap, overlap };
    let timing = Timing::new(recurrence, None, None, BTreeSet::new()).unwrap();
    let mut found = Vec::new();
    let mut after = Timestamp::from_millis(from * 1000).minus(MILLISECOND);
    while let Some(next) = timing.next_after(after).filter(|next| next.as_millis() < to * 1000) {
        found.push(next.as_millis() / 1000);
        after = next;
    }
    found
}

fn agree(fields: &Fields, zone: &str, from: i64, to: i64) {
    let rules = rules_of(zone).unwrap();
    for gap in [Gap::Skip, Gap::Shift] {
        for overlap in [Overlap::First, Overlap::Both] {
            let policy = (gap, overlap);
            assert_eq!(
                computed(fields, zone, policy, from, to),
                walked(fields, &rules, policy, from, to),
                "{} in {zone}, {policy:?}, from {}",
                fields.text(),
                jiff::Timestamp::from_second(from).unwrap()
            );
        }
    }
}

fn every(minutes: &[i8], hours: &[i8]) -> Fields {
    let (minutes, hours) = (minutes.to_vec(), hours.to_vec());
    Fields { minutes, hours, days: vec![], months: vec![], weekdays: vec![] }
}

#[test]
fn each_change_of_the_clocks_from_1990_to_2040_is_as_a_walk_finds_it() {
    let year = |year: i16| {
        let begin = jiff::civil::date(year, 1, 1).to_datetime(jiff::civil::Time::midnight());
        TimeZone::UTC.to_timestamp(begin).unwrap()
    };
    let mut count = 0;
    for zone in ZONES {
        let rules = rules_of(zone).unwrap();
        let changes = rules.following(year(1990)).map(|change| change.timestamp());
        for change in changes.take_while(|change| *change < year(2040)) {
            let second = change.as_second();
            assert_eq!(second % QUARTER, 0, "{zone}: {change}");
            let near = (second - 6 * 3600, second + 30 * 3600);
            agree(&every(&[0, 30], &[]), zone, near.0, near.1);
            agree(&every(&[15], &[0, 2]), zone, near.0, near.1);
            count += 1;
        }
    }
    assert!(count > 500, "{count} changes");
}

fn fields() -> impl Strategy<Value = Fields> {
    let some = |values: Vec<i8>, max: usize| {
        let max = max.min(values.len());
        proptest::sample::subsequence(values, 0..=max)
    };
    let minutes = proptest::sample::subsequence(vec![0_i8, 15, 30, 45], 1..=4);
    (
        minutes,
        some((0..24).collect(), 4),
        some((1..=31).collect(), 4),
        some((1..=12).collect(), 6),
        some((0..7).collect(), 3),
    )
        .prop_map(|(minutes, hours, days, months, weekdays)| Fields {
            minutes,
            hours,
            days,
            months,
            weekdays,
        })
        .prop_filter("it fires", |fields| Cron::parse(&fields.text(), false).is_ok())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_expression_in_any_zone_is_as_a_walk_finds_it(
        fields in fields(),
        zone in proptest::sample::select(ZONES.to_vec()),
        quarter in 701_300_i64..2_454_400,
    ) {
        // Within 1990 to 2040.
        let from = quarter * QUARTER;
        agree(&fields, zone, from, from + 10 * 86_400);
    }

    #[test]
    fn a_period_is_kept_exactly(
        period in 1_000_i64..400_000,
        phase in 0_i64..1_000,
        after in 0_i64..2_000_000_000_000,
    ) {
        let of = |millis: i64| Duration::from_millis(millis.try_into().unwrap());
        let recurrence = Recurrence::every(of(period), of(phase)).unwrap();
        let timing = Timing::new(recurrence, None, None, BTreeSet::new()).unwrap();
        let next = timing.next_after(Timestamp::from_millis(after)).unwrap().as_millis();
        prop_assert_eq!((next - phase).rem_euclid(period), 0);
        prop_assert!(after < next && next <= after + period);
    }
}

fn daily(from: Option<&str>, to: Option<&str>, excluded: &[&str]) -> Timing {
    let cron = Cron::parse("30 2 * * *", false).unwrap();
    let zone = Zone::named("Europe/Berlin").unwrap();
    let recurrence =
        Recurrence::Cron { cron, zone, gap: Gap::default(), overlap: Overlap::default() };
    let at = |text: &str| Timestamp::of_rfc3339(text).unwrap();
    let excluded = excluded.iter().map(|day| day.parse().unwrap()).collect();
    Timing::new(recurrence, from.map(at), to.map(at), excluded).unwrap()
}

fn upcoming(timing: &Timing, after: &str, count: usize) -> Vec<String> {
    let after = Timestamp::of_rfc3339(after).unwrap();
    timing.instants_after(after).take(count).map(|at| at.to_string()).collect()
}

#[test]
fn a_run_at_half_past_two_is_shifted_in_spring_and_happens_once_in_autumn() {
    let timing = daily(None, None, &[]);
    assert_eq!(
        upcoming(&timing, "2026-03-28T00:00:00Z", 3),
        ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    );
    assert_eq!(
        upcoming(&timing, "2026-10-24T12:00:00Z", 2),
        ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
    );
}

#[test]
fn the_start_is_within_and_the_end_is_not_and_excluded_days_are_left_out() {
    let timing = daily(
        Some("2026-12-24T01:30:00Z"),
        Some("2026-12-28T01:30:00Z"),
        &["2026-12-25", "2026-12-26"],
    );
    assert_eq!(
        upcoming(&timing, "2026-01-01T00:00:00Z", 9),
        ["2026-12-24T01:30:00Z", "2026-12-27T01:30:00Z"]
    );
}

#[test]
fn a_year_of_excluded_days_of_seconds_is_left_behind_at_once() {
    let first = jiff::civil::date(2026, 1, 1);
    let excluded = (0..366).map(|day| first.saturating_add(jiff::Span::new().days(day))).collect();
    let recurrence = Recurrence::every(PERIOD_MIN, Duration::ZERO).unwrap();
    let timing = Timing::new(recurrence, None, None, excluded).unwrap();
    assert_eq!(upcoming(&timing, "2026-01-01T00:00:00Z", 1), ["2027-01-02T00:00:00Z"]);
}

#[test]
fn ranges_periods_and_phases_that_cannot_be_are_refused_with_their_field() {
    let span = Duration::from_millis;
    for (period, phase, field) in [
        (999, 0, "every"),
        (0, 0, "every"),
        (367 * 86_400_000, 0, "every"),
        (1_000, 1_000, "phase"),
    ] {
        let error = Recurrence::every(span(period), span(phase)).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
    let error = Recurrence::every(Duration::from_micros(1_000_500), Duration::ZERO).unwrap_err();
    assert_eq!((error.field, error.reason.as_str()), ("every", "expected whole milliseconds"));
    let at = Timestamp::from_millis(1_800_000_000_000);
    let recurrence = Recurrence::every(span(1_000), Duration::ZERO).unwrap();
    let error = Timing::new(recurrence, Some(at), Some(at), BTreeSet::new()).unwrap_err();
    assert_eq!(error.field, "ends_at");
}
