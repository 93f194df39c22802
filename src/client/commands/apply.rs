//! Schedules as code: brings the schedules of the cluster in line with a file.
//!
//! Each schedule of the file is first checked by a dry run. Only when all of them are right, the
//! changes are made, each on the condition that the schedule is still as it was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::answer::{Ending, Exit, NodeAnswer};
use crate::client::args::ScheduleApply;
use crate::client::caller::{Condition, NodeCaller};
use crate::client::draft;
use crate::client::pages::ListFailure;
use crate::client::task::printable;

type Members = Map<String, Value>;
/// The topic and the name of a schedule.
type Place = (String, String);

/// The members of an answer that a request does not have.
const ANSWERED: [&str; 10] = [
    "topic",
    "name",
    "revision",
    "words",
    "shift",
    "tzdata",
    "runs_made",
    "next_run_at",
    "next",
    "redacted",
];
/// The largest page of a list.
const PAGE: &str = "1000";
/// 2^53. A float of this size or more may have been rounded to another whole number. Whole numbers
/// of 64 bits are no floats.
const FLOAT_MAX: f64 = 9_007_199_254_740_992.0;

/// A file of schedules.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    /// Topics whose other schedules `--prune` deletes, besides those of the schedules.
    #[serde(default)]
    topics: Vec<String>,
    schedules: Vec<Members>,
}

#[derive(Debug)]
struct Wanted {
    topics: BTreeSet<String>,
    schedules: BTreeMap<Place, Members>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Change {
    Create,
    Replace,
    Delete,
}

/// A schedule that is to change.
#[derive(Debug, Serialize)]
struct Step {
    change: Change,
    topic: String,
    name: String,
    /// The members that differ: before and after. Null where there is none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    members: BTreeMap<String, [Value; 2]>,
    /// The caller may not read the record, so its members cannot be compared.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    redacted: bool,
    #[serde(skip)]
    condition: Option<Condition>,
    #[serde(skip)]
    body: Members,
}

#[derive(Serialize)]
struct Report<'a> {
    dry_run: bool,
    changes: &'a [Step],
    unchanged: usize,
}

/// Applies a file. Returns the text to print.
pub async fn run(args: &ScheduleApply) -> Result<String, ListFailure> {
    let bytes = draft::bytes_of(&args.file).await.map_err(Ending::usage)?;
    let wanted = read(&bytes).map_err(Ending::usage)?;
    let caller = NodeCaller::new(&args.node)?;
    let mut steps = Vec::new();
    for (place, body) in &wanted.schedules {
        steps.extend(Box::pin(compare(&caller, place, body)).await?);
    }
    let unchanged = wanted.schedules.len() - steps.len();
    if args.prune {
        for topic in &wanted.topics {
            steps.extend(Box::pin(others(&caller, topic, &wanted)).await?);
        }
    }
    if !args.dry_run {
        for (index, step) in steps.iter().enumerate() {
            let done = Box::pin(carry_out(&caller, step)).await;
            done.map_err(|ending| broken_off(ending, step, (index, steps.len())))?;
        }
    }
    if args.node.is_json() {
        let report = Report { dry_run: args.dry_run, changes: &steps, unchanged };
        let text = serde_json::to_string(&report);
        return text.map_err(|error| Ending::new(Exit::Unknown, error.to_string()).into());
    }
    Ok(shown(&steps, unchanged, args.dry_run))
}

