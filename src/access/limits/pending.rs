//! Numbers of pending tasks, as the node last counted them, and whether they have reached a limit.
//!
//! Postgres has no counter of pending tasks, so these limits are soft: a number is some seconds
//! old, and may be an estimate from a sample of pages. An estimate may be far too high, if a few
//! tasks lie together on one page of the sample. So the smaller of two successive estimates counts.
//! Only submits with such a limit ask for a count. Each count starts from zero, so numbers never
//! drift.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::access::pattern::Pattern;
use crate::domain::{Monotonic, PrincipalName, TopicName};

/// The shortest time between two counts of a node. One takes about 40 ms of Postgres's time.
pub const COUNT_EVERY: Duration = Duration::from_secs(10);
/// The longest time between two counts after the first one, so that the first submit after a pause
/// finds a number, too.
pub const IDLE_COUNT_EVERY: Duration = Duration::from_secs(60);
/// An older number limits nothing: while counts fail, nobody could free room.
const AGE_MAX: Duration = Duration::from_secs(120);

/// Whose pending tasks a limit is about.
#[derive(Clone, Copy, Debug)]
pub enum PendingOf<'a> {
    Principal(&'a PrincipalName),
    Topic(&'a TopicName),
    /// All topics of a pattern together.
    Topics(&'a Pattern),
}

/// The counts that submits have asked for since the start of the node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WantedCounts {
    pub topics: bool,
    pub principals: bool,
}

impl WantedCounts {
    pub const fn any(self) -> bool {
        self.topics || self.principals
    }
}

/// The result of a count of all topics, or of all principals.
#[derive(Clone, Debug)]
pub struct PendingCount<T> {
    pub task_counts: HashMap<T, u64>,
    /// False for an estimate.
    pub is_exact: bool,
    /// When the count began.
    pub at: Monotonic,
}

/// The numbers of pending tasks that the node knows.
#[derive(Default, Debug)]
pub struct PendingFigures {
    figures: Mutex<Figures>,
    asked: Notify,
}

#[derive(Default, Debug)]
struct Figures {
    wanted: WantedCounts,
    topics: Counted<TopicName>,
    /// Sums of `topics`, so that a submit does not add them up again.
    patterns: HashMap<Pattern, u64>,
    principals: Counted<PrincipalName>,
}

/// The last counts of topics, or of principals.
#[derive(Debug)]
struct Counted<T> {
    /// The numbers that limits are compared with.
    task_counts: HashMap<T, u64>,
    /// The numbers of the last count.
    last: HashMap<T, u64>,
    at: Option<Monotonic>,
}

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self { task_counts: HashMap::new(), last: HashMap::new(), at: None }
    }
}

impl<T: Clone + Eq + Hash> Counted<T> {
    fn is_current(&self, now: Monotonic) -> bool {
        self.at.is_some_and(|at| now.since(at) <= AGE_MAX)
    }

    fn take(&mut self, count: PendingCount<T>) {
        let before = std::mem::replace(&mut self.last, count.task_counts);
        self.task_counts = match count.is_exact {
            true => self.last.clone(),
            false => {
                let smaller = |(of, now): (&T, &u64)| {
                    before.get(of).map(|before| (of.clone(), *before.min(now)))
                };
                self.last.iter().filter_map(smaller).collect()
            }
        };
        self.at = Some(count.at);
    }
}

impl PendingFigures {
    /// Returns the number of pending tasks if it is `pending_max` or more. Asks for a count, which
    /// serves later submits: without a recent one, no limit is reached.
    pub fn reached(&self, of: PendingOf<'_>, pending_max: u64, now: Monotonic) -> Option<u64> {
        let mut figures = self.figures.lock();
        let Figures { wanted, topics, patterns, principals } = &mut *figures;
        let (is_wanted, is_current) = match of {
            PendingOf::Principal(_) => (&mut wanted.principals, principals.is_current(now)),
            PendingOf::Topic(_) | PendingOf::Topics(_) => {
                (&mut wanted.topics, topics.is_current(now))
            }
        };
        *is_wanted = true;
        self.asked.notify_one();
        if !is_current {
            return None;
        }
        let task_count = match of {
            PendingOf::Principal(name) => principals.task_counts.get(name).copied(),
            PendingOf::Topic(topic) => topics.task_counts.get(topic).copied(),
            PendingOf::Topics(pattern) => match patterns.get(pattern) {
                Some(sum) => Some(*sum),
                None => {
                    let covered = topics.task_counts.iter();
                    let covered = covered.filter(|(topic, _)| pattern.denies(topic));
                    let sum = covered.map(|(_, count)| count).sum();
                    patterns.insert(pattern.clone(), sum);
                    Some(sum)
                }
            },
        };
        task_count.filter(|task_count| *task_count >= pending_max)
    }

