//! The load calendar: how many tasks are due in each minute of the next hours, and on each day.

use maud::{Markup, html};
use serde_json::Value;

use super::format::{figure, grouped, is_true, items, moment, number, text};
use super::frame::{Answered, Page, Section, sample, table, topic_form, unknown_topic};
use super::topics;

/// The size of a chart in units of its own. The page stretches it.
const WIDTH: u64 = 1_200;
const HEIGHT: u64 = 200;

/// Returns the page of all topics, or of one. `counts` is the answer of `GET /v1/tasks/counts`.
pub fn page(topic: &str, counts: &Answered) -> Page {
    let body = html! {
        h1 { "Ahead" }
        (topic_form(Section::Ahead, topic))
        @match counts {
            Ok(counts) => (calendar(topic, counts)),
            Err(refused) => (refused.notice()),
        }
        (sample(&topics::call(topic).curl()))
    };
    Page { section: Section::Ahead, title: "Ahead".to_owned(), body, is_live: false }
}

fn calendar(topic: &str, counts: &Value) -> Markup {
    let (minutes, days) = (items(counts, "minutes"), items(counts, "days"));
    let whose = if topic.is_empty() { "all topics".to_owned() } else { topic.to_owned() };
    let pending = counts.get("pending").unwrap_or(&Value::Null);
    html! {
        (unknown_topic(counts))
        p {
            strong { (figure(pending)) } " tasks of " (whose) " are pending, as of "
            (moment(text(counts, "as_of"))) "."
        }
        (section("Next two hours, by minute", minutes, clock_of))
        (section("Next 30 days, by day", days, day_of))
        @if minutes.iter().chain(days).any(|slot| !is_true(slot, "exact")) {
            p.quiet {
                "Figures with “about” are estimates from a sample, as are the paler bars."
            }
        }
    }
}

/// Returns `09:30` of a time of the API.
fn clock_of(at: &str) -> &str {
    at.get(11..16).unwrap_or(at)
}

/// Returns `2030-01-31` of a time of the API.
fn day_of(at: &str) -> &str {
    at.get(..10).unwrap_or(at)
}

fn section(title: &str, slots: &[Value], label: fn(&str) -> &str) -> Markup {
    let all: u64 = slots.iter().map(|slot| number(slot, "count")).sum();
    let most = slots.iter().max_by_key(|slot| number(slot, "count"));
    let rows = html! {
        @for slot in slots.iter().filter(|slot| number(slot, "count") > 0) {
            tr { th scope="row" { (label(text(slot, "from"))) } td.number { (figure(slot)) } }
        }
    };
    html! {
        h2 { (title) }
        @match most.filter(|_| all > 0) {
            None => p { "No task is due then." },
            Some(most) => {
                p {
                    (grouped(all)) " tasks; the most, " (figure(most)) ", from "
                    (label(text(most, "from"))) "."
                }
                (chart(title, slots))
                (ticks(slots, label))
                details {
                    summary { "The same as a table" }
                    (table(title, &["From", "Tasks"], &rows))
                }
            },
        }
    }
}

/// Draws a bar for each slot. The tallest one has the height of the chart.
fn chart(title: &str, slots: &[Value]) -> Markup {
    let most = slots.iter().map(|slot| number(slot, "count")).max().unwrap_or(0).max(1);
    let count = u64::try_from(slots.len()).unwrap_or(1).max(1);
    let step = WIDTH / count;
    let bars = (0_u64..).zip(slots).filter_map(|(index, slot)| {
        let tasks = number(slot, "count");
        let height = (tasks.saturating_mul(HEIGHT - 10) / most).max(u64::from(tasks > 0) * 2);
        (height > 0).then_some((index * step, height, is_true(slot, "exact"), slot))
    });
    html! {
        svg.chart viewBox={ "0 0 " (step * count) " " (HEIGHT) } preserveAspectRatio="none"
            role="img" aria-label={ (title) ": a bar for each; the table below has the figures" } {
            @for quarter in 1_u64..4 {
                line x1="0" x2=(step * count) y1=(HEIGHT * quarter / 4) y2=(HEIGHT * quarter / 4) {}
            }
            @for (left, height, is_exact, slot) in bars {
                rect.sampled[!is_exact] x=(left) y=(HEIGHT - height)
                    width=(step.saturating_sub(1 + step / 8)) height=(height) {
                    title { (text(slot, "from")) ": " (figure(slot)) }
                }
            }
        }
    }
}

/// Writes the times at the beginning, the quarters and the end of a chart.
fn ticks(slots: &[Value], label: fn(&str) -> &str) -> Markup {
    let last = slots.len().saturating_sub(1);
    let places = [0, last / 4, last / 2, last * 3 / 4, last];
    html! {
        p.ticks {
            @for slot in places.iter().filter_map(|place| slots.get(*place)) {
                span { (label(text(slot, "from"))) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slot(from: &str, count: u64, exact: bool) -> Value {
        json!({"from": from, "count": count, "exact": exact})
    }

    #[test]
    fn bars_are_as_tall_as_their_counts_and_sampled_ones_say_so() {
        let counts = json!({
            "as_of": "2030-01-31T09:30:00Z",
            "pending": {"count": 300, "exact": false},
            "minutes": [
                slot("2030-01-31T09:30:00.000Z", 100, true),
                slot("2030-01-31T09:31:00.000Z", 0, true),
                slot("2030-01-31T09:32:00.000Z", 200, false),
            ],
            "days": [slot("2030-01-31T00:00:00.000Z", 0, true)],
        });
        let text = page("<b>", &Ok(counts)).body.into_string();
        assert_eq!(text.matches("<rect").count(), 2, "{text}");
        assert!(text.contains(r#"y="105""#) && text.contains(r#"height="190""#), "{text}");
        assert!(text.contains("about 200, from 09:32") && text.contains("estimates"), "{text}");
        assert!(text.contains("No task is due then.") && !text.contains("<b>"), "{text}");
        assert!(!text.contains("misspelt"), "{text}");
        let text = page("t", &Ok(json!({"topic_known": false}))).body.into_string();
        assert!(text.contains("misspelt"), "{text}");
    }
}