/// Reads a file in YAML. JSON is YAML, too. Plain text stays text, unless it is null, a boolean or
/// a number of YAML 1.2, or binary (`0b11`): `00123456`, `1_000` and `no` are texts.
fn read(bytes: &[u8]) -> Result<Wanted, String> {
    let text =
        std::str::from_utf8(bytes).map_err(|error| format!("the file is not UTF-8: {error}"))?;
    let options = serde_saphyr::options! {
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        strict_booleans: true,
    };
    let listed: Listed = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| format!("the file is not a list of schedules: {error}"))?;
    let mut wanted =
        Wanted { topics: listed.topics.into_iter().collect(), schedules: BTreeMap::new() };
    for (index, mut members) in listed.schedules.into_iter().enumerate() {
        let mut take = |member: &str| match members.remove(member) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(format!("schedule {}: {member} is required, as a text", index + 1)),
        };
        let place = (take("topic")?, take("name")?);
        wanted.topics.insert(place.0.clone());
        let label = format!("{}/{}", place.0, place.1);
        let rounded = members.iter().find_map(|(name, value)| {
            rounded_number(value).map(|rest| format!("{label}: {name}{rest}"))
        });
        if let Some(path) = rounded {
            return Err(format!(
                "{path}: the number may not be kept exactly; write it in quotes, or give \
                 payload_text"
            ));
        }
        if wanted.schedules.insert(place, members).is_some() {
            return Err(format!("the schedule {label} is in the file twice"));
        }
    }
    Ok(wanted)
}

/// Returns the path to a number that may have been rounded when the file was read, if there is one.
fn rounded_number(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => {
            let float = number.as_f64().filter(|_float| number.is_f64());
            float.filter(|float| float.abs() >= FLOAT_MAX).map(|_float| String::new())
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| rounded_number(item).map(|rest| format!("[{index}]{rest}"))),
        Value::Object(members) => members
            .iter()
            .find_map(|(name, member)| rounded_number(member).map(|rest| format!(".{name}{rest}"))),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

fn path((topic, name): &Place) -> [&str; 4] {
    ["v1", "schedules", topic, name]
}

/// A schedule in an answer.
#[derive(Default)]
struct Answered {
    members: Members,
    revision: u64,
    /// The caller may not read the record.
    is_redacted: bool,
}

fn answered(answer: &NodeAnswer) -> Result<Answered, Ending> {
    let mut members: Members = answer.read()?;
    let revision = members.get("revision").and_then(Value::as_u64).unwrap_or_default();
    let is_redacted = members.get("redacted") == Some(&Value::Bool(true));
    members.retain(|name, _value| !ANSWERED.contains(&name.as_str()));
    Ok(Answered { members, revision, is_redacted })
}

fn refused(answer: &NodeAnswer, place: &Place) -> Option<Ending> {
    let ending = answer.problem()?.ending();
    Some(Ending { text: format!("{}/{}: {}", place.0, place.1, ending.text), ..ending })
}

/// Returns the step that a schedule of the file needs, if any.
async fn compare(
    caller: &NodeCaller,
    place: &Place,
    body: &Members,
) -> Result<Option<Step>, ListFailure> {
    let found = caller.ask(&caller.get(&path(place), &[])?).await?;
    let is_new = found.problem().is_some_and(|problem| problem.exit() == Exit::NotFound);
    if !is_new && let Some(ending) = refused(&found, place) {
        return Err(ending.into());
    }
    let before = if is_new { Answered::default() } else { answered(&found)? };
    let mut body = body.clone();
    // A file without `paused` leaves the pause of an operator as it is.
    if before.members.get("paused") == Some(&Value::Bool(true)) && !body.contains_key("paused") {
        body.insert("paused".to_owned(), Value::Bool(true));
    }
    let text = Value::Object(body.clone()).to_string();
    let checked = caller.put(&path(place), text)?.with_query(&[("dry_run", "true")]);
    let checked = caller.ask(&checked).await?;
    if let Some(ending) = refused(&checked, place) {
        return Err(ending.into());
    }
    let after = answered(&checked)?;
    let redacted = before.is_redacted || after.is_redacted;
    let members =
        if is_new { BTreeMap::new() } else { difference(&before.members, &after.members) };
    if !is_new && members.is_empty() && !redacted {
        return Ok(None);
    }
    Ok(Some(Step {
        change: if is_new { Change::Create } else { Change::Replace },
        topic: place.0.clone(),
        name: place.1.clone(),
        members,
        redacted: redacted && !is_new,
        condition: Some(if is_new {
            Condition::IsAbsent
        } else {
            Condition::IsRevision(before.revision)
        }),
        body,
    }))
}

fn difference(before: &Members, after: &Members) -> BTreeMap<String, [Value; 2]> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let value = |members: &Members, name: &str| members.get(name).cloned().unwrap_or_default();
    let pairs = names.into_iter().map(|name| (name, [value(before, name), value(after, name)]));
    pairs
        .filter(|(_, [one, other])| one != other)
        .map(|(name, pair)| (name.clone(), pair))
        .collect()
}