    /// Waits until a submit asks for a count.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Returns the counts that submits have asked for since the start of the node.
    pub fn wanted(&self) -> WantedCounts {
        self.figures.lock().wanted
    }

    /// Takes in the pending tasks of all topics.
    pub fn take_topics(&self, count: PendingCount<TopicName>) {
        let mut figures = self.figures.lock();
        figures.topics.take(count);
        figures.patterns.clear();
    }

    /// Takes in the pending tasks of all principals.
    pub fn take_principals(&self, count: PendingCount<PrincipalName>) {
        self.figures.lock().principals.take(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(1000 + seconds))
    }

    fn topic(name: &str) -> TopicName {
        TopicName::new(name).unwrap()
    }

    fn exact<T>(task_counts: HashMap<T, u64>, second: u64) -> PendingCount<T> {
        PendingCount { task_counts, is_exact: true, at: at(second) }
    }

    #[tokio::test]
    async fn a_submit_with_a_limit_asks_for_the_count_that_it_needs() {
        let figures = PendingFigures::default();
        assert!(!figures.wanted().any());
        let ann = PrincipalName::new("ann").unwrap();
        assert_eq!(figures.reached(PendingOf::Principal(&ann), 1, at(0)), None, "not counted yet");
        figures.asked().await;
        let of_principals = WantedCounts { topics: false, principals: true };
        assert_eq!(figures.wanted(), of_principals);
        figures.take_principals(exact(HashMap::from([(ann.clone(), 5)]), 0));
        assert_eq!(figures.reached(PendingOf::Principal(&ann), 5, at(1)), Some(5));
        assert_eq!(figures.reached(PendingOf::Principal(&ann), 6, at(1)), None);
        let bob = PrincipalName::new("bob").unwrap();
        assert_eq!(figures.reached(PendingOf::Principal(&bob), 1, at(1)), None, "has no tasks");
        assert_eq!(figures.reached(PendingOf::Topic(&topic("t")), 1, at(1)), None);
        figures.asked().await;
        assert_eq!(figures.wanted(), WantedCounts { topics: true, principals: true });
    }

    #[test]
    fn the_tasks_of_all_topics_of_a_pattern_count_together_and_after_each_count_anew() {
        let figures = PendingFigures::default();
        let counts = |first| HashMap::from([(topic("a.x"), first), (topic("a.y"), 3)]);
        let pattern = Pattern::new("a.*").unwrap();
        let reached = |max| figures.reached(PendingOf::Topics(&pattern), max, at(0));
        figures.take_topics(exact(counts(2), 0));
        assert_eq!((reached(5), reached(6)), (Some(5), None));
        assert_eq!(figures.reached(PendingOf::Topic(&topic("a.y")), 3, at(0)), Some(3));
        figures.take_topics(exact(counts(9), 0));
        assert_eq!(reached(6), Some(12));
    }

    #[test]
    fn an_old_count_limits_nothing() {
        let figures = PendingFigures::default();
        figures.take_topics(exact(HashMap::from([(topic("t"), 9)]), 0));
        let reached = |seconds| figures.reached(PendingOf::Topic(&topic("t")), 1, at(seconds));
        assert_eq!((reached(120), reached(121)), (Some(9), None));
    }

    #[test]
    fn one_estimate_alone_limits_nothing_and_an_exact_count_does() {
        let figures = PendingFigures::default();
        let estimate = |counts: &[(&str, u64)]| {
            let task_counts = counts.iter().map(|(name, count)| (topic(name), *count)).collect();
            figures.take_topics(PendingCount { task_counts, is_exact: false, at: at(0) });
        };
        let reached = |name| figures.reached(PendingOf::Topic(&topic(name)), 10, at(0));
        estimate(&[("full", 50), ("small", 400)]);
        assert_eq!((reached("full"), reached("small")), (None, None));
        estimate(&[("full", 40)]);
        assert_eq!((reached("full"), reached("small")), (Some(40), None));
        estimate(&[("full", 60), ("small", 400)]);
        assert_eq!((reached("full"), reached("small")), (Some(40), None));
        estimate(&[("full", 9)]);
        assert_eq!(reached("full"), None, "tasks have left");
        figures.take_topics(exact(HashMap::from([(topic("full"), 11)]), 0));
        assert_eq!(reached("full"), Some(11));
    }
}
