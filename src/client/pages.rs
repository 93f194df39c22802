//! Prints lists page by page: `list` and `dead list`.

use std::time::Duration;

use az::SaturatingAs as _;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::answer::{Ending, Exit, NodeAnswer};
use super::args::PartArgs;
use super::caller::{Call, NodeCaller, Repeating};
use super::output::figures::counted;
use super::output::print;
use super::output::table::Table;
use super::task::Task;

/// Number of lines in one request. A node may return fewer.
const PAGE_LINES_MAX: u64 = 1000;
/// How long the second and later pages are retried: a list of many pages should survive a restart.
const RETRY_FOR: Duration = Duration::from_secs(30);
/// The list is given up after this many empty pages in a row. A node looks at many tasks for each
/// of them.
const EMPTY_PAGES_MAX: u32 = 100_000;

/// The parameters of a list.
#[derive(Debug)]
pub struct ListParameters<'a> {
    pub path: &'a [&'a str],
    pub filters: Vec<(&'a str, &'a str)>,
    pub part: &'a PartArgs,
    pub is_json: bool,
    /// The noun for one line.
    pub what: &'static str,
}

#[derive(Deserialize)]
struct ListPage {
    tasks: Vec<Box<RawValue>>,
    cursor: Option<String>,
    /// Present when no task of the topic was found. Null when the node cannot tell.
    #[serde(default)]
    topic_known: Option<bool>,
}

/// Returns the error for a topic that no server knows and with no tasks. The topic is probably
/// misspelt.
pub fn unknown_topic(topic: &str) -> Ending {
    let text = format!(
        "the topic {topic} is not known: Kafka does not have it, and no pending task or dead \
         letter is for it"
    );
    Ending::new(Exit::Refused, text)
}

/// The end of a list.
#[derive(PartialEq, Eq, Debug)]
pub struct ListEnd {
    pub count: u64,
    /// The position of the next page, when there are more tasks.
    pub cursor: Option<String>,
}

impl ListParameters<'_> {
    /// Requests page after page and passes the lines of each to `show`. Ends at the limit, at the
    /// last page, or when `show` returns false.
    pub async fn walk(
        &self,
        caller: &NodeCaller,
        mut show: impl FnMut(&[Box<RawValue>]) -> Result<bool, Ending>,
    ) -> Result<ListEnd, ListFailure> {
        let limit = if self.part.all { u64::MAX } else { self.part.limit };
        let mut listed = ListEnd { count: 0, cursor: self.part.cursor.clone() };
        let (mut is_first, mut empty_count) = (true, 0);
        loop {
            let call = self.call(caller, limit - listed.count, listed.cursor.as_deref())?;
            let retry_for = if is_first { Duration::ZERO } else { RETRY_FOR };
            is_first = false;
            let answer = caller.ask_for(&call, retry_for, Repeating::IsSafe).await?.answer;
            if answer.problem().is_some() {
                return Err(ListFailure::Problem(answer));
            }
            let page: ListPage = answer.read()?;
            let count = page.tasks.len().saturating_as::<u64>();
            empty_count = if count == 0 { empty_count + 1 } else { 0 };
            listed.count = listed.count.saturating_add(count);
            if !show(&page.tasks)? {
                return Ok(ListEnd { cursor: None, ..listed });
            }
            if page.cursor.is_some()
                && (page.cursor == listed.cursor || empty_count > EMPTY_PAGES_MAX)
            {
                return Err(Ending::new(
                    Exit::Unknown,
                    "the list does not end; is this the URL of a node?",
                )
                .into());
            }
            if listed.count == 0 && page.cursor.is_none() && page.topic_known == Some(false) {
                let topic =
                    self.filters.iter().find(|(name, _)| *name == "topic").map(|(_, topic)| *topic);
                return Err(unknown_topic(topic.unwrap_or_default()).into());
            }
            listed.cursor = page.cursor;
            if listed.cursor.is_none() || listed.count >= limit {
                return Ok(listed);
            }
        }
    }

    fn call(&self, caller: &NodeCaller, left: u64, cursor: Option<&str>) -> Result<Call, Ending> {
        let limit = left.min(PAGE_LINES_MAX).to_string();
        let mut query = self.filters.clone();
        query.push(("limit", &limit));
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        caller.get(self.path, &query)
    }

    /// Prints the list: a table, or one line of JSON for each task.
    pub async fn print<const N: usize>(
        &self,
        caller: &NodeCaller,
        heads: [&'static str; N],
        cells: impl Fn(Task) -> [String; N],
    ) -> Result<(), ListFailure> {
        let mut table = Table::new(heads);
        let listed = self.walk(caller, |tasks| {
            if self.is_json {
                return print::lines(
                    &tasks.iter().map(|task| format!("{task}\n")).collect::<String>(),
                );
            }
            let read = |task: &RawValue| {
                NodeAnswer {
                    status: 200,
                    retry_after: None,
                    has_token: false,
                    text: task.get().to_owned(),
                }
                .read::<Task>()
            };
            let rows: Vec<_> =
                tasks.iter().map(|task| read(task).map(&cells)).collect::<Result<_, _>>()?;
            print::lines(&table.rows(&rows))
        });
        let listed = listed.await?;
        match (&listed.cursor, self.is_json) {
            (Some(cursor), true) => print::aside(&json!({ "cursor": cursor }).to_string()),
            (None, true) => {}
            (Some(cursor), false) => {
                print::aside(&continuation(&counted(listed.count, self.what), cursor));
            }
            (None, false) => print::aside(&counted(listed.count, self.what)),
        }
        Ok(())
    }
}

/// Says how a list goes on. The user will copy the flag into a shell, so a cursor with characters
/// that those of a node do not have (base64url) is not repeated.
fn continuation(count: &str, cursor: &str) -> String {
    let is_of_a_node = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if cursor.bytes().all(is_of_a_node) {
        // A cursor may begin with a hyphen, like a flag.
        format!("{count}, and there are more: --all shows all, --cursor={cursor} continues here")
    } else {
        format!(
            "{count}, and there are more: --all shows all; the cursor is not shown: it has \
             characters that no node uses"
        )
    }
}

/// The reason why a list is missing or incomplete.
#[derive(Debug)]
pub enum ListFailure {
    Problem(NodeAnswer),
    Ending(Ending),
}

impl From<Ending> for ListFailure {
    fn from(ending: Ending) -> Self {
        Self::Ending(ending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_cursor_that_a_node_could_have_made_is_printed_for_a_shell() {
        let said = continuation("100 tasks", "-aZ_9");
        assert!(said.ends_with("--cursor=-aZ_9 continues here"), "{said}");
        for cursor in ["a; id", "$(id)", "`id`", "a\nb", "a\u{1b}[2J", "a\u{202e}", "a=", "ä"] {
            let said = continuation("100 tasks", cursor);
            assert!(!said.contains(cursor) && !said.contains("--cursor"), "{said}");
            assert!(said.starts_with("100 tasks, and there are more: --all shows all"), "{said}");
        }
    }
}
