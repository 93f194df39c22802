//! The outboxes and intake topics of a node: who drains them, what waits, and what was rejected.

use az::SaturatingAs as _;
use maud::{Markup, html};
use serde_json::Value;

use super::action::Call;
use super::format::{grouped, items, moment, number, span, text};
use super::frame::{Answered, Page, Section, nothing, sample, table};
use super::rates::inbound::{Figures, Inbound, InboundKind};
use super::rates::{Rates, Sample};
use crate::domain::ShardCount;

/// Milliseconds after which rows or records that wait are worth a look: those of the alerts.
const WAITS_MILLIS: u64 = 60_000;
/// The difference of two clocks that is worth a look.
const CLOCK_MILLIS: u64 = 1_000;
/// The count of the rows of a table ends here.
const ROWS_COUNTED_MAX: u64 = 100_000;

/// A finding, with the section of the runbook about it.
#[derive(Debug)]
struct Finding {
    text: String,
    section: &'static str,
}

impl Finding {
    fn write(&self) -> Markup {
        html! { (self.text) " (runbook: " code { (self.section) } ")" }
    }
}

/// Returns the page. `cluster` is the answer of `GET /v1/cluster`.
pub fn page(cluster: &Answered, metrics: Option<(&Sample, &Rates)>) -> Page {
    let body = html! {
        h1 { "Outboxes and intake topics" }
        @match (cluster, metrics) {
            (Ok(_), Some((latest, _))) if latest.inbound.is_empty() => (none()),
            (Ok(cluster), Some((latest, rates))) => (shown(cluster, &latest.inbound, rates)),
            (Ok(_), None) => p { "The metrics of this node cannot be read now. Load this again." },
            (Err(refused), _) => {
                (refused.notice())
                p { "This page needs the right " code { "operate" } "." }
            },
        }
        @if cluster.is_ok() { (sample(&Call::get("/metrics").curl())) }
    };
    let title = "Outboxes and intake topics".to_owned();
    Page { section: Section::Inbound, title, body, is_live: true }
}

/// Says how a node gets an outbox or an intake topic.
fn none() -> Markup {
    html! {
        p { "This node has no outbox and no intake topic in its settings." }
        ul {
            li {
                "An outbox is a table in the database of an application, whose rows become tasks: "
                code { "punctual outbox install" } ", then " code { "--outbox" } " on all nodes."
            }
            li {
                "An intake topic is a topic of Kafka, whose records become tasks: "
                code { "--intake-topic" } " on all nodes."
            }
        }
    }
}

fn shown(cluster: &Value, inbound: &Inbound, rates: &Rates) -> Markup {
    let outboxes = inbound.of(InboundKind::Outbox);
    let of_outboxes = outboxes.flat_map(|(name, figures)| of_outbox(cluster, name, figures));
    let intakes = inbound.of(InboundKind::Intake);
    let of_intakes = intakes.flat_map(|(name, figures)| of_intake(name, figures));
    let findings: Vec<Finding> = of_outboxes.chain(of_intakes).collect();
    let now = text(cluster, "now");
    html! {
        @if findings.is_empty() {
            div.verdict {
                strong { "Nothing waits for long." }
                span.quiet { "As this node sees it." }
            }
        } @else {
            div.verdict.bad {
                strong { "Look here:" }
                @for finding in &findings { span { (finding.write()) } }
            }
        }
        @if !now.is_empty() { p.quiet { "As of " (moment(now)) "." } }
        (outboxes_of(cluster, inbound, rates))
        (intakes_of(inbound, rates))
        p.quiet {
            "Numbers of rows and records that were carried out, rejected or lost, and of failed "
            "turns, are those of this node since its start. Its log has the reasons of failed "
            "turns. "
            @match rates.over {
                Some(over) => {
                    "Rates are those of the last "
                    (span(over.as_millis().saturating_as::<u64>())) "."
                },
                None => "Rates come with the next look.",
            }
        }
    }
}

