//! The number of requests of a callback that wait for an answer at the same time, and the number in
//! a second.
//!
//! A service in trouble gets fewer requests: each sign of trouble halves the number at a time, once
//! a second at most, and each answer adds a little to it again. At one at a time, a pause grows
//! between requests.

use std::time::Duration;

use az::SaturatingAs as _;

use crate::domain::Monotonic;

/// Answers of requests that were under way together are one sign of trouble.
const HALVE_EVERY: Duration = Duration::from_secs(1);
/// The pauses between requests to a service that answers none.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The pace of one callback at one node.
#[derive(Debug)]
pub(super) struct Pace {
    /// At most `most`, at least 1.
    at_a_time: f64,
    most: f64,
    concurrency: u16,
    /// The time between two requests. Zero: any.
    interval: Duration,
    halved_at: Option<Monotonic>,
    pause: Duration,
    next_at: Monotonic,
}

impl Pace {
    pub fn new(now: Monotonic) -> Self {
        Self {
            at_a_time: 1.0,
            most: 1.0,
            concurrency: 0,
            interval: Duration::ZERO,
            halved_at: None,
            pause: Duration::ZERO,
            next_at: now,
        }
    }

    /// Sets the limits of this node: a part of those of the cluster.
    pub fn limit(&mut self, concurrency: u16, max_per_second: Option<u16>, node_count: usize) {
        let nodes = f64::from(node_count.max(1).saturating_as::<u32>());
        let most = (f64::from(concurrency) / nodes).ceil().max(1.0);
        self.most = most;
        if concurrency == self.concurrency {
            self.at_a_time = self.at_a_time.min(most);
        } else {
            // What an operator sets is tried at once: trouble halves it.
            (self.concurrency, self.at_a_time) = (concurrency, most);
        }
        let per_second = max_per_second.map(|count| f64::from(count) / nodes);
        self.interval = per_second
            .map_or(Duration::ZERO, |count| Duration::from_secs_f64(count.max(0.01).recip()));
    }

    /// Returns how many more requests may be made now.
    pub fn free(&self, in_flight: usize, now: Monotonic) -> usize {
        if now < self.next_at {
            return 0;
        }
        let allowed = self.at_a_time.saturating_as::<usize>();
        let free = allowed.saturating_sub(in_flight);
        // Tasks are popped for a second at most, because they wait here meanwhile.
        match self.interval {
            Duration::ZERO => free,
            interval => {
                let of_a_second = interval.as_secs_f64().recip().saturating_as::<usize>();
                free.min(of_a_second.max(1))
            }
        }
    }

    /// Returns when requests may be made again.
    pub fn next_at(&self) -> Monotonic {
        self.next_at
    }

    /// Returns when to make the next request.
    pub fn take(&mut self, now: Monotonic) -> Monotonic {
        let at = self.next_at.max(now);
        if !self.interval.is_zero() {
            self.next_at = at.plus(self.interval);
        }
        at
    }

    /// The service has answered in time.
    pub fn goes_well(&mut self) {
        self.pause = Duration::ZERO;
        self.at_a_time = (self.at_a_time + self.at_a_time.recip()).min(self.most);
    }

    /// The service has failed, asked for less, or taken too long.
    pub fn is_in_trouble(&mut self, now: Monotonic) {
        let is_first = self.halved_at.is_none_or(|at| now.since(at) >= HALVE_EVERY);
        if is_first {
            self.halved_at = Some(now);
        }
        if self.at_a_time > 1.0 {
            let at_a_time = if is_first { self.at_a_time / 2.0 } else { self.at_a_time };
            self.at_a_time = at_a_time.max(1.0);
            return;
        }
        if is_first || self.pause.is_zero() {
            self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        }
        self.next_at = self.next_at.max(now.plus(self.pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn trouble_halves_the_requests_at_a_time_and_answers_bring_them_back() {
        let mut pace = Pace::new(at(0));
        pace.limit(80, None, 2);
        assert_eq!(pace.free(0, at(0)), 40, "the share of one of two nodes");
        for millis in [1000, 1001, 1999] {
            pace.is_in_trouble(at(millis));
        }
        assert_eq!(pace.free(0, at(2000)), 20, "once a second");
        (2..10).for_each(|second| pace.is_in_trouble(at(second * 1000)));
        assert!(pace.next_at() > at(9000), "one at a time, and with pauses");
        assert_eq!(pace.free(0, at(9000)), 0);
        assert_eq!(pace.free(0, at(20_000)), 1);
        assert_eq!(pace.free(1, at(20_000)), 0);
        (0..2000).for_each(|_answer| pace.goes_well());
        assert_eq!(pace.free(0, at(20_000)), 40);
    }

    #[test]
    fn another_number_of_nodes_does_not_end_the_care() {
        let mut pace = Pace::new(at(0));
        pace.limit(80, None, 2);
        (1..5).for_each(|second| pace.is_in_trouble(at(second * 1000)));
        let before = pace.free(0, at(5000));
        pace.limit(80, None, 1);
        assert_eq!(pace.free(0, at(5000)), before);
        pace.limit(90, None, 1);
        assert_eq!(pace.free(0, at(5000)), 90);
    }

    #[test]
    fn a_limit_of_a_second_spreads_requests() {
        let mut pace = Pace::new(at(0));
        pace.limit(50, Some(10), 2);
        assert_eq!(pace.free(0, at(0)), 5);
        let starts: Vec<Monotonic> = (0..3).map(|_request| pace.take(at(0))).collect();
        assert_eq!(starts, [at(0), at(200), at(400)]);
        assert_eq!(pace.free(3, at(100)), 0, "the next one is later");
        assert_eq!(pace.free(3, at(700)), 5);
    }

    #[test]
    fn the_pause_between_requests_to_a_dead_service_is_limited() {
        let mut pace = Pace::new(at(0));
        pace.limit(1, None, 1);
        (1..100).for_each(|second| pace.is_in_trouble(at(second * 1000)));
        assert_eq!(pace.next_at(), at(99_000).plus(PAUSE_MAX));
        pace.goes_well();
        for millis in [200_000, 200_050, 200_100] {
            pace.is_in_trouble(at(millis));
            assert_eq!(pace.next_at(), at(millis).plus(PAUSE_MIN), "each of them has its pause");
        }
    }
}
