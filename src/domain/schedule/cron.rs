//! Cron expressions: the local times that match one. How a zone turns local times into instants is
//! in `timing`.
//!
//! The library parses the expression and knows which days match. The search is our own, because it
//! must end soon for an expression that never fires.

use croner::Cron as Pattern;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Span;
use jiff::civil::{Date, DateTime, Time, Weekday};

/// A cron expression with at least one matching time.
#[derive(Clone, Debug)]
pub struct Cron {
    text: String,
    has_seconds: bool,
    pattern: Box<Pattern>,
    hours: Vec<i8>,
    minutes: Vec<i8>,
    seconds: Vec<i8>,
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.has_seconds == other.has_seconds
    }
}

impl Eq for Cron {}

/// The search for a match ends after this many years. The rarest expression that fires, a 29
/// February on a given weekday, is at most 40 years away.
const YEARS_MAX: i64 = 41;

/// Short forms, with the expression of five fields for each.
const NICKNAMES: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

/// A field of an expression.
struct Field {
    name: &'static str,
    /// The valid values, for an error.
    valid: &'static str,
    highest: u64,
    value_count: u64,
    /// The unit of its values in a period, in words and as a suffix.
    unit: Option<(&'static str, char)>,
}

/// The fields of an expression. Only six fields begin with the seconds.
static FIELDS: [Field; 6] = [
    Field {
        name: "second",
        valid: "0 to 59",
        highest: 59,
        value_count: 60,
        unit: Some(("seconds", 's')),
    },
    Field {
        name: "minute",
        valid: "0 to 59",
        highest: 59,
        value_count: 60,
        unit: Some(("minutes", 'm')),
    },
    Field {
        name: "hour",
        valid: "0 to 23",
        highest: 23,
        value_count: 24,
        unit: Some(("hours", 'h')),
    },
    Field {
        name: "day of the month",
        valid: "1 to 31, L (the last day), LW (the last weekday), and 15W (the weekday nearest to \
                the 15th)",
        highest: 31,
        value_count: 31,
        unit: Some(("days", 'd')),
    },
    Field {
        name: "month",
        valid: "1 to 12, and JAN to DEC",
        highest: 12,
        value_count: 12,
        unit: None,
    },
    Field {
        name: "day of the week",
        valid: "0 to 7 (0 and 7 are Sunday), SUN to SAT, MON#2 (the second Monday), and MONL (the \
                last Monday)",
        highest: 7,
        value_count: 7,
        unit: None,
    },
];

/// The fields for days, by their places from the end of an expression.
const WEEKDAY: usize = 0;
const DAY_OF_MONTH: usize = 2;

/// The words of the library for `L`, and also for `LW`.
const LAST_DAY: &str = "the last day of the month";
const LAST_WEEKDAY: &str = "the last weekday (Monday to Friday) of the month";

impl Cron {
    /// Parses an expression of five fields, or with `has_seconds` of six, the seconds first.
    ///
    /// # Errors
    /// Says why the expression is wrong, that it never fires, or that it does not mean what it
    /// seems to.
    pub fn parse(text: &str, has_seconds: bool) -> Result<Self, String> {
        let cron = Self::stored(text, has_seconds)?;
        let any = DateTime::constant(2000, 1, 1, 0, 0, 0, 0);
        if cron.next(any, DateTime::MAX).is_none() {
            return Err(wrong(text, "it never fires, because no day matches it"));
        }
        refuse_large_steps(&plain_of(text, has_seconds)?, has_seconds)?;
        refuse_lost_marks(text)?;
        Ok(cron)
    }

