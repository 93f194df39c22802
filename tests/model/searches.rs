//! Searches that every model needs: all scopes, and the deliberate mistakes.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Instant;

use crate::checker::{Model, search};

/// The results of the searches of all scopes of a model.
pub struct ScopeSearches {
    began_at: Instant,
    state_count: usize,
    /// The kinds of actions taken in some scope.
    kinds: BTreeSet<&'static str>,
    wrong: Vec<String>,
}

impl ScopeSearches {
    pub fn begin() -> Self {
        let (kinds, wrong) = (BTreeSet::new(), Vec::new());
        Self { began_at: Instant::now(), state_count: 0, kinds, wrong }
    }

    /// Searches one scope, which must keep every property and have `state_count` states.
    pub fn search<M: Model>(&mut self, model: &M, (name, state_count): (&str, usize)) {
        let began_at = Instant::now();
        let found = search(model);
        eprintln!(
            "{name}: {} states, {} steps, {:.1?}",
            found.state_count,
            found.step_count,
            began_at.elapsed()
        );
        if let Some(broken) = &found.broken {
            self.wrong.push(format!("{name} breaks {}", broken.story()));
        } else if found.state_count != state_count {
            self.wrong.push(format!(
                "{name} has {} states, not {state_count}: what was lost, or is new?",
                found.state_count
            ));
        }
        self.state_count += found.state_count;
        self.kinds.extend(found.kinds.into_keys());
    }

    /// Fails when a scope was wrong, or when an action of `kinds` was taken in no scope.
    pub fn end(self, kinds: &[&str]) {
        eprintln!("{} states in {:.1?}", self.state_count, self.began_at.elapsed());
        let missing: Vec<_> = kinds.iter().filter(|kind| !self.kinds.contains(**kind)).collect();
        assert!(missing.is_empty(), "never taken: {missing:?}");
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
    }
}

/// Searches a model with a deliberate mistake, which must break `property`. Returns the reason when
/// it does not.
pub fn unnoticed<M: Model>(model: &M, mistake: impl Debug, property: &str) -> Option<String> {
    let found = search(model);
    let broken = found.broken.as_ref().map_or("nothing", |broken| broken.property);
    let length = found.broken.as_ref().map_or(0, |broken| broken.trace.len());
    eprintln!("{mistake:?}: {broken}; {} states, a trace of {length} steps", found.state_count);
    if broken == property {
        return None;
    }
    let story = found.broken.map_or_else(String::new, |broken| broken.story());
    Some(format!("{mistake:?} should break \"{property}\": {story}"))
}
