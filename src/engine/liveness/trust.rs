//! How long a node may trust that its batches are still its own.
//!
//! Other nodes declare a node dead after they have read one counter for a TTL, and they can only
//! read it after it was written. So no node can have adopted a batch until a TTL after the node's
//! last successful heartbeat was *sent*. The margin covers the time between this check and the
//! moment at which a record leaves the process, and clocks that run at different rates.

use std::time::Duration;

use crate::domain::Monotonic;

/// The rule for one TTL.
#[derive(Clone, Copy, Debug)]
pub struct Trust {
    span: Duration,
}

impl Trust {
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
    pub fn is_trusted(self, sent_at: Option<Monotonic>, now: Monotonic) -> bool {
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
        let trust = Trust::new(Duration::from_secs(3));
        assert!(trust.is_trusted(Some(at(1_000)), at(3_500)));
        assert!(!trust.is_trusted(Some(at(1_000)), at(3_501)));
    }

    #[test]
    fn before_the_first_heartbeat_there_is_no_trust() {
        assert!(!Trust::new(Duration::from_secs(3)).is_trusted(None, at(0)));
    }
}