    /// Parses the expression of a stored schedule. An earlier version may have taken one that
    /// [`Self::parse`] refuses. Its schedule goes on. Every version has refused one that never
    /// fires, so the search for a match is left out.
    ///
    /// # Errors
    /// Says why the expression is wrong.
    pub fn stored(text: &str, has_seconds: bool) -> Result<Self, String> {
        let plain = plain_of(text, has_seconds)?;
        refuse_what_programs_disagree_about(&plain)?;
        let seconds = if has_seconds { Seconds::Required } else { Seconds::Disallowed };
        let parser = CronParser::builder().seconds(seconds).year(Year::Disallowed).build();
        let pattern = parser.parse(&plain).map_err(|error| {
            let why = wrong_field(&plain, has_seconds, &parser);
            wrong(text, &why.unwrap_or_else(|| error.to_string()))
        })?;
        let values = |max: i8, is_match: &dyn Fn(u32) -> bool| -> Vec<i8> {
            (0..=max).filter(|value| u32::try_from(*value).is_ok_and(is_match)).collect()
        };
        let pattern = Box::new(pattern);
        let of = &pattern.pattern;
        Ok(Self {
            text: text.trim().to_owned(),
            has_seconds,
            hours: values(23, &|hour| of.hour_match(hour).unwrap_or(false)),
            minutes: values(59, &|minute| of.minute_match(minute).unwrap_or(false)),
            seconds: values(59, &|second| of.second_match(second).unwrap_or(false)),
            pattern,
        })
    }

    /// Returns the expression as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns true when the first of six fields is for seconds.
    pub fn has_seconds(&self) -> bool {
        self.has_seconds
    }

    /// Returns the expression in English words. A step becomes a list of values, unless its values
    /// are evenly apart in each turn of the field: `*/45` is at the minutes 0 and 45.
    pub fn words(&self) -> String {
        let mut shown = self.pattern.pattern.clone();
        for field in [&mut shown.seconds, &mut shown.minutes, &mut shown.hours, &mut shown.months] {
            let (step, count) = (field.step.max(1), field.max - field.min + 1);
            let all = (field.min..=field.max).step_by(usize::from(step));
            let is_even = step < count && count.is_multiple_of(step) && all.eq(field.values());
            if !is_even {
                // The library then lists the values.
                field.step = 1;
            }
        }
        let words = shown.describe();
        let has_last_weekday = parts_of(&self.text, DAY_OF_MONTH).any(is_last_weekday);
        if has_last_weekday { words.replace(LAST_DAY, LAST_WEEKDAY) } else { words }
    }

    /// Returns the first matching local time from `from` (inclusive) to `before` (exclusive), or
    /// `None` when there is none within 41 years.
    pub fn next(&self, from: DateTime, before: DateTime) -> Option<DateTime> {
        let years = Span::new().years(YEARS_MAX);
        let before = before.min(from.checked_add(years).unwrap_or(DateTime::MAX));
        let mut date = from.date();
        let mut earliest = from.time();
        while date <= before.date() {
            if !self.has_month(date) {
                date = date.last_of_month().tomorrow().ok()?;
                earliest = Time::midnight();
                continue;
            }
            if self.has_day(date)
                && let Some(time) = self.first_time(earliest)
            {
                return Some(date.to_datetime(time)).filter(|found| *found < before);
            }
            date = date.tomorrow().ok()?;
            earliest = Time::midnight();
        }
        None
    }

    fn has_month(&self, date: Date) -> bool {
        let month = u32::try_from(date.month()).unwrap_or(0);
        self.pattern.pattern.month_match(month).unwrap_or(false)
    }

    fn has_day(&self, date: Date) -> bool {
        let number = |part: i8| u32::try_from(part).unwrap_or(0);
        let (month, day) = (number(date.month()), number(date.day()));
        let weekday = weekday_of(date);
        let year = i32::from(date.year());
        self.pattern.pattern.day_match(year, month, day, weekday).unwrap_or(false)
    }

