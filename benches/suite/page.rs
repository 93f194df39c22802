//! Generates docs/benchmarks.md and its pictures from the results.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use punctual::bench::results::quantiles::shown;
use punctual::bench::results::report::BenchReport;
use punctual::bench::results::svg::{Curve, picture};
use punctual::shutdown::TaskFailure;

use crate::contender::Who;
use crate::plan::{self, Cell, Job, Size};
use crate::results::Results;
use crate::servers::{COMMIT, MACHINE, Servers, WRITE_BACK, said};

/// Plausible CPU cost of the floor in microseconds per task: 7 to 11, a quarter more or less.
/// Outside this range the floor was disturbed, or is not the floor.
const FLOOR_US: std::ops::RangeInclusive<f64> = 5.25..=13.75;
/// Minimum burst rate of the poller in tasks per second. A slower poller is not a fair opponent.
const POLLER_BURST_MIN: f64 = 33_000.0;

/// The text of a section without results.
const NOT_MEASURED: &str = "Not measured.";

const METHOD: &str = include_str!("method.txt");

/// Prints the tables.
pub fn show(results: &Results) -> Result<(), TaskFailure> {
    println!("{}", tables(results, Size::Tiny)?);
    Ok(())
}

/// Writes the page and the pictures. A scenario without a full result shows the result of the short
/// run. Without either, the old section stays.
pub async fn write(servers: &Servers, results: &Results, size: Size) -> Result<(), TaskFailure> {
    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs");
    fs::create_dir_all(docs.join("benchmarks"))?;
    let earlier = fs::read_to_string(docs.join("benchmarks.md")).unwrap_or_default();
    let short = Results::open(&servers.folder, Size::Short)?;
    let mut page = METHOD.to_owned();
    page.push_str(&circumstances(servers, size).await?);
    match kept_verdict(&earlier).filter(|_| !has_opponents(results, &short)) {
        Some(kept) => page.push_str(kept),
        None => page.push_str(&verdict(results, &short)?),
    }
    for cell in plan::cells(size) {
        let shorter =
            plan::cells(Size::Short).into_iter().find(|shorter| shorter.name == cell.name);
        let in_short = shorter.filter(|shorter| is_measured(&short, shorter));
        let (cell, results) =
            match (is_measured(results, &cell), in_short, kept(&earlier, &cell.title)) {
                (false, Some(shorter), _) => (shorter, &short),
                (false, None, Some(kept)) => {
                    page.push_str(kept);
                    continue;
                }
                _ => (cell, results),
            };
        page.push_str(&section(results, &cell)?);
        if let Some(svg) = picture_of(results, &cell)? {
            fs::write(docs.join(format!("benchmarks/{}.svg", cell.name)), svg)?;
            writeln!(page, "![{}](benchmarks/{}.svg)\n", cell.title, cell.name)?;
        }
    }
    fs::write(docs.join("benchmarks.md"), page.trim_end().to_owned() + "\n")?;
    println!("wrote docs/benchmarks.md");
    Ok(())
}

/// Returns the section with this title, and its picture, from the earlier page.
fn kept<'a>(earlier: &'a str, title: &str) -> Option<&'a str> {
    let begin = earlier.find(&format!("\n## {title}\n"))? + 1;
    let section = &earlier[begin..];
    Some(section.find("\n## ").map_or(section, |end| &section[..=end]))
        .filter(|section| !section.contains(NOT_MEASURED))
}

/// Returns the paragraph of the earlier page that says whether its comparison counts.
fn kept_verdict(earlier: &str) -> Option<&str> {
    let paragraph = &earlier[earlier.find("\n**The comparison counts**")? + 1..];
    Some(&paragraph[..paragraph.find("\n## ")? + 1])
}

/// Returns true if the floor or the poller's burst was measured, here or in the short run.
fn has_opponents(results: &Results, short: &Results) -> bool {
    [("drain", Who::FloorInOrder), ("burst", Who::Poller(10)), ("burst", Who::Poller(100))]
        .into_iter()
        .any(|(cell, who)| [results, short].iter().any(|from| from.path(cell, who).exists()))
}

fn is_measured(results: &Results, cell: &Cell) -> bool {
    cell.contenders.iter().any(|who| results.path(cell.name, *who).exists())
}

