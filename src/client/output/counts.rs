//! Prints the number of pending tasks for people.

use serde::Deserialize;

use super::table::Table;
use crate::client::answer::{Ending, NodeAnswer};
use crate::client::pages::unknown_topic;
use crate::client::task::one_line;
use crate::domain::text::estimate;

#[derive(Deserialize)]
struct CountsTable {
    as_of: String,
    pending: ShownFigure,
    topics: Vec<TopicRow>,
    more_topics: bool,
    minutes: Vec<Minute>,
    #[serde(default)]
    topic_known: Option<bool>,
}

#[derive(Deserialize)]
struct ShownFigure {
    count: u64,
    exact: bool,
}

#[derive(Deserialize)]
struct TopicRow {
    topic: String,
    #[serde(flatten)]
    figure: ShownFigure,
}

#[derive(Deserialize)]
struct Minute {
    from: String,
    #[serde(flatten)]
    figure: ShownFigure,
}

impl ShownFigure {
    fn text(&self) -> String {
        estimate(self.count, self.exact)
    }
}

/// Returns all counts, without the minutes in which no task is due. `topic` is the requested topic.
pub fn shown(answer: &NodeAnswer, topic: Option<&str>) -> Result<String, Ending> {
    let counts: CountsTable = answer.read()?;
    if let Some(topic) = topic.filter(|_| counts.topic_known == Some(false)) {
        return Err(unknown_topic(topic));
    }
    let mut topics: Vec<[String; 2]> =
        counts.topics.iter().map(|topic| [topic.topic.clone(), topic.figure.text()]).collect();
    if counts.more_topics {
        topics.push(["(more)".to_owned(), "more topics have pending tasks".to_owned()]);
    }
    let minutes = counts.minutes.iter().filter(|minute| minute.figure.count > 0);
    let minutes: Vec<[String; 2]> =
        minutes.map(|minute| [minute.from.clone(), minute.figure.text()]).collect();
    let as_of = one_line(&counts.as_of);
    let mut text = format!("pending  {}\nas of    {as_of}\n", counts.pending.text());
    for (head, rows) in [("TOPIC", topics), ("DUE IN THE MINUTE FROM", minutes)] {
        if !rows.is_empty() {
            text.push('\n');
            text.push_str(&Table::new([head, "PENDING"]).rows(&rows));
        }
    }
    Ok(text)
}