    /// Returns the first matching time of a day that is not before `earliest`.
    fn first_time(&self, earliest: Time) -> Option<Time> {
        for hour in self.hours.iter().filter(|hour| **hour >= earliest.hour()) {
            for minute in &self.minutes {
                if *hour == earliest.hour() && *minute < earliest.minute() {
                    continue;
                }
                let times = self
                    .seconds
                    .iter()
                    .filter_map(|second| Time::new(*hour, *minute, *second, 0).ok());
                if let Some(time) = times.into_iter().find(|time| *time >= earliest) {
                    return Some(time);
                }
            }
        }
        None
    }
}

fn weekday_of(date: Date) -> croner::Weekday {
    match date.weekday() {
        Weekday::Monday => croner::Weekday::Monday,
        Weekday::Tuesday => croner::Weekday::Tuesday,
        Weekday::Wednesday => croner::Weekday::Wednesday,
        Weekday::Thursday => croner::Weekday::Thursday,
        Weekday::Friday => croner::Weekday::Friday,
        Weekday::Saturday => croner::Weekday::Saturday,
        Weekday::Sunday => croner::Weekday::Sunday,
    }
}

/// Returns the expression without nicknames, after a check of the number of its fields.
fn plain_of(text: &str, has_seconds: bool) -> Result<String, String> {
    let given = text.trim();
    if given.starts_with('@') {
        let known = NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(given));
        let Some((_, plain)) = known else {
            let names = NICKNAMES.map(|(name, _)| name).join(", ");
            return Err(wrong(given, &format!("the short forms are {names}")));
        };
        return Ok(if has_seconds { format!("0 {plain}") } else { (*plain).to_owned() });
    }
    let count = given.split_whitespace().count();
    match (count, has_seconds) {
        (5, false) | (6, true) => Ok(given.to_owned()),
        (6, false) => Err(wrong(
            given,
            "it has six fields: set \"seconds\": true if the first one is for seconds, or leave \
             out the seconds",
        )),
        (count, false) => Err(wrong(
            given,
            &format!(
                "it has {count} fields; expected five: minute, hour, day of the month, month, day \
                 of the week"
            ),
        )),
        (count, true) => Err(wrong(
            given,
            &format!(
                "it has {count} fields; with \"seconds\": true, expected six: second, minute, \
                 hour, day of the month, month, day of the week"
            ),
        )),
    }
}

/// Refuses a `*/2` in one of the two fields for days when the other one is restricted as well. For
/// Vixie's cron both must match then, for others one is enough. Also refuses the marks of single
/// programs.
fn refuse_what_programs_disagree_about(plain: &str) -> Result<(), String> {
    if plain.contains('+') {
        return Err(wrong(plain, "`+` is not supported"));
    }
    let mut fields = plain.split_whitespace().rev();
    let (Some(weekday), Some(_month), Some(day)) = (fields.next(), fields.next(), fields.next())
    else {
        return Ok(());
    };
    let is_open = |field: &str| matches!(field, "*" | "?");
    let is_stepped = |field: &str| field.starts_with("*/");
    if !is_open(day) && !is_open(weekday) && (is_stepped(day) || is_stepped(weekday)) {
        return Err(wrong(
            plain,
            "programs disagree about a step such as */2 in one field for days while the other one \
             is restricted: write the days out, such as 1-31/2",
        ));
    }
    Ok(())
}

/// Refuses a step that is larger than each value of its field, such as `*/90` for the minutes. The
/// parser takes it, and only the first value of the field matches.
fn refuse_large_steps(plain: &str, has_seconds: bool) -> Result<(), String> {
    for (text, field) in plain.split_whitespace().zip(fields_of(has_seconds)) {
        let mut steps =
            text.split(',').filter_map(|part| part.split_once('/')?.1.parse::<u64>().ok());
        let Some(step) = steps.find(|step| *step > field.highest) else { continue };
        let Field { name, value_count, .. } = field;
        let instead = field.unit.map(|(unit, suffix)| {
            format!(
                "; for a run every {step} {unit}, in no time zone, use \"every\": \
                 \"{step}{suffix}\""
            )
        });
        let instead = instead.unwrap_or_default();
        let why = format!(
            "the field of the {name} has {value_count} values, so a step of {step} is too \
             large{instead}"
        );
        return Err(wrong(plain, &why));
    }
    Ok(())
}

/// Refuses marks that the parser takes and then drops.
fn refuse_lost_marks(text: &str) -> Result<(), String> {
    let has_last_day = parts_of(text, DAY_OF_MONTH).any(is_last);
    if has_last_day && parts_of(text, DAY_OF_MONTH).any(is_last_weekday) {
        let why = "the day of the month has both L, the last day, and LW, the last weekday: make \
                   two schedules";
        return Err(wrong(text, why));
    }
    if parts_of(text, WEEKDAY).any(is_last) {
        let why = "the day of the week cannot be L alone: name the day, such as MONL for the last \
                   Monday";
        return Err(wrong(text, why));
    }
    Ok(())
}

