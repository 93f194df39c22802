//! Counters of single principals.
//!
//! The values of the label `principal` stand in the auth file, so no caller can make a series. A
//! reload gives the same counters to names that stay, and removes the series of the others.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::telemetry::{Counter, Family, Registry};

/// The most names with series of their own, besides the one of callers without a credential.
const NAMES_MAX: usize = 200;
/// The label of all names beyond them. No principal can have this name.
const OTHERS: &str = ":other";

type OfPrincipal = [(&'static str, String); 1];
type OfOutcome = [(&'static str, String); 2];

/// The outcome of a request, as operators tell principals apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestOutcome {
    Ok,
    /// A right was missing: 403.
    Denied,
    /// A limit of the principal or of topics was reached.
    Limited,
    /// Another answer 4xx.
    Refused,
    /// Another answer 5xx.
    Failed,
}

impl RequestOutcome {
    pub const ALL: [Self; 5] = [Self::Ok, Self::Denied, Self::Limited, Self::Refused, Self::Failed];

    /// Returns the value of the label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Denied => "denied",
            Self::Limited => "limited",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// The counters of one value of the label.
#[derive(Debug)]
struct Counters {
    /// In the order of [`RequestOutcome::ALL`].
    requests: [Counter; 5],
    submitted: Counter,
}

/// Counts for one principal, or for everybody of one entry of the auth file. Clones count together.
/// Nothing is counted before [`PrincipalMetrics::count`] has given it counters.
#[derive(Clone, Default, Debug)]
pub struct PrincipalCounts(Arc<OnceLock<Counters>>);

impl PrincipalCounts {
    /// Counts an answered request.
    pub fn answered(&self, outcome: RequestOutcome) {
        let Some(Counters { requests: [ok, denied, limited, refused, failed], .. }) = self.0.get()
        else {
            return;
        };
        let counter = match outcome {
            RequestOutcome::Ok => ok,
            RequestOutcome::Denied => denied,
            RequestOutcome::Limited => limited,
            RequestOutcome::Refused => refused,
            RequestOutcome::Failed => failed,
        };
        counter.inc();
    }

    /// Counts stored tasks.
    pub fn submitted(&self, count: u64) {
        if let Some(counters) = self.0.get() {
            counters.submitted.inc_by(count);
        }
    }
}

/// Equal handles count together.
impl PartialEq for PrincipalCounts {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PrincipalCounts {}

/// The metrics of all principals.
#[derive(Clone, Default, Debug)]
pub struct PrincipalMetrics {
    requests: Family<OfOutcome, Counter>,
    submitted: Family<OfPrincipal, Counter>,
    /// The values of the label that have series.
    shown: Arc<Mutex<BTreeSet<String>>>,
}

impl PrincipalMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "punctual_principal_requests",
            "Answered requests of identified callers, by principal and outcome",
            self.requests.clone(),
        );
        registry.register(
            "punctual_principal_tasks_submitted",
            "Tasks stored for callers, outboxes and intake topics, by principal",
            self.submitted.clone(),
        );
    }

    /// Gives counters to all principals of a policy, and removes the series of names that are gone.
    /// Only the first ones of `names` have series of their own. `anonymous` always has them.
    pub fn count<'a>(
        &self,
        anonymous: Option<(String, &'a PrincipalCounts)>,
        names: impl Iterator<Item = (String, &'a PrincipalCounts)>,
    ) {
        let mut labels = BTreeSet::new();
        for (name, counts) in names {
            let has_own = labels.contains(&name) || labels.len() < NAMES_MAX;
            let label = if has_own { name } else { OTHERS.to_owned() };
            self.give_counters(counts, &label);
            labels.insert(label);
        }
        if let Some((label, counts)) = anonymous {
            self.give_counters(counts, &label);
            labels.insert(label);
        }
        let mut shown = self.shown.lock();
        for gone in shown.difference(&labels) {
            self.submitted.remove(&of_principal(gone));
            for outcome in RequestOutcome::ALL {
                self.requests.remove(&of_outcome(gone, outcome));
            }
        }
        *shown = labels;
    }

    /// Gives counters to a principal that has none yet. Their series begin at once.
    fn give_counters(&self, counts: &PrincipalCounts, label: &str) {
        counts.0.get_or_init(|| Counters {
            requests: RequestOutcome::ALL.map(|outcome| {
                Counter::clone(&self.requests.get_or_create(&of_outcome(label, outcome)))
            }),
            submitted: Counter::clone(&self.submitted.get_or_create(&of_principal(label))),
        });
    }
}

fn of_principal(label: &str) -> OfPrincipal {
    [("principal", label.to_owned())]
}

fn of_outcome(label: &str, outcome: RequestOutcome) -> OfOutcome {
    [("principal", label.to_owned()), ("outcome", outcome.name().to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry;

    impl PrincipalMetrics {
        /// Returns the series, as they are shown.
        pub(in crate::access) fn series(&self) -> Vec<String> {
            let mut registry = Registry::default();
            self.register(&mut registry);
            let text = telemetry::encode(&registry).unwrap();
            let series = text.lines().filter(|line| !line.starts_with('#'));
            series.map(str::to_owned).collect()
        }
    }

    fn named(
        all: &[(String, PrincipalCounts)],
    ) -> impl Iterator<Item = (String, &PrincipalCounts)> {
        all.iter().map(|(name, counts)| (name.clone(), counts))
    }

    fn fresh(names: impl IntoIterator<Item = impl Into<String>>) -> Vec<(String, PrincipalCounts)> {
        names.into_iter().map(|name| (name.into(), PrincipalCounts::default())).collect()
    }

    fn submitted(label: &str, count: u64) -> String {
        format!("punctual_principal_tasks_submitted_total{{principal=\"{label}\"}} {count}")
    }

    fn requests(label: &str, outcome: &str, count: u64) -> String {
        let name = "punctual_principal_requests_total";
        format!("{name}{{principal=\"{label}\",outcome=\"{outcome}\"}} {count}")
    }

    #[test]
    fn every_outcome_has_a_series_from_the_start_and_counts_alone() {
        let (metrics, unnamed) = (PrincipalMetrics::default(), PrincipalCounts::default());
        unnamed.answered(RequestOutcome::Ok);
        assert_eq!(metrics.series(), [""; 0]);
        let all = fresh(["ann"]);
        metrics.count(None, named(&all));
        for (count, outcome) in (1..).zip(RequestOutcome::ALL) {
            assert!(metrics.series().contains(&requests("ann", outcome.name(), 0)));
            for _answer in 0..count {
                all[0].1.answered(outcome);
            }
        }
        for (count, outcome) in (1..).zip(RequestOutcome::ALL) {
            assert!(metrics.series().contains(&requests("ann", outcome.name(), count)));
        }
        all[0].1.submitted(7);
        assert!(metrics.series().contains(&submitted("ann", 7)), "{:?}", metrics.series());
    }

    #[test]
    fn names_that_stay_keep_their_counts_and_the_series_of_the_others_go() {
        let metrics = PrincipalMetrics::default();
        let (before, after) = (fresh(["ann", "bob"]), fresh(["ann", "eve"]));
        metrics.count(None, named(&before));
        before.iter().for_each(|(_, counts)| counts.submitted(2));
        metrics.count(None, named(&after));
        // A request of the policy before counts on.
        before.iter().chain(&after).for_each(|(_, counts)| counts.submitted(1));
        let series = metrics.series();
        assert!(series.contains(&submitted("ann", 4)), "{series:?}");
        assert!(series.contains(&submitted("eve", 1)), "{series:?}");
        assert!(!series.iter().any(|line| line.contains("bob")), "{series:?}");
        assert_eq!(series.len(), 2 * 6);
    }

    #[test]
    fn names_beyond_the_first_ones_count_together_and_anonymous_alone() {
        let metrics = PrincipalMetrics::default();
        let all = fresh((0..NAMES_MAX + 2).map(|n| format!("p{n}")));
        let anonymous = PrincipalCounts::default();
        metrics.count(Some(("anonymous".to_owned(), &anonymous)), named(&all));
        all.iter().for_each(|(_, counts)| counts.submitted(1));
        anonymous.submitted(5);
        let series = metrics.series();
        assert_eq!(series.len(), (NAMES_MAX + 2) * 6);
        for (label, count) in [("p0", 1), ("p199", 1), (OTHERS, 2), ("anonymous", 5)] {
            assert!(series.contains(&submitted(label, count)), "{label}");
        }
        assert!(!series.iter().any(|line| line.contains("p200")));
        metrics.count(None, named(&fresh(["p0"])));
        assert_eq!(metrics.series().len(), 6);
    }
}
