//! Tells the publisher whether the node's heartbeats still vouch for its batches.

use std::time::Duration;

use tokio::sync::watch;

use crate::clock;
use crate::domain::Monotonic;
use crate::engine::liveness::fencing::FencingRule;

/// Tells whether the batches of the node are certainly still its own.
///
/// The node's batches by the adopter's last query are still its own while [`holds`](Self::holds)
/// returns true. Otherwise the node is fenced, and publishes nothing. The adopter waits for
/// [`regained`](Self::regained), *then* asks Postgres for the node's own batches, gives up the
/// others, and continues with the new generation. At the start the node has no batches, and the
/// generation is 0.
#[derive(Clone, Debug)]
pub struct FencingHandle {
    rule: FencingRule,
    pulse: watch::Receiver<LastHeartbeat>,
}

/// The side that the heartbeats update.
#[derive(Debug)]
pub(super) struct FencingSource {
    rule: FencingRule,
    pulse: watch::Sender<LastHeartbeat>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LastHeartbeat {
    sent_at: Option<Monotonic>,
    generation: u64,
}

pub(super) fn channel(ttl: Duration) -> (FencingSource, FencingHandle) {
    let (source, pulse) = watch::channel(LastHeartbeat::default());
    let rule = FencingRule::new(ttl);
    (FencingSource { rule, pulse: source }, FencingHandle { rule, pulse })
}

impl FencingHandle {
    /// Returns the generation. It increases when the node had been declared dead, or was without a
    /// heartbeat for too long.
    pub fn generation(&self) -> u64 {
        self.pulse.borrow().generation
    }

    /// Returns true while the batches that were the node's own by a check in generation `checked`
    /// certainly still are.
    pub fn holds(&self, checked: u64) -> bool {
        let pulse = *self.pulse.borrow();
        pulse.generation == checked && self.rule.vouches(pulse.sent_at, clock::monotonic())
    }

    /// Waits for the next heartbeat. Never returns once the membership has ended.
    pub async fn changed(&mut self) {
        if self.pulse.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until a heartbeat vouches for the node again, and returns the generation to check in.
    /// Never returns once the membership has ended.
    pub async fn regained(&mut self) -> u64 {
        let rule = self.rule;
        let generation = self
            .pulse
            .wait_for(|pulse| rule.vouches(pulse.sent_at, clock::monotonic()))
            .await
            .ok()
            .map(|pulse| pulse.generation);
        match generation {
            Some(generation) => generation,
            None => std::future::pending().await,
        }
    }
}

impl FencingSource {
    /// Records that the heartbeat sent at `sent_at` was answered at `now`. Returns true when a new
    /// generation begins with it.
    pub(super) fn renew(&self, sent_at: Monotonic, is_revived: bool, now: Monotonic) -> bool {
        let mut is_new = false;
        // Both change at once, so no reader combines the new heartbeat with the old generation.
        self.pulse.send_modify(|pulse| {
            let has_lapsed = pulse.sent_at.is_some() && !self.rule.vouches(pulse.sent_at, now);
            is_new = is_revived || has_lapsed;
            *pulse = LastHeartbeat {
                sent_at: Some(sent_at),
                generation: pulse.generation + u64::from(is_new),
            };
        });
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    fn ago(span: Duration) -> Monotonic {
        Monotonic::from_start(clock::monotonic().since_start().saturating_sub(span))
    }

    #[test]
    fn a_node_that_was_declared_dead_is_unfenced_only_after_a_check() {
        let (source, fencing) = channel(TTL);
        assert!(!fencing.holds(0));
        let now = clock::monotonic();
        assert!(!source.renew(now, false, now));
        assert!(fencing.holds(0));
        assert!(source.renew(now, true, now));
        assert!(!fencing.holds(0));
        assert!(fencing.holds(fencing.generation()));
    }

    #[test]
    fn a_pause_that_fences_the_node_begins_a_new_generation() {
        let (source, fencing) = channel(Duration::from_nanos(60));
        let long_ago = ago(Duration::from_secs(1));
        source.renew(long_ago, false, clock::monotonic());
        assert!(source.renew(
            clock::monotonic(),
            false,
            clock::monotonic().plus(Duration::from_millis(1))
        ));
        assert_eq!(fencing.generation(), 1);
    }
}
