//! Rule 21: no task of a paused topic is claimed between the answer to the pause and the resume.
//! The records of tasks that were claimed before go out at once.

use std::collections::HashSet;

use uuid::Uuid;

use super::history::{Line, Topic};
use super::lateness;
use super::oracle::{Case, Rule};

/// A claim that began before the pause may end this long after its answer.
const CLAIM_MAX_MS: i64 = 1500;
/// Tasks that were claimed before the pause go out within this time, unless an operation holds them
/// back.
const WINDOW_MAX_MS: i64 = 3000;

impl Case<'_> {
    /// Checks the topics that were paused.
    pub(super) fn check_pauses(&mut self) {
        let history = self.history;
        let paused =
            history.topics.iter().enumerate().filter(|(_, topic)| !topic.pauses.is_empty());
        for (index, topic) in paused {
            self.check_claims(topic);
            let deferred: HashSet<Uuid> = history
                .lines
                .iter()
                .filter(|line| line.state == "deferred")
                .map(|line| line.id)
                .collect();
            for record in history.records.iter().filter(|record| record.topic == index) {
                let Some((begin, _)) = during(topic, record.at) else { continue };
                let was_deferred = deferred.contains(&record.id);
                let wait = (begin, record.at);
                let unexplained = lateness::unexplained(&history.spans, None, wait, was_deferred);
                if unexplained > WINDOW_MAX_MS {
                    let what = format!(
                        "its topic was paused at {begin}, it was appended at {}, and nothing \
                         explains {unexplained} ms of it",
                        record.at
                    );
                    self.add(Rule::WhilePaused, Some(record.id), what);
                }
            }
        }
    }

    fn check_claims(&mut self, topic: &Topic) {
        let clock = &self.history.clock;
        let is_claim = |line: &&Line| {
            line.topic.as_ref() == Some(&topic.name)
                && !matches!(line.state.as_str(), "cancelled" | "finished" | "dropped")
        };
        for line in self.history.lines.iter().filter(is_claim) {
            let Some(claimed_at) = line.claimed_at else { continue };
            let is_within = topic.pauses.iter().any(|(begin, end)| {
                claimed_at > clock.latest(begin + CLAIM_MAX_MS) && claimed_at < clock.earliest(*end)
            });
            if is_within {
                let what = format!("claimed at {claimed_at}, while its topic was paused: {line:?}");
                self.add(Rule::WhilePaused, Some(line.id), what);
            }
        }
    }
}

/// Returns the pause in which a moment lies.
fn during(topic: &Topic, at: i64) -> Option<(i64, i64)> {
    topic.pauses.iter().copied().find(|(begin, end)| (*begin..*end).contains(&at))
}
