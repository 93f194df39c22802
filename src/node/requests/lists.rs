//! Answers questions about many tasks: lists of them, and their numbers.

use std::sync::Arc;

use super::connections::principal_turns::{CallKind, PrincipalTurns};
use super::postgres_failures::unavailable_of_read;
use crate::access::Principal;
use crate::access::permit::{Grant, ListPermit};
use crate::domain::{List, Page, PendingState, Selection, TopicName};
use crate::node::messages::{Figure, PageRange, PendingCounts, Unavailable};
use crate::node::metrics::NodeMetrics;
use crate::postgres::connection::turns::Turns;
use crate::postgres::lists::counts::{CountResult, TaskCounter};
use crate::postgres::lists::dead_letters::DeadLetters;
use crate::postgres::lists::listing::chosen::Selected;
use crate::postgres::lists::listing::{Listing, READ_MAX, READ_MAX_OF_BULK};

/// The maximum number of topics that an answer counts one by one: the largest ones.
const TOPICS_MAX: usize = 1000;

/// Maximum number of counts for callers at a time. The loops of the node count with the same
/// connection, and so wait for one of them at most.
const COUNTS_MAX: usize = 1;

/// Serves requests that only read, each in a turn of its principal.
#[derive(Debug)]
pub struct Lists {
    listing: Arc<Listing>,
    dead_letters: Arc<DeadLetters>,
    counter: Arc<TaskCounter>,
    metrics: NodeMetrics,
    turns: Arc<PrincipalTurns>,
    /// The turns of all callers together at the connection for counts.
    turns_to_count: Turns<()>,
}

impl Lists {
    pub fn new(
        (listing, dead_letters): (&Arc<Listing>, &Arc<DeadLetters>),
        counter: Arc<TaskCounter>,
        metrics: NodeMetrics,
        turns: &Arc<PrincipalTurns>,
    ) -> Self {
        Self {
            listing: Arc::clone(listing),
            dead_letters: Arc::clone(dead_letters),
            counter,
            metrics,
            turns: Arc::clone(turns),
            turns_to_count: Turns::new(COUNTS_MAX),
        }
    }

    pub async fn list(
        &self,
        by: &Principal,
        list: List,
        selection: &Selection,
        range: PageRange,
    ) -> Result<Page, Unavailable> {
        match list {
            List::Tasks => self.pending(by, selection, range).await,
            List::DeadLetters => {
                let _turn = self.turns.take(by, CallKind::DeadLetters).await?;
                let page = self.dead_letters.page(selection, range.from, range.limit).await;
                page.map_err(unavailable_of_read)
            }
        }
    }

    async fn pending(
        &self,
        by: &Principal,
        selection: &Selection,
        PageRange { from, limit }: PageRange,
    ) -> Result<Page, Unavailable> {
        let _turn = self.turns.take(by, CallKind::Tasks).await?;
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
        by: &Principal,
        after: Option<&TopicName>,
    ) -> Result<Vec<TopicName>, Unavailable> {
        let _turn = self.turns.take(by, CallKind::DeadLetters).await?;
        self.dead_letters.topics(after).await.map_err(unavailable_of_read)
    }

    /// Returns whether any pending task or dead letter is for the topic of `grant`. `searched` is a
    /// list without the topic. `None`: a limited search did not reach its end, or failed.
    pub async fn have_topic(&self, grant: &Grant, searched: Option<List>) -> Option<bool> {
        let (by, topic) = (grant.principal(), grant.topic());
        let whole = Selection { topic: Some(topic.clone()), ..Selection::default() };
        for list in [List::DeadLetters, List::Tasks] {
            if searched == Some(list) {
                continue;
            }
            let (has_some, has_more) = match list {
                List::DeadLetters => {
                    let _turn = self.turns.take(by, CallKind::DeadLetters).await.ok()?;
                    let page = self.dead_letters.page(&whole, None, 1).await.ok()?;
                    (!page.tasks.is_empty(), page.next.is_some())
                }
                List::Tasks => {
                    let _turn = self.turns.take(by, CallKind::Tasks).await.ok()?;
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
        Ok(counts_of(&self.count(permit.principal(), state).await?, permit))
    }

    /// Returns the pending tasks of each topic that has some.
    pub async fn topic_counts(
        &self,
        permit: &ListPermit,
    ) -> Result<Vec<(TopicName, Figure)>, Unavailable> {
        Ok(topics_of(&self.count(permit.principal(), None).await?, permit))
    }

    /// Returns true if a count of all pending tasks has some of the topic of `grant`. A sample may
    /// miss a topic with few tasks.
    pub async fn counts_topic(&self, grant: &Grant) -> Result<bool, Unavailable> {
        let topic = grant.topic();
        let counted = self.count(grant.principal(), None).await?;
        Ok(counted.topics(|other| other == topic.as_str()).iter().any(|(_, count)| *count > 0))
    }

    async fn count(
        &self,
        by: &Principal,
        state: Option<PendingState>,
    ) -> Result<CountResult, Unavailable> {
        let _turn = self.turns.take(by, CallKind::Counts).await?;
        let turn_to_count = self.turns_to_count.take(&()).await;
        let _turn_to_count = turn_to_count.ok_or(Unavailable::Busy { limit: "counts_at_once" })?;
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
