//! Decides when a node is fenced: until when its batches are certainly its own.
//!
//! Other nodes declare a node dead after they have read the same counter for a whole TTL. The node
//! had sent this counter before. So until a TTL after the node *sent* its last successful
//! heartbeat, no other node can have adopted a batch. The margin covers the time between this check
//! and the moment when a record leaves the process, and clocks with different rates.

use std::time::Duration;

use crate::domain::Monotonic;

/// The rule for one TTL.
#[derive(Clone, Copy, Debug)]
pub struct FencingRule {
    span: Duration,
}

impl FencingRule {
    /// The margin is a sixth of the TTL, the pause between two heartbeats.
    pub fn new(ttl: Duration) -> Self {
        Self { span: ttl.saturating_sub(ttl / 6) }
    }

    /// Returns how long one heartbeat vouches for the node.
    pub const fn span(self) -> Duration {
        self.span
    }

    /// Returns true when the successful heartbeat sent at `sent_at` still vouches at `now` that the
    /// node's batches are its own.
    pub fn vouches(self, sent_at: Option<Monotonic>, now: Monotonic) -> bool {
        sent_at.is_some_and(|sent_at| now.since(sent_at) <= self.span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn a_heartbeat_vouches_for_five_sixths_of_the_ttl_from_when_it_was_sent() {
        let rule = FencingRule::new(Duration::from_secs(3));
        assert!(rule.vouches(Some(at(1_000)), at(3_500)));
        assert!(!rule.vouches(Some(at(1_000)), at(3_501)));
    }

    #[test]
    fn before_the_first_heartbeat_the_node_is_fenced() {
        assert!(!FencingRule::new(Duration::from_secs(3)).vouches(None, at(0)));
    }
}
