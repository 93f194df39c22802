//! Schedules for people.

use std::fmt::Write as _;

use serde::Deserialize;

use super::figures::counted;
use super::print::shell_word;
use super::table::Table;
use crate::client::answer::{Ending, NodeAnswer};
use crate::client::task::{one_line, printable};

/// A schedule from an answer. The members that every schedule has are required.
#[derive(Deserialize, Debug)]
struct Schedule {
    topic: String,
    name: String,
    revision: u64,
    cron: Option<String>,
    words: Option<String>,
    time_zone: Option<String>,
    every: Option<String>,
    shift: Option<String>,
    paused: bool,
    runs_made: u64,
    next_run_at: Option<String>,
    #[serde(default)]
    next: Vec<String>,
    note: Option<String>,
}

impl Schedule {
    /// Returns when it runs, in short.
    fn recurrence(&self) -> String {
        match (&self.cron, &self.every) {
            (Some(cron), _) => {
                format!("{cron} ({})", self.time_zone.as_deref().unwrap_or_default())
            }
            (None, Some(every)) => format!("every {every}"),
            (None, None) => String::new(),
        }
    }

    fn next_run(&self) -> String {
        match &self.next_run_at {
            Some(at) => at.clone(),
            None if self.paused => "paused".to_owned(),
            None => "ended".to_owned(),
        }
    }
}

/// Describes a schedule.
pub fn shown(answer: &NodeAnswer) -> Result<String, Ending> {
    let schedule: Schedule = answer.read()?;
    let mut lines = String::new();
    let mut line = |name: &str, value: &str| {
        // A write to a string cannot fail.
        writeln!(lines, "{name:<12}{}", printable(value).replace('\n', " ")).ok();
    };
    line("topic", &schedule.topic);
    line("name", &schedule.name);
    line("revision", &schedule.revision.to_string());
    line("runs", &schedule.recurrence());
    if let Some(words) = &schedule.words {
        line("", words);
    }
    if let Some(shift) = &schedule.shift {
        line("due later", shift);
    }
    line("next run", &schedule.next_run());
    for at in schedule.next.iter().skip(1) {
        line("", at);
    }
    line("made", &schedule.runs_made.to_string());
    if let Some(note) = &schedule.note {
        line("note", note);
    }
    Ok(lines)
}

/// Describes the next runs of a schedule, one line for each.
pub fn next(answer: &NodeAnswer) -> Result<String, Ending> {
    let schedule: Schedule = answer.read()?;
    if schedule.next.is_empty() {
        return Ok(one_line(&schedule.next_run()));
    }
    let runs: Vec<String> = schedule.next.iter().map(|at| one_line(at)).collect();
    Ok(runs.join("\n"))
}

#[derive(Deserialize, Debug)]
struct Backfill {
    dry_run: bool,
    made: u64,
    already_made: u64,
}

/// Describes a backfill.
pub fn backfilled(answer: &NodeAnswer) -> Result<String, Ending> {
    let Backfill { dry_run, made, already_made } = answer.read()?;
    let made = counted(made, "run");
    let verb = if dry_run { "would be made" } else { "made" };
    Ok(format!("{made} {verb}, {already_made} made before"))
}

/// Describes a schedule that was deleted.
pub fn deleted(answer: &NodeAnswer) -> Result<String, Ending> {
    let schedule: Schedule = answer.read()?;
    Ok(format!("{}  deleted", one_line(&schedule.name)))
}

#[derive(Deserialize, Debug)]
struct Page {
    schedules: Vec<Schedule>,
    next_after: Option<String>,
}

/// Describes a page of schedules, and says how to go on.
pub fn listed(answer: &NodeAnswer) -> Result<String, Ending> {
    let page: Page = answer.read()?;
    if page.schedules.is_empty() && page.next_after.is_none() {
        return Ok("no schedules".to_owned());
    }
    let rows: Vec<[String; 4]> = page
        .schedules
        .into_iter()
        .map(|one| [one.name.clone(), one.recurrence(), one.next_run(), one.runs_made.to_string()])
        .collect();
    let mut text = Table::new(["NAME", "RUNS", "NEXT", "MADE"]).rows(&rows);
    if let Some(after) = page.next_after {
        writeln!(text, "there are more: --after {}", shell_word(&after)).ok();
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> NodeAnswer {
        NodeAnswer { status: 200, retry_after: None, has_token: false, text: text.to_owned() }
    }

    const CRON: &str = r#""topic":"t","name":"nightly","revision":2,"cron":"30 2 * * *",
        "time_zone":"Europe/Berlin","words":"At 02:30.","runs_made":7"#;

    #[test]
    fn a_schedule_is_shown_with_its_next_runs() {
        let text =
            format!(r#"{{{CRON},"paused":false,"next_run_at":"A","next":["A","B"],"note":"x"}}"#);
        let shown = shown(&answer(&text)).unwrap();
        for part in
            ["30 2 * * * (Europe/Berlin)", "At 02:30.", "next run    A", "B\n", "made        7"]
        {
            assert!(shown.contains(part), "{shown}");
        }
        assert_eq!(next(&answer(&text)).unwrap(), "A\nB");
        let steering = format!(
            r#"{{{CRON},"paused":false,"next_run_at":"A\u001b","next":["A\n\u202e","B"]}}"#
        );
        assert_eq!(next(&answer(&steering)).unwrap(), "A \\u{202e}\nB");
        let ended = steering.replace(r#"["A\n\u202e","B"]"#, "[]");
        assert_eq!(next(&answer(&ended)).unwrap(), "A\\u{1b}");
    }

    #[test]
    fn a_spread_has_a_column_of_its_own() {
        let text = format!(r#"{{{CRON},"paused":false,"shift":"59s"}}"#);
        let shown = shown(&answer(&text)).unwrap();
        assert!(shown.contains("\ndue later   59s\n"), "{shown}");
    }

    #[test]
    fn an_empty_list_says_so() {
        let empty = answer(r#"{"schedules":[],"next_after":null}"#);
        assert_eq!(listed(&empty).unwrap(), "no schedules");
    }

    #[test]
    fn a_list_says_what_is_paused_and_how_to_go_on() {
        let text = format!(r#"{{"schedules":[{{{CRON},"paused":true}}],"next_after":"nightly"}}"#);
        let listed = listed(&answer(&text)).unwrap();
        assert!(listed.contains("paused") && listed.ends_with("--after nightly\n"), "{listed}");
    }
}
