//! Logs whether etcd answers.

use std::time::Duration;

use super::client::EtcdError;
use crate::domain::Backoff;
use crate::error_chain::chain;

/// The pauses between attempts, from the first to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Logs once that contact is lost, and once that contact is back.
#[derive(Debug)]
pub(super) struct EtcdContact {
    what: &'static str,
    is_lost: bool,
    backoff: Backoff,
}

impl EtcdContact {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, is_lost: false, backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX) }
    }

    pub(super) fn lost(&mut self, error: &EtcdError) {
        if !self.is_lost {
            self.is_lost = true;
            tracing::warn!(error = %chain(error), "etcd: lost {}; shards keep their \
                owners", self.what);
        }
    }

    pub(super) fn back(&mut self) {
        self.backoff.reset();
        if self.is_lost {
            self.is_lost = false;
            tracing::info!("etcd: {} is restored", self.what);
        }
    }

    /// Returns the pause before the next attempt. It doubles each time until contact is back.
    pub(super) fn pause(&mut self) -> Duration {
        self.backoff.next_pause()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_between_tries_grows_to_a_second() {
        let mut contact = EtcdContact::new("x");
        let pauses: Vec<_> = (0..7)
            .map(|_| {
                contact.lost(&EtcdError::Ended { what: "x" });
                contact.pause().as_millis()
            })
            .collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000, 1000]);
    }
}
