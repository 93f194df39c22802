//! The turns of principals at the connections that callers share.
//!
//! Each kind of calls has a few connections, first come, first served. Without turns, the calls of
//! one principal could fill the queue for them, and make the calls of all others wait. With turns,
//! few calls of a principal wait for, or use, the connections of a kind. The turn of a call that
//! its caller has given up is over at once. Its statement may go on, up to its deadline.

use crate::access::Principal;
use crate::domain::PrincipalName;
use crate::node::messages::{Refusal, Unavailable};
use crate::postgres::connection::turns::{Turn, Turns};

/// A kind of calls, with connections of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallKind {
    /// Look-ups of tasks by their ids.
    LookUps,
    /// Replacements and moves of tasks, one by one.
    Changes,
    /// Pages of pending tasks, for lists and for changes of many tasks.
    Tasks,
    /// Pages and changes of dead letters.
    DeadLetters,
    /// Counts of pending tasks.
    Counts,
    Schedules,
    Topics,
    Callbacks,
}

impl CallKind {
    /// Returns the maximum number of calls of one principal at a time. Look-ups and changes are
    /// quick, and have as many connections. Most others have one connection more.
    pub const fn at_once(self) -> usize {
        match self {
            Self::LookUps | Self::Changes => 4,
            Self::Tasks
            | Self::DeadLetters
            | Self::Counts
            | Self::Schedules
            | Self::Topics
            | Self::Callbacks => 1,
        }
    }

    /// Returns the name of the limit, as `detail` and the metrics have it.
    pub const fn limit(self) -> &'static str {
        match self {
            Self::LookUps => "look_ups_share",
            Self::Changes => "changes_share",
            Self::Tasks | Self::DeadLetters => "lists_share",
            Self::Counts => "counts_share",
            Self::Schedules => "schedules_share",
            Self::Topics => "topics_share",
            Self::Callbacks => "callbacks_share",
        }
    }
}

/// The turns of all principals.
#[derive(Debug)]
pub struct PrincipalTurns(Turns<(PrincipalName, CallKind)>);

/// A turn of a principal, which ends when this value is dropped.
pub type NamedTurn<'a> = Turn<'a, (PrincipalName, CallKind)>;

/// As [`NamedTurn`], or `None` for a caller of an open node.
pub type PrincipalTurn<'a> = Option<NamedTurn<'a>>;

/// A call got no turn within 5 s. Nothing was done. Has the name of the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoTurn(pub &'static str);

impl From<NoTurn> for Unavailable {
    fn from(NoTurn(limit): NoTurn) -> Self {
        Self::Busy { limit }
    }
}

impl From<NoTurn> for Refusal {
    fn from(NoTurn(limit): NoTurn) -> Self {
        Self::Busy { limit }
    }
}

impl Default for PrincipalTurns {
    fn default() -> Self {
        Self(Turns::new(1))
    }
}

impl PrincipalTurns {
    /// Waits for a turn of the principal, for 5 s at most. All callers of an open node are one
    /// principal, and none of them is kept from the connections.
    pub async fn take(&self, by: &Principal, kind: CallKind) -> Result<PrincipalTurn<'_>, NoTurn> {
        if by.rights.is_everything() {
            return Ok(None);
        }
        self.take_by_name(&by.name, kind).await.map(Some)
    }

    /// As [`Self::take`], also for callers of an open node.
    pub async fn take_by_name(
        &self,
        by: &PrincipalName,
        kind: CallKind,
    ) -> Result<NamedTurn<'_>, NoTurn> {
        let turn = self.0.take_of(&(by.clone(), kind), kind.at_once()).await;
        turn.ok_or(NoTurn(kind.limit()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::access::PrincipalCounts;
    use crate::access::limits::Limits;
    use crate::access::rights::Rights;

    fn principal(name: &str, rights: Rights) -> Principal {
        let name = PrincipalName::new(name).unwrap();
        let (limits, counts) = (Limits::default(), PrincipalCounts::default());
        Principal { name, rights: Arc::new(rights), limits, counts }
    }

    #[tokio::test]
    async fn a_principal_has_one_call_of_a_kind_at_a_time_and_others_do_not_wait_for_it() {
        let turns = PrincipalTurns::default();
        let [ann, bob] = ["ann", "bob"].map(|name| principal(name, Rights::default()));
        let held = turns.take(&ann, CallKind::Tasks).await.unwrap();
        assert!(held.is_some());
        assert!(turns.take(&ann, CallKind::Tasks).now_or_never().is_none(), "it waits");
        assert!(turns.take(&bob, CallKind::Tasks).now_or_never().unwrap().is_ok());
        for kind in [
            CallKind::LookUps,
            CallKind::Changes,
            CallKind::DeadLetters,
            CallKind::Counts,
            CallKind::Schedules,
            CallKind::Topics,
            CallKind::Callbacks,
        ] {
            assert!(turns.take(&ann, kind).now_or_never().unwrap().is_ok(), "{kind:?}");
        }
        drop(held);
        assert!(turns.take(&ann, CallKind::Tasks).now_or_never().unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_principal_has_four_look_ups_at_a_time() {
        let (turns, ann) = (PrincipalTurns::default(), principal("ann", Rights::default()));
        let mut held = Vec::new();
        while let Some(turn) = turns.take(&ann, CallKind::LookUps).now_or_never() {
            held.push(turn.unwrap());
        }
        assert_eq!(held.len(), 4);
    }

    #[tokio::test]
    async fn callers_of_an_open_node_do_not_wait_for_each_other() {
        let turns = PrincipalTurns::default();
        let anybody = principal("ann", Rights::everything());
        let first = turns.take(&anybody, CallKind::Schedules).await.unwrap();
        let second = turns.take(&anybody, CallKind::Schedules).now_or_never().unwrap().unwrap();
        assert!(first.is_none() && second.is_none());
    }

    #[test]
    fn a_call_without_a_turn_is_answered_with_its_limit() {
        let limit = CallKind::Topics.limit();
        assert_eq!(Unavailable::from(NoTurn(limit)), Unavailable::Busy { limit: "topics_share" });
        assert_eq!(Refusal::from(NoTurn(limit)), Refusal::Busy { limit: "topics_share" });
    }
}