/// Returns the parts of the list in a field. A short form has no such field.
fn parts_of(text: &str, from_end: usize) -> impl Iterator<Item = &str> {
    text.split_whitespace().rev().nth(from_end).unwrap_or_default().split(',')
}

fn is_last(part: &str) -> bool {
    part.eq_ignore_ascii_case("L")
}

fn is_last_weekday(part: &str) -> bool {
    part.eq_ignore_ascii_case("LW")
}

fn fields_of(has_seconds: bool) -> &'static [Field] {
    if has_seconds { FIELDS.as_slice() } else { &FIELDS[1..] }
}

/// Says which field of an expression the parser refuses, and what the field may hold.
fn wrong_field(plain: &str, has_seconds: bool, parser: &CronParser) -> Option<String> {
    let all = fields_of(has_seconds);
    let is_refused = |place: usize, text: &str| {
        let alone = (0..all.len()).map(|other| if other == place { text } else { "*" });
        parser.parse(&alone.collect::<Vec<_>>().join(" ")).is_err()
    };
    let mut fields = plain.split_whitespace().zip(all).enumerate();
    let (_place, (text, Field { name, valid, .. })) =
        fields.find(|(place, (text, _field))| is_refused(*place, text))?;
    Some(format!(
        "the {name} cannot be {text:?}: valid are {valid}; * for all, lists such as 1,2, ranges \
         such as 1-5, and steps such as */5"
    ))
}