fn tables(results: &Results, size: Size) -> Result<String, TaskFailure> {
    plan::cells(size).iter().map(|cell| section(results, cell)).collect()
}

async fn circumstances(servers: &Servers, size: Size) -> Result<String, TaskFailure> {
    let mut text = String::from("## This run\n\n");
    let line = |name: &str, value: &str| format!("| {name} | {value} |\n");
    text.push_str("| | |\n|---|---|\n");
    let made_by = match size {
        Size::Full => {
            "`make bench FULL=1`; what it did not get to is from `make bench`: the sizes are in \
             the titles"
        }
        Size::Short | Size::Tiny => "`make bench`",
    };
    text.push_str(&line("made by", made_by));
    text.push_str(&line("finished", &said("date", &["-u", "+%Y-%m-%d %H:%M UTC"])));
    text.push_str(&line(
        "measured",
        "when, at which commit and on which machine stands in each section; what this run did not \
         get to is as an earlier one left it",
    ));
    text.push_str(&line(
        "on the machine",
        "everything: Postgres, Kafka, etcd, nodes, load, consumer",
    ));
    text.push_str(&line(
        "Postgres",
        &format!("{}; {}", servers.version().await?, servers.settings().await?),
    ));
    text.push_str(&line(
        "Kafka",
        "4.3.1, one broker (KRaft), default flush; topics with LogAppendTime",
    ));
    text.push_str(&line(
        "producers",
        "acks=all, idempotent, linger 0.5 ms, no compression: all three the same",
    ));
    text.push_str(&line(
        "records",
        "256 bytes of payload, 16 of key; Punctual's and the floor's with their two headers, the \
         poller's without",
    ));
    let warm_up =
        format!("{:?} at the full rate, not measured, for all the same", plan::warm_up(size));
    text.push_str(&line("warm-up", &warm_up));
    text.push('\n');
    Ok(text)
}

/// Checks that the opponents performed as expected, here or in the short run where there is no
/// result.
fn verdict(results: &Results, short: &Results) -> Result<String, TaskFailure> {
    let load =
        |cell, who| Ok::<_, TaskFailure>(results.load(cell, who)?.or(short.load(cell, who)?));
    let floor = load("drain", Who::FloorInOrder)?.map(|report| report.us_per_task());
    let poller = [Who::Poller(10), Who::Poller(100)]
        .into_iter()
        .filter_map(|who| load("burst", who).ok()?);
    let poller = poller.map(|report| report.rate).fold(0.0, f64::max);
    let mut problems = Vec::new();
    match floor {
        Some(us) if FLOOR_US.contains(&us) => {}
        Some(us) => problems.push(format!(
            "the floor took {us:.1} us of CPU per task, not {} to {}",
            FLOOR_US.start(),
            FLOOR_US.end()
        )),
        None => problems.push("the floor was not measured".to_owned()),
    }
    if poller < POLLER_BURST_MIN {
        problems.push(format!(
            "the poller published {poller:.0} a second in the burst, not {POLLER_BURST_MIN:.0}"
        ));
    }
    if problems.is_empty() {
        let us = floor.unwrap_or_default();
        let counts = format!(
            "**The comparison counts**: the floor took {us:.1} us of CPU per task, the poller \
             published {poller:.0} a second in its burst."
        );
        return Ok(format!("{}\n", paragraph(&counts)));
    }
    let invalid = format!("**INVALID as a comparison**: {}.", problems.join("; "));
    Ok(format!("{}\n", paragraph(&invalid)))
}

