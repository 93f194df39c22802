//! Limits the requests of a callback that are in flight, and those of a second.
//!
//! A failing service gets fewer requests. A failure halves the limit of requests in flight, once a
//! second at most, and each success raises it a little. At a limit of one, the pause between
//! requests grows with each failure.

use std::time::Duration;

use az::SaturatingAs as _;

use crate::domain::Monotonic;

/// Requests that were in flight together often fail together, and count as one failure.
const HALVE_EVERY: Duration = Duration::from_secs(1);
/// Limits of the pause between requests to a failing service.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The limits of one callback at one node.
#[derive(Debug)]
pub(super) struct Limiter {
    /// The limit of requests in flight: from 1 to `limit_max`.
    limit: f64,
    limit_max: f64,
    /// The setting that `limit_max` comes from.
    concurrency: u16,
    /// Minimum time between two requests.
    interval: Duration,
    halved_at: Option<Monotonic>,
    pause: Duration,
    next_at: Monotonic,
}

impl Limiter {
    pub fn new(now: Monotonic) -> Self {
        Self {
            limit: 1.0,
            limit_max: 1.0,
            concurrency: 0,
            interval: Duration::ZERO,
            halved_at: None,
            pause: Duration::ZERO,
            next_at: now,
        }
    }

    /// Sets the limits of this node: a part of those of the cluster.
    pub fn configure(&mut self, concurrency: u16, max_per_second: Option<u16>, node_count: usize) {
        let nodes = f64::from(node_count.max(1).saturating_as::<u32>());
        let limit_max = (f64::from(concurrency) / nodes).ceil().max(1.0);
        self.limit_max = limit_max;
        if concurrency == self.concurrency {
            self.limit = self.limit.min(limit_max);
        } else {
            // A new setting of an operator applies at once.
            (self.concurrency, self.limit) = (concurrency, limit_max);
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
        let allowed = self.limit.saturating_as::<usize>();
        let free = allowed.saturating_sub(in_flight);
        // Popped tasks wait here for their requests, so they are popped for one second at most.
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

    /// Takes a place for a request, and returns when to make it.
    pub fn reserve(&mut self, now: Monotonic) -> Monotonic {
        let at = self.next_at.max(now);
        if !self.interval.is_zero() {
            self.next_at = at.plus(self.interval);
        }
        at
    }

    /// Notes a success.
    pub fn succeeded(&mut self) {
        self.pause = Duration::ZERO;
        self.limit = (self.limit + self.limit.recip()).min(self.limit_max);
    }

    /// Notes a failure of the service, or a slow answer.
    pub fn failed(&mut self, now: Monotonic) {
        let is_first = self.halved_at.is_none_or(|at| now.since(at) >= HALVE_EVERY);
        if is_first {
            self.halved_at = Some(now);
        }
        if self.limit > 1.0 {
            let limit = if is_first { self.limit / 2.0 } else { self.limit };
            self.limit = limit.max(1.0);
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
    fn trouble_halves_the_requests_limit_and_answers_bring_them_back() {
        let mut limiter = Limiter::new(at(0));
        limiter.configure(80, None, 2);
        assert_eq!(limiter.free(0, at(0)), 40, "the share of one of two nodes");
        for millis in [1000, 1001, 1999] {
            limiter.failed(at(millis));
        }
        assert_eq!(limiter.free(0, at(2000)), 20, "once a second");
        (2..10).for_each(|second| limiter.failed(at(second * 1000)));
        assert!(limiter.next_at() > at(9000), "one at a time, and with pauses");
        assert_eq!(limiter.free(0, at(9000)), 0);
        assert_eq!(limiter.free(0, at(20_000)), 1);
        assert_eq!(limiter.free(1, at(20_000)), 0);
        (0..2000).for_each(|_answer| limiter.succeeded());
        assert_eq!(limiter.free(0, at(20_000)), 40);
    }

    #[test]
    fn a_change_of_the_nodes_keeps_a_lowered_limit() {
        let mut limiter = Limiter::new(at(0));
        limiter.configure(80, None, 2);
        (1..5).for_each(|second| limiter.failed(at(second * 1000)));
        let before = limiter.free(0, at(5000));
        limiter.configure(80, None, 1);
        assert_eq!(limiter.free(0, at(5000)), before);
        limiter.configure(90, None, 1);
        assert_eq!(limiter.free(0, at(5000)), 90);
    }

    #[test]
    fn a_limit_of_a_second_spreads_requests() {
        let mut limiter = Limiter::new(at(0));
        limiter.configure(50, Some(10), 2);
        assert_eq!(limiter.free(0, at(0)), 5);
        let starts: Vec<Monotonic> = (0..3).map(|_request| limiter.reserve(at(0))).collect();
        assert_eq!(starts, [at(0), at(200), at(400)]);
        assert_eq!(limiter.free(3, at(100)), 0, "the next one is later");
        assert_eq!(limiter.free(3, at(700)), 5);
    }

    #[test]
    fn the_pause_between_requests_to_a_failing_service_is_limited() {
        let mut limiter = Limiter::new(at(0));
        limiter.configure(1, None, 1);
        (1..100).for_each(|second| limiter.failed(at(second * 1000)));
        assert_eq!(limiter.next_at(), at(99_000).plus(PAUSE_MAX));
        limiter.succeeded();
        for millis in [200_000, 200_050, 200_100] {
            limiter.failed(at(millis));
            assert_eq!(limiter.next_at(), at(millis).plus(PAUSE_MIN), "each of them has its pause");
        }
    }
}