/// Returns the node that owns the shard of an outbox.
fn owner_of<'a>(cluster: &'a Value, outbox: &str) -> Option<&'a Value> {
    let shards = ShardCount::new(number(cluster, "shard_count")).ok()?;
    let shard = shards.shard_of_outbox(outbox);
    let owns = |node: &&Value| {
        let mut own = items(node, "shards").iter().filter_map(Value::as_u64);
        own.any(|own| own == u64::from(shard.number()))
    };
    items(cluster, "nodes").iter().find(owns)
}

fn is_this_node(cluster: &Value, node: Option<&Value>) -> bool {
    node.is_some_and(|node| text(node, "id") == text(cluster, "node"))
}

/// Returns what somebody should look at in an outbox. The gauges of other nodes are zero.
fn of_outbox(cluster: &Value, name: &str, figures: &Figures) -> Vec<Finding> {
    let oldest = figures.millis("oldest_row_seconds");
    let rejected = figures.count("rejected_rows");
    let offset = figures.millis("clock_offset_seconds");
    found([
        (owner_of(cluster, name).is_none(), "PunctualOutboxWaits", &|| {
            format!("no node drains the outbox {name}")
        }),
        (oldest > WAITS_MILLIS, "PunctualOutboxWaits", &|| {
            format!(
                "rows of the outbox {name} have waited for {}; the log of this node has the reason",
                span(oldest)
            )
        }),
        (rejected > 0, "PunctualOutboxRejected", &|| {
            format!(
                "rejected rows of the outbox {name}: {}, in punctual.outbox_rejected of its \
                 database, with the reasons",
                rows(rejected)
            )
        }),
        (offset > CLOCK_MILLIS, "PunctualOutboxClock", &|| {
            format!(
                "the clocks of the cluster and of the database of the outbox {name} differ by {}",
                span(offset)
            )
        }),
    ])
}

/// Returns what somebody should look at in an intake topic.
fn of_intake(name: &str, figures: &Figures) -> Vec<Finding> {
    let waits = figures.millis("waits_seconds");
    found([
        (figures.count("rejected_topic_missing") > 0, "PunctualIntakeNoRejectedTopic", &|| {
            format!(
                "a rejected record of the intake topic {name} waits, because Kafka has no topic \
                 {name}.rejected"
            )
        }),
        (waits > WAITS_MILLIS, "PunctualIntakeWaits", &|| {
            format!(
                "the intake topic {name} has waited for {}; the log of this node has the reason",
                span(waits)
            )
        }),
    ])
}

/// Returns what has happened to records of an intake topic since the start of this node.
fn past_of_intake(name: &str, figures: &Figures) -> Vec<Finding> {
    let [rejected, lost, resets] = ["records_rejected_total", "records_lost_total", "resets_total"]
        .map(|metric| figures.count(metric));
    found([
        (rejected > 0, "PunctualIntakeRejected", &|| {
            format!(
                "Rejected records of {name}: {}. The topic {name}.rejected, or else the table \
                 intake_rejected, has them with the reasons",
                grouped(rejected)
            )
        }),
        (lost > 0, "PunctualIntakeLost", &|| {
            format!("Records of {name} deleted before they were read: {}", grouped(lost))
        }),
        (resets > 0, "PunctualIntakeReset", &|| {
            format!("Partitions of {name} that went on elsewhere in their log: {}", grouped(resets))
        }),
    ])
}