fn wrong(text: &str, why: &str) -> String {
    format!("{:?} is not a cron expression that can be used: {why}", text.trim())
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan as _;

    use super::*;

    fn times(text: &str, has_seconds: bool, from: &str, count: usize) -> Vec<String> {
        let cron = Cron::parse(text, has_seconds).unwrap();
        let mut from: DateTime = from.parse().unwrap();
        let mut found = Vec::new();
        while found.len() < count {
            let Some(next) = cron.next(from, DateTime::MAX) else { break };
            found.push(next.to_string());
            from = next.checked_add(1.second()).unwrap();
        }
        found
    }

    #[test]
    fn each_form_of_a_field_is_understood() {
        for (text, from, expected) in [
            ("30 2 * * 1-5", "2026-01-02T02:30:01", "2026-01-05T02:30:00"),
            ("*/20 8-10 * * *", "2026-01-02T08:21:00", "2026-01-02T08:40:00"),
            ("0 0 L * *", "2026-02-01T00:00:00", "2026-02-28T00:00:00"),
            ("0 0 15W * *", "2026-02-01T00:00:00", "2026-02-16T00:00:00"),
            ("0 9 * * MON#2", "2026-01-01T00:00:00", "2026-01-12T09:00:00"),
            ("0 9 * JAN,jul sun", "2026-02-01T00:00:00", "2026-07-05T09:00:00"),
            ("@monthly", "2026-01-01T00:00:01", "2026-02-01T00:00:00"),
            ("0 0 29 2 *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
        ] {
            assert_eq!(times(text, false, from, 1), [expected], "{text}");
        }
        assert_eq!(
            times("*/30 59 23 * * *", true, "2026-12-31T23:59:10", 2),
            ["2026-12-31T23:59:30", "2027-01-01T23:59:00"]
        );
    }

    #[test]
    fn two_restricted_fields_for_days_mean_either_of_them() {
        assert_eq!(
            times("0 0 13 * FRI", false, "2026-02-01T00:00:00", 4),
            [
                "2026-02-06T00:00:00",
                "2026-02-13T00:00:00",
                "2026-02-20T00:00:00",
                "2026-02-27T00:00:00"
            ]
        );
    }

    #[test]
    fn the_search_stops_before_its_end() {
        let cron = Cron::parse("0 12 * * *", false).unwrap();
        let at = |text: &str| text.parse::<DateTime>().unwrap();
        let noon = at("2026-01-01T12:00:00");
        assert_eq!(cron.next(at("2026-01-01T00:00:00"), noon), None);
        assert_eq!(cron.next(noon, at("2026-01-01T12:00:01")), Some(noon));
    }

    #[test]
    fn an_expression_that_cannot_be_used_is_refused_with_the_reason() {
        for (text, has_seconds, why) in [
            ("0 0 30 2 *", false, "never fires"),
            ("0 0 31 4,6,9,11 *", false, "never fires"),
            ("* * * *", false, "expected five"),
            ("0 * * * * *", false, "\"seconds\": true"),
            ("* * * * *", true, "expected six"),
            ("0 0 1 1 * * 2030", true, "expected six"),
            ("", false, "expected five"),
            ("@reboot", false, "the short forms are"),
            ("60 * * * *", false, "the minute cannot be \"60\": valid are 0 to 59"),
            ("* 24 * * *", false, "the hour cannot be \"24\": valid are 0 to 23"),
            ("* * 32 * *", false, "the day of the month cannot be \"32\": valid are 1 to 31"),
            ("* * * 13 *", false, "the month cannot be \"13\": valid are 1 to 12"),
            ("* * * * fry", false, "the day of the week cannot be \"fry\": valid are 0 to 7"),
            ("61 * * * * *", true, "the second cannot be \"61\": valid are 0 to 59"),
            ("x * * * *", false, "the minute cannot be \"x\""),
            ("*/0 * * * *", false, "the minute cannot be \"*/0\""),
            ("0 0 */2 * MON", false, "programs disagree"),
            ("0 0 1 * +MON", false, "not supported"),
            ("0 0 l,lw * *", false, "both L, the last day, and LW, the last weekday"),
            ("0 0 1 * L", false, "cannot be L alone"),
        ] {
            let error = Cron::parse(text, has_seconds).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_step_beyond_its_field_is_refused_and_a_stored_one_goes_on() {
        for (text, has_seconds, why) in [
            ("*/90 * * * *", false, "the minute has 60 values, so a step of 90 is too large"),
            ("*/90 * * * *", false, "use \"every\": \"90m\""),
            ("*/60 * * * *", false, "use \"every\": \"60m\""),
            ("0,10-50/70 * * * *", false, "a step of 70"),
            ("0 */36 * * *", false, "the hour has 24 values, so a step of 36"),
            ("0 */36 * * *", false, "use \"every\": \"36h\""),
            ("0 0 */40 * *", false, "use \"every\": \"40d\""),
            ("0 0 1 */18 *", false, "the month has 12 values, so a step of 18 is too large"),
            ("0 0 * * */8", false, "the day of the week has 7 values"),
            ("*/75 * * * * *", true, "use \"every\": \"75s\""),
        ] {
            let error = Cron::parse(text, has_seconds).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
            assert!(Cron::stored(text, has_seconds).is_ok(), "{text}");
        }
        for text in ["*/59 */23 */31 */12 *", "0 0 * * */7", "@hourly"] {
            assert!(Cron::parse(text, false).is_ok(), "{text}");
        }
    }

    #[test]
    fn the_words_say_when_it_runs() {
        for (text, words) in [
            ("30 2 * * 1-5", "At 02:30, on Monday, Tuesday, Wednesday, Thursday, and Friday."),
            ("*/15 * * * *", "At every 15 minutes."),
            ("*/45 * * * *", "At minute 0 and 45 past every hour."),
            ("0-30/15 * * * *", "At minute 0, 15, and 30 past every hour."),
            ("0 */6 * * *", "At minute 0, of every 6 hours."),
            ("0 */7 * * *", "At minute 0, of hour 0, 7, 14, and 21."),
            ("0 0 1 */3 *", "At 00:00, on day 1, in every 3 months."),
            ("0 0 1 */5 *", "At 00:00, on day 1, in January, June, and November."),
            ("0 0 1 2-12/3 *", "At 00:00, on day 1, in February, May, August, and November."),
            ("0 0 1 */12 *", "At 00:00, on day 1, in January."),
            ("0 0 L * *", "At 00:00, on the last day of the month."),
            ("0 0 LW * *", "At 00:00, on the last weekday (Monday to Friday) of the month."),
            ("@daily", "At 00:00."),
        ] {
            assert_eq!(Cron::parse(text, false).unwrap().words(), words, "{text}");
        }
        // Earlier versions have stored such steps.
        let hourly = Cron::stored("*/90 * * * *", false).unwrap();
        assert_eq!(hourly.words(), "At minute 0 past every hour.");
    }
}