fn section(results: &Results, cell: &Cell) -> Result<String, TaskFailure> {
    let mut rows: Vec<(Who, BenchReport)> = Vec::new();
    for who in &cell.contenders {
        rows.extend(results.load(cell.name, *who)?.map(|report| (*who, report)));
    }
    let mut text = format!("## {}\n\n", cell.title);
    if rows.is_empty() {
        writeln!(text, "{NOT_MEASURED}\n")?;
        return Ok(text);
    }
    let begun_at: Option<String> = rows
        .iter()
        .map(|(_, report)| report.taken_at.chars().take(16).collect())
        .filter(|at: &String| !at.is_empty())
        .min();
    let commits =
        settings(&rows, COMMIT).map(|commits| format!(", at {commits}")).unwrap_or_default();
    let machines =
        settings(&rows, MACHINE).map(|machines| format!(", on {machines}")).unwrap_or_default();
    let begun_at = begun_at
        .map(|at| format!(" Measured from {} UTC on{commits}{machines}.", at.replace('T', " ")))
        .unwrap_or_default();
    let write_back = settings(&rows, WRITE_BACK)
        .map(|ways| format!(" The kernel's write-back: {ways}."))
        .unwrap_or_default();
    text.push_str(&paragraph(&format!("Goal: {}.{begun_at}{write_back}", cell.goal)));
    text.push('\n');
    text.push_str(&table(cell, &rows));
    let ratios = ratios(cell, &rows);
    if !ratios.is_empty() {
        text.push('\n');
        text.push_str(&paragraph(&ratios));
    }
    text.push_str(&facts_side_by_side(&rows));
    for (who, report) in &rows {
        text.push_str(&facts_over_time(who, report));
    }
    text.push('\n');
    text.push_str(&paragraph(&format!("Limit: {}", cell.limit)));
    text.push('\n');
    Ok(text)
}

/// Returns a text in lines of at most 100 characters, with a line feed at its end.
fn paragraph(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split(' ') {
        let with_word = width + 1 + word.chars().count();
        if width > 0 && with_word <= 100 {
            lines.push(' ');
            width = with_word;
        } else {
            if width > 0 {
                lines.push('\n');
            }
            width = word.chars().count();
        }
        lines.push_str(word);
    }
    lines.push('\n');
    lines
}

/// Returns the values of a setting in these reports. Usually there is only one.
fn settings(rows: &[(Who, BenchReport)], name: &str) -> Option<String> {
    let mut values: Vec<&str> = rows
        .iter()
        .filter_map(|(_, report)| report.settings.get(name))
        .map(String::as_str)
        .collect();
    values.sort_unstable();
    values.dedup();
    (!values.is_empty()).then(|| values.join("; "))
}

fn table(cell: &Cell, rows: &[(Who, BenchReport)]) -> String {
    let is_idle = matches!(cell.job, Job::Idle { .. });
    let cpu = if is_idle { "CPU, % of a core" } else { "CPU, us/task" };
    let measured = match measured(rows) {
        "" => "-".to_owned(),
        measured => format!("{measured}, ms: p50 / p90 / p99 / p99.9 / max"),
    };
    let mut text = format!(
        "| | {measured} | tasks/s | {cpu} | early, lost, duplicates |\n|---|---|---|---|---|\n"
    );
    for (who, report) in rows {
        let spans = report
            .spans
            .as_ref()
            .map_or_else(|| "-".to_owned(), punctual::bench::results::quantiles::Quantiles::short);
        let figure = |usage: &punctual::bench::results::report::Usage| {
            if is_idle { usage.cores * 100.0 } else { usage.us_per_task }
        };
        let parts: Vec<String> = report
            .usage
            .iter()
            .map(|usage| format!("{} {}", usage.name, shown(figure(usage))))
            .collect();
        let sum: f64 = report.usage.iter().map(figure).sum();
        let cpu = if parts.is_empty() {
            "-".to_owned()
        } else {
            format!("{} = **{}**", parts.join(" + "), shown(sum))
        };
        let counts = format!(
            "{}, {}, {}",
            report.counts.early, report.counts.lost, report.counts.duplicates
        );
        text.push_str(&format!(
            "| {} | {spans} | {:.0} | {cpu} | {counts} |\n",
            who.label(),
            report.rate
        ));
    }
    text
}

/// The parts of a long run. The name of a fact about one part contains one of these.
const SIXTHS: [&str; 3] = ["first sixth", "second sixth", "last sixth"];

/// Splits a fact's name into the name without the part of the run, and the index of that part.
fn without_sixth(name: &str) -> Option<(String, usize)> {
    let (at, sixth) =
        SIXTHS.iter().enumerate().find_map(|(at, sixth)| Some((at, name.split_once(sixth)?)))?;
    let (before, after) = sixth;
    let before = before.strip_suffix(" of the ").or_else(|| before.strip_suffix(" in the "))?;
    Some((format!("{before}{after}"), at))
}

