//! The limits of a principal or of topics, as the file writes them.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeTable;

use super::reader::{Reader, Value};
use crate::access::limits::{Limits, Rate};
use crate::access::pattern::Pattern;
use crate::domain::time::duration;

const KEYS: [&str; 8] = [
    "tasks_per_second",
    "burst",
    "bytes_per_second",
    "reads_per_second",
    "requests",
    "delay_max",
    "record_max",
    "pending_max",
];

/// The largest rate and the largest number of bytes. Larger ones are typing errors.
const AMOUNT_MAX: u64 = 1 << 40;

/// Reads `limits` of a table. Without it, there are none.
pub fn read(reader: &mut Reader<'_>, table: &DeTable<'_>) -> Limits {
    let Some(value) = table.get("limits") else { return Limits::default() };
    let Some(limits) = reader.table(value, "`limits`") else { return Limits::default() };
    reader.known_keys(limits, &KEYS);
    let amount = |reader: &mut Reader<'_>, key| number(reader, limits, key, 1..=AMOUNT_MAX);
    let whole_second = |per_second| Rate { per_second, burst: per_second };
    let tasks = amount(reader, "tasks_per_second").map(whole_second);
    let burst = amount(reader, "burst");
    if burst.is_some() && tasks.is_none() {
        reader.problem(&value.span(), "`burst` goes with `tasks_per_second`");
    }
    let tasks = tasks.map(|rate| Rate { burst: burst.unwrap_or(rate.burst), ..rate });
    if let Some(rate) = tasks.filter(|rate| rate.burst < reader.rules.burst_min) {
        let text = format!(
            "`burst` is {}, less than the {} tasks that a batch may have (--batch-max): some \
             batches could never pass",
            rate.burst, reader.rules.burst_min
        );
        reader.problem(&value.span(), text);
    }
    Limits {
        tasks,
        bytes: amount(reader, "bytes_per_second").map(whole_second),
        reads: amount(reader, "reads_per_second").map(whole_second),
        requests: amount(reader, "requests").and_then(|count| usize::try_from(count).ok()),
        delay_max: delay_max(reader, limits),
        record_max: amount(reader, "record_max").and_then(|bytes| usize::try_from(bytes).ok()),
        pending_max: amount(reader, "pending_max"),
    }
}

/// Reads the limits of topics: a table for each pattern.
pub fn of_topics(reader: &mut Reader<'_>, value: Option<&Value<'_>>) -> Vec<(Pattern, Limits)> {
    let mut read = Vec::new();
    for (text, value) in reader.members(value, "topics") {
        let pattern = Pattern::new(&text)
            .map_err(|error| reader.problem(&value.span(), error.to_string()))
            .ok();
        let Some(table) = reader.table(value, &format!("the topics {text:?}")) else { continue };
        reader.known_keys(table, &["limits"]);
        let limits = self::read(reader, table);
        if limits.reads.is_some() || limits.requests.is_some() {
            let text = "`reads_per_second` and `requests` are limits of principals, not of topics";
            reader.problem(&value.span(), text);
        }
        read.extend(pattern.map(|pattern| (pattern, limits)));
    }
    read
}

fn delay_max(reader: &mut Reader<'_>, limits: &DeTable<'_>) -> Option<Duration> {
    let (text, at) = reader.optional_text(limits, "delay_max")?;
    let span = duration::parse(&text);
    span.map_err(|text| reader.problem(&at, format!("`delay_max`: {text}"))).ok()
}

fn number(
    reader: &mut Reader<'_>,
    table: &DeTable<'_>,
    key: &str,
    range: RangeInclusive<u64>,
) -> Option<u64> {
    let value = table.get(key)?;
    let integer = value.get_ref().as_integer().filter(|integer| integer.radix() == 10);
    let number = integer.and_then(|integer| integer.as_str().parse().ok());
    let number = number.filter(|number| range.contains(number));
    if number.is_none() {
        let (from, to) = range.into_inner();
        reader.problem(&value.span(), format!("`{key}` is no whole number from {from} to {to}"));
    }
    number
}
