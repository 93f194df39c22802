//! How long a node trusts that its batches are its own.
//!
//! Others take a node for dead when they have read one counter for a TTL, and they read it after it was written: so nobody can have adopted anything
//! until a TTL after the node's last successful heartbeat was *sent*. The margin is for what lies between the look at this rule and the record's
//! leaving the process, and for clocks that run at different rates.

use std::time::Duration;

use crate::domain::Monotonic;

/// The rule, for one TTL.
#[derive(Clone, Copy, Debug)]
pub struct Trust {
    span: Duration,
}

impl Trust {
    /// A sixth of the TTL is the margin: as long as the pause between two heartbeats.
    pub fn new(ttl: Duration) -> Self {
        Self { span: ttl.saturating_sub(ttl / 6) }
    }

    /// How long a heartbeat vouches.
    pub const fn span(self) -> Duration {
        self.span
    }

    /// True when a heartbeat that was sent at `sent_at` and succeeded still vouches at `now` that what this node held then is still its own.
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