/// Returns the findings that hold, from a condition, a section of the runbook and a text for each.
fn found<const N: usize>(all: [(bool, &'static str, &dyn Fn() -> String); N]) -> Vec<Finding> {
    let holding = all.into_iter().filter(|(holds, ..)| *holds);
    holding.map(|(_, section, text)| Finding { text: text(), section }).collect()
}

fn rows(count: u64) -> String {
    let more = if count >= ROWS_COUNTED_MAX { " or more" } else { "" };
    format!("{}{more}", grouped(count))
}

/// Writes a cell with a number. A number that only other nodes know has a dash.
fn cell(number: Option<&str>) -> Markup {
    html! { td.number { (number.unwrap_or("–")) } }
}

fn span_or_dash(millis: u64) -> String {
    if millis == 0 { "–".to_owned() } else { span(millis) }
}

fn outboxes_of(cluster: &Value, inbound: &Inbound, rates: &Rates) -> Markup {
    if inbound.of(InboundKind::Outbox).next().is_none() {
        return nothing();
    }
    let body = html! {
        @for (name, figures) in inbound.of(InboundKind::Outbox) {
            (outbox_row(cluster, (name, figures), rates.of_inbound(InboundKind::Outbox, name)))
        }
    };
    let heads = [
        "Outbox",
        "Drained by",
        "Waiting rows",
        "Oldest row",
        "Rejected rows there",
        "Carried out",
        "Per second",
        "Rejected",
        "Failed turns",
    ];
    html! { h2 { "Outboxes" } (table("Outboxes in the settings of this node", &heads, &body)) }
}

fn outbox_row(cluster: &Value, (name, figures): (&str, &Figures), rate: Option<&str>) -> Markup {
    let owner = owner_of(cluster, name);
    let is_mine = is_this_node(cluster, owner);
    let oldest = figures.millis("oldest_row_seconds");
    let own = |value: String| is_mine.then_some(value);
    let count = |metric: &str| grouped(figures.count(metric));
    html! {
        tr {
            th scope="row" { (name) }
            td {
                @match owner {
                    Some(_) if is_mine && oldest > WAITS_MILLIS => {
                        span.state.bad { "this node: waits" }
                    },
                    Some(_) if is_mine => span.state.good { "this node" },
                    Some(node) => {
                        (text(node, "name"))
                        " " span.quiet { "if the outbox is in its settings" }
                    },
                    None => span.state.bad { "no node" },
                }
            }
            (cell(own(rows(figures.count("waiting_rows"))).as_deref()))
            (cell(own(span_or_dash(oldest)).as_deref()))
            (cell(own(rows(figures.count("rejected_rows"))).as_deref()))
            (cell(Some(&count(InboundKind::Outbox.carried_out()))))
            (cell(rate))
            (cell(Some(&count("rows_rejected_total"))))
            (cell(Some(&count("turn_failures_total"))))
        }
    }
}

fn intakes_of(inbound: &Inbound, rates: &Rates) -> Markup {
    if inbound.of(InboundKind::Intake).next().is_none() {
        return nothing();
    }
    let body = html! {
        @for (name, figures) in inbound.of(InboundKind::Intake) {
            (intake_row((name, figures), rates.of_inbound(InboundKind::Intake, name)))
        }
    };
    let heads = [
        "Intake topic",
        "Read by",
        "Records behind",
        "Waits for",
        "Carried out",
        "Per second",
        "Rejected",
        "Lost",
        "Failed turns",
    ];
    let intakes = inbound.of(InboundKind::Intake);
    let past: Vec<Finding> =
        intakes.flat_map(|(name, figures)| past_of_intake(name, figures)).collect();
    html! {
        h2 { "Intake topics" }
        (table("Intake topics in the settings of this node", &heads, &body))
        @if !past.is_empty() {
            ul { @for finding in &past { li { (finding.write()) } } }
        }
    }
}

fn intake_row((name, figures): (&str, &Figures), rate: Option<&str>) -> Markup {
    let partitions = figures.count("partitions");
    let waits = figures.millis("waits_seconds");
    let count = |metric: &str| grouped(figures.count(metric));
    html! {
        tr {
            th scope="row" { (name) }
            td {
                @if waits > WAITS_MILLIS { span.state.bad { "this node: waits" } }
                @else if partitions > 0 { span.state.good { "this node" } }
                @else { "other nodes, if any" }
                " " span.quiet { "partitions here: " (grouped(partitions)) }
            }
            (cell(Some(&count("lag_records"))))
            (cell(Some(&span_or_dash(waits))))
            (cell(Some(&count(InboundKind::Intake.carried_out()))))
            (cell(rate))
            (cell(Some(&count("records_rejected_total"))))
            (cell(Some(&count("records_lost_total"))))
            (cell(Some(&count("turn_failures_total"))))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::console::frame::Refused;
    use crate::console::rates::Samples;
    use crate::domain::Monotonic;

    /// Returns a cluster of two nodes, whose shards all belong to the node of this id, if any.
    fn cluster(owner: &str) -> Value {
        let node = |id: &str| {
            let shards: &[u16] = if id == owner { &[0, 1, 2, 3] } else { &[] };
            json!({"id": id, "name": format!("<b>{id}"), "shards": shards})
        };
        json!({
            "node": "n1", "now": "2030-01-31T09:30:00Z", "shard_count": 4,
            "nodes": [node("n1"), node("n2")],
        })
    }

    fn shown_of(owner: &str, metrics: &str) -> String {
        let latest = Sample::read(metrics, Monotonic::default());
        let rates = Samples::default().compare(&latest);
        page(&Ok(cluster(owner)), Some((&latest, &rates))).body.into_string()
    }

    #[test]
    fn the_owner_of_an_outbox_shows_what_waits_and_another_node_names_the_owner() {
        let metrics = "punctual_outbox_rows_stored_total{outbox=\"shop\"} 1234\n\
                       punctual_outbox_waiting_rows{outbox=\"shop\"} 100000\n\
                       punctual_outbox_oldest_row_seconds{outbox=\"shop\"} 0.25\n";
        let text = shown_of("n1", metrics);
        for part in [">this node<", "100,000 or more", "250 ms", "1,234", "Nothing waits for long"]
        {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(!text.contains("Intake topics</h2>"), "{text}");
        let text = shown_of("n2", metrics);
        assert!(text.contains("&lt;b&gt;n2") && !text.contains("<b>"), "{text}");
        assert!(!text.contains("or more") && text.contains("1,234"), "{text}");
        let text = shown_of("", metrics);
        assert!(text.contains("no node drains the outbox shop"), "{text}");
    }

    #[test]
    fn a_finding_names_its_section_of_the_runbook() {
        let calm = "punctual_outbox_rows_stored_total{outbox=\"shop\"} 1\n\
                    punctual_intake_partitions{intake=\"in\"} 3\n";
        let text = shown_of("n1", calm);
        assert!(text.contains("Nothing waits for long.") && !text.contains("runbook"), "{text}");
        for (series, section, is_urgent) in [
            ("outbox_oldest_row_seconds{outbox=\"shop\"} 61.5", "PunctualOutboxWaits", true),
            ("outbox_rejected_rows{outbox=\"shop\"} 7", "PunctualOutboxRejected", true),
            ("outbox_clock_offset_seconds{outbox=\"shop\"} -2.0", "PunctualOutboxClock", true),
            ("intake_waits_seconds{intake=\"in\"} 90.0", "PunctualIntakeWaits", true),
            (
                "intake_rejected_topic_missing{intake=\"in\"} 1",
                "PunctualIntakeNoRejectedTopic",
                true,
            ),
            ("intake_records_rejected_total{intake=\"in\"} 2", "PunctualIntakeRejected", false),
            ("intake_records_lost_total{intake=\"in\"} 2", "PunctualIntakeLost", false),
            ("intake_resets_total{intake=\"in\"} 2", "PunctualIntakeReset", false),
        ] {
            let text = shown_of("n1", &format!("{calm}punctual_{series}\n"));
            assert!(text.contains(&format!("<code>{section}</code>")), "{section}: {text}");
            assert_eq!(text.contains("Look here:"), is_urgent, "{section}: {text}");
            let runbook = include_str!("../../docs/operate/runbook.md");
            assert!(runbook.contains(&format!("### {section}\n")), "{section}");
        }
    }

    #[test]
    fn a_node_without_any_says_how_to_set_one_up() {
        let text = shown_of("n1", "punctual_in_flight_tasks 1\n");
        assert!(text.contains("--outbox") && text.contains("--intake-topic"), "{text}");
        assert!(!text.contains("<table") && !text.contains("Nothing waits"), "{text}");
    }

    #[test]
    fn a_reader_without_the_right_is_told_so() {
        let refused = Err(Refused::new(403, "forbidden", "the right is missing"));
        let text = page(&refused, None).body.into_string();
        assert!(text.contains("the right is missing") && !text.contains("/metrics"), "{text}");
        let text = page(&Ok(cluster("n1")), None).body.into_string();
        assert!(text.contains("cannot be read now"), "{text}");
    }
}
