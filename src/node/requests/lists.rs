//! Answers questions about many tasks: lists of them, and their numbers.

use std::sync::Arc;

use super::postgres_failures::unavailable_of_read;
use crate::access::permit::ListPermit;
use crate::domain::{Cursor, List, Page, PendingState, Selection, TopicName};
use crate::node::messages::{Figure, PendingCounts, Unavailable};
use crate::node::metrics::NodeMetrics;
use crate::postgres::lists::counts::{CountResult, TaskCounter};
use crate::postgres::lists::dead_letters::DeadLetters;
use crate::postgres::lists::listing::chosen::Selected;
use crate::postgres::lists::listing::{Listing, READ_MAX, READ_MAX_OF_BULK};

/// The maximum number of topics that an answer counts one by one: the largest ones.
const TOPICS_MAX: usize = 1000;

/// Serves requests that only read.
#[derive(Debug)]
pub struct Lists {
    pub listing: Arc<Listing>,
    pub dead_letters: Arc<DeadLetters>,
    pub counter: Arc<TaskCounter>,
    pub metrics: NodeMetrics,
}

impl Lists {
    pub async fn list(
        &self,
        list: List,
        selection: &Selection,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Unavailable> {
        match list {
            List::Tasks => self.pending(selection, from, limit).await,
            List::DeadLetters => {
                let page = self.dead_letters.page(selection, from, limit).await;
                page.map_err(unavailable_of_read)
            }
        }
    }

    async fn pending(
        &self,
        selection: &Selection,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Unavailable> {
        let selected = self.listing.select(selection, from, limit, READ_MAX).await;
        let page = match selected.map_err(unavailable_of_read)? {
            Selected::Page(page) => page,
            Selected::TooManyNames => return Err(Unavailable::TooManyNames),
        };
        self.metrics.rows_looked_at.inc_by(page.looked);
        Ok(Page { tasks: page.tasks.into_iter().map(|task| task.view).collect(), next: page.next })
    }

    /// Returns the topics behind `after` that have dead letters, in the order of their names.
    pub async fn dead_topics(
        &self,
        after: Option<&TopicName>,
    ) -> Result<Vec<TopicName>, Unavailable> {
        self.dead_letters.topics(after).await.map_err(unavailable_of_read)
    }

    /// Returns whether any pending task or dead letter is for `topic`. `searched` is a list without
    /// the topic. `None`: a limited search did not reach its end, or failed.
    pub async fn have_topic(&self, topic: &TopicName, searched: Option<List>) -> Option<bool> {
        let whole = Selection { topic: Some(topic.clone()), ..Selection::default() };
        for list in [List::DeadLetters, List::Tasks] {
            if searched == Some(list) {
                continue;
            }
            let (has_some, has_more) = match list {
                List::DeadLetters => {
                    let page = self.dead_letters.page(&whole, None, 1).await.ok()?;
                    (!page.tasks.is_empty(), page.next.is_some())
                }
                List::Tasks => {
                    let page = self.listing.page(&whole, None, 1, READ_MAX_OF_BULK).await.ok()?;
                    self.metrics.rows_looked_at.inc_by(page.looked);
                    (!page.tasks.is_empty(), page.next.is_some())
                }
            };
            match (has_some, has_more) {
                (true, _) => return Some(true),
                (false, true) => return None,
                (false, false) => {}
            }
        }
        Some(false)
    }

    pub async fn counts(
        &self,
        permit: &ListPermit,
        state: Option<PendingState>,
    ) -> Result<PendingCounts, Unavailable> {
        Ok(counts_of(&self.count(state).await?, permit))
    }

    /// Returns the pending tasks of each topic that has some.
    pub async fn topic_counts(
        &self,
        permit: &ListPermit,
    ) -> Result<Vec<(TopicName, Figure)>, Unavailable> {
        Ok(topics_of(&self.count(None).await?, permit))
    }

    /// Returns true if a count of all pending tasks has some of `topic`. A sample may miss a topic
    /// with few tasks.
    pub async fn counts_topic(&self, topic: &TopicName) -> Result<bool, Unavailable> {
        let counted = self.count(None).await?;
        Ok(counted.topics(|other| other == topic.as_str()).iter().any(|(_, count)| *count > 0))
    }

    async fn count(&self, state: Option<PendingState>) -> Result<CountResult, Unavailable> {
        self.counter.count(rand::random(), state).await.map_err(unavailable_of_read)
    }
}

/// Returns the pending tasks of each topic, the topic with the most tasks first.
fn topics_of(counted: &CountResult, permit: &ListPermit) -> Vec<(TopicName, Figure)> {
    let topics = counted.topics(|topic| permit.covers(&TopicName::stored(topic)));
    let figure = |task_count| Figure { task_count, is_exact: counted.is_exact };
    topics.iter().map(|(topic, count)| (TopicName::stored(topic), figure(*count))).collect()
}

fn counts_of(counted: &CountResult, permit: &ListPermit) -> PendingCounts {
    let is_meant = |topic: &str| permit.covers(&TopicName::stored(topic));
    let slot = |(from, task_count, is_exact)| (from, Figure { task_count, is_exact });
    let mut topics = topics_of(counted, permit);
    let task_count = topics.iter().map(|(_, figure)| figure.task_count).sum();
    // A topic with few tasks may be on no page of a sample.
    let has_more_topics =
        topics.len() > TOPICS_MAX || (!counted.is_exact && permit.grant().is_none());
    topics.truncate(TOPICS_MAX);
    PendingCounts {
        as_of: counted.as_of,
        pending: Figure { task_count, is_exact: counted.is_exact },
        topics,
        has_more_topics,
        minutes: counted.minutes(is_meant).into_iter().map(slot).collect(),
        days: counted.days(is_meant).into_iter().map(slot).collect(),
    }
}