/// Returns a table of the other facts, with a row for each contender.
fn facts_side_by_side(rows: &[(Who, BenchReport)]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in rows.iter().flat_map(|(_, report)| report.facts.keys()) {
        if !names.contains(&name.as_str()) && without_sixth(name).is_none() {
            names.push(name);
        }
    }
    if names.is_empty() {
        return String::new();
    }
    let mut text = format!("\n| | {} |\n|---{}|\n", names.join(" | "), "|---".repeat(names.len()));
    for (who, report) in rows {
        let cells: Vec<String> = names
            .iter()
            .map(|name| report.facts.get(*name).map_or("-".to_owned(), |value| shown(*value)))
            .collect();
        text.push_str(&format!("| {} | {} |\n", who.label(), cells.join(" | ")));
    }
    text
}

/// Returns a table of a contender's facts over a long run, with a column for each part, so growth
/// is visible.
fn facts_over_time(who: &Who, report: &BenchReport) -> String {
    let mut facts: BTreeMap<String, [Option<f64>; SIXTHS.len()]> = BTreeMap::new();
    for (name, value) in &report.facts {
        if let Some((name, at)) = without_sixth(name) {
            facts.entry(name).or_default()[at] = Some(*value);
        }
    }
    if facts.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n| {} | {} |\n|---{}|\n",
        who.label(),
        SIXTHS.join(" | "),
        "|---".repeat(SIXTHS.len())
    );
    for (name, values) in facts {
        let cells = values.map(|value| value.map_or("-".to_owned(), shown));
        text.push_str(&format!("| {name} | {} |\n", cells.join(" | ")));
    }
    text
}

fn measured(rows: &[(Who, BenchReport)]) -> &str {
    rows.iter()
        .map(|(_, report)| report.measured.as_str())
        .find(|measured| !measured.is_empty())
        .unwrap_or_default()
}

/// Compares our first contender with the others: rate and CPU.
fn ratios(cell: &Cell, rows: &[(Who, BenchReport)]) -> String {
    let Some((_, ours)) = rows.iter().find(|(who, _)| *who == Who::Nodes(1)) else {
        return String::new();
    };
    let is_by_rate = matches!(
        cell.job,
        Job::Drain { .. } | Job::Burst { .. } | Job::Submit { at_half: false, .. }
    );
    let mut parts = Vec::new();
    for (who, theirs) in rows.iter().filter(|(who, _)| !who.is_ours()) {
        let mut words = Vec::new();
        if is_by_rate && theirs.rate > 0.0 {
            words.push(format!("{:.2}x the rate", ours.rate / theirs.rate));
        }
        if theirs.us_per_task() > 0.0 && ours.us_per_task() > 0.0 {
            words.push(format!("{:.2}x the CPU", ours.us_per_task() / theirs.us_per_task()));
        }
        if let (false, Some(ours), Some(theirs)) = (is_by_rate, &ours.spans, &theirs.spans) {
            words.push(format!("p99 {} against {} ms", shown(ours.p99), shown(theirs.p99)));
        }
        if let (Some(own), Some(floor)) = (ours.usage.first(), theirs.usage.first())
            && floor.us_per_task > 0.0
            && matches!(who, Who::Floor)
        {
            words.push(format!(
                "the node {:.2}x the floor's process",
                own.us_per_task / floor.us_per_task
            ));
        }
        if !words.is_empty() {
            parts.push(format!("against the {}: {}", who.label(), words.join(", ")));
        }
    }
    if parts.is_empty() {
        String::new()
    } else {
        format!("One node of Punctual {}.", parts.join("; "))
    }
}

fn picture_of(results: &Results, cell: &Cell) -> Result<Option<String>, TaskFailure> {
    let mut drawn = Vec::new();
    for who in &cell.contenders {
        let report = results
            .load(cell.name, *who)?
            .filter(|report| report.spans.is_some() || !report.series.is_empty());
        drawn.extend(report.map(|report| (who.label(), report)));
    }
    let curves: Vec<Curve<'_>> = drawn
        .iter()
        .map(|(label, report)| Curve {
            label,
            spans: report.spans.as_ref(),
            series: &report.series,
        })
        .collect();
    let Some((_, first)) = drawn.first() else { return Ok(None) };
    Ok(Some(picture(&cell.title, &first.measured, &curves)))
}