#[derive(Deserialize)]
struct Page {
    schedules: Vec<Entry>,
    next_after: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    revision: u64,
}

/// Returns steps that delete the schedules of a topic that are not in the file.
async fn others(
    caller: &NodeCaller,
    topic: &str,
    wanted: &Wanted,
) -> Result<Vec<Step>, ListFailure> {
    let mut steps = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut query = vec![("limit", PAGE)];
        query.extend(after.as_deref().map(|after| ("after", after)));
        let answer = caller.ask(&caller.get(&["v1", "schedules", topic], &query)?).await?;
        if answer.problem().is_some() {
            return Err(ListFailure::Problem(answer));
        }
        let page: Page = answer.read()?;
        for Entry { name, revision } in page.schedules {
            let place = (topic.to_owned(), name);
            if wanted.schedules.contains_key(&place) {
                continue;
            }
            steps.push(Step {
                change: Change::Delete,
                topic: place.0,
                name: place.1,
                members: BTreeMap::new(),
                redacted: false,
                condition: Some(Condition::IsRevision(revision)),
                body: Members::new(),
            });
        }
        after = page.next_after;
        if after.is_none() {
            return Ok(steps);
        }
    }
}

async fn carry_out(caller: &NodeCaller, step: &Step) -> Result<(), Ending> {
    let place = (step.topic.clone(), step.name.clone());
    let call = match step.change {
        Change::Create | Change::Replace => {
            caller.put(&path(&place), Value::Object(step.body.clone()).to_string())?
        }
        Change::Delete => caller.delete(&path(&place))?,
    };
    let answer = caller.ask(&call.only_if(step.condition)).await?;
    refused(&answer, &place).map_or(Ok(()), Err)
}

fn broken_off(ending: Ending, step: &Step, (done, count): (usize, usize)) -> Ending {
    let text = format!(
        "{}\nthis was at {}/{}; {done} of {count} changes were made",
        ending.text, step.topic, step.name
    );
    // 'Nothing done' is true for the last call, not for the command.
    let exit = match ending.exit {
        Exit::NothingDone if done > 0 => Exit::Unknown,
        exit => exit,
    };
    Ending { text, exit }
}

/// Describes the steps, one line for each and one for each member that differs.
fn shown(steps: &[Step], unchanged: usize, is_dry_run: bool) -> String {
    let mut text = String::new();
    for step in steps {
        let sign = match step.change {
            Change::Create => '+',
            Change::Replace => '~',
            Change::Delete => '-',
        };
        // A write to a string cannot fail.
        writeln!(text, "{sign} {}/{}", printable(&step.topic), printable(&step.name)).ok();
        for (name, [before, after]) in &step.members {
            let shown = |value: &Value| match value {
                Value::Null => "none".to_owned(),
                value => printable(&value.to_string()).into_owned(),
            };
            writeln!(text, "    {}: {} -> {}", printable(name), shown(before), shown(after)).ok();
        }
        if step.redacted {
            writeln!(text, "    the record may differ: it needs the right read-payload").ok();
        }
    }
    let count = |change| steps.iter().filter(|step| step.change == change).count();
    let would = if is_dry_run { " (nothing was done: --dry-run)" } else { "" };
    write!(
        text,
        "{} created, {} changed, {} deleted, {unchanged} unchanged{would}",
        count(Change::Create),
        count(Change::Replace),
        count(Change::Delete)
    )
    .ok();
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_is_yaml_with_topics_and_schedules() {
        let text = "topics: [old]
schedules:
  # Each night.
  - topic: orders
    name: nightly
    cron: \"30 2 * * *\"
    time_zone: Europe/Berlin
    runs_max: 10
    payload: {do: backup, parts: [1, 2.5, true, null]}
  - {\"topic\": \"orders\", \"name\": \"poll\", \"every\": \"15m\", \"payload\": \"yes\"}
";
        let wanted = read(text.as_bytes()).unwrap();
        assert_eq!(wanted.topics.iter().collect::<Vec<_>>(), ["old", "orders"]);
        let of = |name: &str| {
            Value::Object(wanted.schedules[&("orders".to_owned(), name.to_owned())].clone())
        };
        assert_eq!(
            of("nightly"),
            json!({ "cron": "30 2 * * *", "time_zone": "Europe/Berlin", "runs_max": 10,
                "payload": { "do": "backup", "parts": [1, 2.5, true, null] } })
        );
        assert_eq!(of("poll"), json!({ "every": "15m", "payload": "yes" }));
    }

    #[test]
    fn the_values_of_a_payload_are_those_of_the_file() {
        let text = "schedules:
  - topic: t
    name: 007
    payload:
      account: 00123456
      part: 1_000
      bool: [on, no, n, yes, true]
      whole: [18446744073709551615, -9223372036854775808, 9007199254740991, 0x1F]
      float: [0.5, 1e3, 9007199254740991.0]
      quoted: \"18446744073709551617\"
";
        let wanted = read(text.as_bytes()).unwrap();
        let payload = &wanted.schedules[&("t".to_owned(), "007".to_owned())]["payload"];
        assert_eq!(
            payload,
            &json!({
                "account": "00123456",
                "part": "1_000",
                "bool": ["on", "no", "n", "yes", true],
                "whole": [u64::MAX, i64::MIN, 9_007_199_254_740_991_u64, 31],
                "float": [0.5, 1000.0, 9_007_199_254_740_991.0],
                "quoted": "18446744073709551617",
            })
        );
    }

    #[test]
    fn a_number_that_would_be_published_as_another_one_is_refused() {
        for number in ["18446744073709551617", "-9223372036854775809", "1e16", "9007199254740992.0"]
        {
            let text = format!(
                "schedules: [{{topic: t, name: a, payload: {{to: [1, {{account: {number}}}]}}}}]"
            );
            let error = read(text.as_bytes()).unwrap_err();
            assert!(
                error.starts_with("t/a: payload.to[1].account: the number may not")
                    && error.contains("write it in quotes, or give payload_text"),
                "{number}: {error}"
            );
        }
    }

    #[test]
    fn a_wrong_file_is_refused_before_any_call() {
        for (text, why) in [
            ("schedules: [{name: a}]", "schedule 1: topic is required"),
            ("schedules: [{topic: t, name: 1}]", "name is required, as a text"),
            ("schedules: [{topic: t, name: a}, {topic: t, name: a}]", "t/a is in the file twice"),
            ("schedule: []", "unknown field"),
            ("schedules: [{topic: t, topic: u, name: a}]", "duplicate"),
            ("schedules: {", "not a list of schedules"),
        ] {
            let error = read(text.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn the_difference_names_members_with_both_values() {
        let step = |change, members| Step {
            change,
            topic: "t".to_owned(),
            name: "n".to_owned(),
            members,
            redacted: false,
            condition: None,
            body: Members::new(),
        };
        let map = |value: Value| value.as_object().cloned().unwrap();
        let members = difference(
            &map(json!({ "cron": "a", "note": "x", "same": 1 })),
            &map(json!({ "cron": "b", "same": 1, "spread": "1m" })),
        );
        let steps = [
            step(Change::Create, BTreeMap::new()),
            step(Change::Replace, members),
            step(Change::Delete, BTreeMap::new()),
        ];
        let wanted = "+ t/n
~ t/n
    cron: \"a\" -> \"b\"
    note: \"x\" -> none
    spread: none -> \"1m\"
- t/n
1 created, 1 changed, 1 deleted, 4 unchanged (nothing was done: --dry-run)";
        assert_eq!(shown(&steps, 4, true), wanted);
    }
}
