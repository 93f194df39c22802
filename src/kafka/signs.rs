//! Reads signs of life of a producer's connections from librdkafka's statistics.
//!
//! Silence proves nothing. A broker that throttles a client stops reading from the connection while
//! the client is over its quota. An overloaded broker, far away or suspended answers late. A
//! conclusion from silence therefore needs evidence from here: whether there is a connection at
//! all, whether requests wait for an answer, and whether a broker reports a throttle.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;

use crate::domain::Monotonic;

/// The signs from the statistics of one client so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Signs {
    taken_at: Option<Monotonic>,
    /// The time until which a broker's report of throttling is valid.
    throttled_until: Option<Monotonic>,
    /// How long the broker delays requests, from its last report.
    throttle: Duration,
    brokers: HashMap<String, BrokerConnection>,
    /// Some broker has answered no request between the last two looks.
    is_silent: bool,
    /// Some silent broker has let no request time out lately.
    is_stalled: bool,
}

#[derive(Clone, Copy, Debug)]
struct BrokerConnection {
    has_way: bool,
    is_up: bool,
    is_waiting: bool,
    answers: u64,
    timeouts: u64,
    /// When a request was last seen to have had no answer within its whole time
    /// (`socket.timeout.ms`). A broker that lets that happen is not slow any more.
    timed_out_at: Option<Monotonic>,
}

/// The part of the statistics that is read here.
#[derive(Deserialize)]
struct Statistics {
    brokers: HashMap<String, Broker>,
}

#[derive(Deserialize)]
struct Broker {
    source: String,
    state: String,
    /// The number of requests that were sent and are not answered.
    waitresp_cnt: i64,
    /// The number of answers received.
    rx: u64,
    /// The number of requests that had no answer in time.
    req_timeouts: u64,
    throttle: Window,
}

#[derive(Deserialize)]
struct Window {
    /// In milliseconds.
    max: i64,
}

/// The number of looks for which a timeout of a request counts: with the interval of the
/// statistics, over a minute, which is longer than a request (30 s at most) and its repetition.
const TIMED_OUT_LOOKS: u32 = 40;
/// States of a connection that neither exists nor is being made.
const NO_WAY: [&str; 3] = ["INIT", "DOWN", "TRY_CONNECT"];
const UP: [&str; 2] = ["UP", "REAUTH"];
/// The source of a pseudo-broker, in which librdkafka keeps partitions without a leader.
const INTERNAL: &str = "internal";

impl Signs {
    /// Takes in the statistics of `now`, which come each `interval`. Unreadable statistics change
    /// nothing.
    pub(super) fn take_in(&mut self, statistics: &[u8], now: Monotonic, interval: Duration) {
        match serde_json::from_slice(statistics) {
            Ok(statistics) => self.update(statistics, now, interval),
            Err(error) => tracing::debug!(%error, "cannot read the statistics of a Kafka client"),
        }
    }

    fn update(&mut self, mut statistics: Statistics, now: Monotonic, interval: Duration) {
        statistics.brokers.retain(|_, broker| broker.source != INTERNAL);
        let throttle =
            statistics.brokers.values().map(|broker| broker.throttle.max).max().unwrap_or(0);
        if let Ok(millis @ 1..) = u64::try_from(throttle) {
            self.throttle = Duration::from_millis(millis);
            // The report may date from the end of the interval, and the next answer comes after the
            // pause at the earliest.
            self.throttled_until = Some(now.plus(self.throttle).plus(interval * 2));
        }
        let before = std::mem::take(&mut self.brokers);
        let connections = statistics.brokers.into_iter().map(|(name, broker)| {
            let is_up = UP.contains(&broker.state.as_str());
            let is_waiting = is_up && broker.waitresp_cnt > 0;
            let timed_out_at = before.get(&name).and_then(|before| {
                if broker.req_timeouts > before.timeouts { Some(now) } else { before.timed_out_at }
            });
            let connection = BrokerConnection {
                has_way: !NO_WAY.contains(&broker.state.as_str()),
                is_up,
                is_waiting,
                answers: broker.rx,
                timeouts: broker.req_timeouts,
                timed_out_at,
            };
            (name, connection)
        });
        self.brokers = connections.collect();
        // Requests wait now and waited at the last look, and no answer came in between.
        let is_silent = |(name, connection): &(&String, &BrokerConnection)| {
            connection.is_waiting
                && before
                    .get(*name)
                    .is_some_and(|before| before.is_waiting && before.answers == connection.answers)
        };
        let mut silent = self.brokers.iter().filter(is_silent);
        self.is_silent = silent.clone().next().is_some();
        // Answers prove nothing after a timeout: a reconnection is answered, and nothing is stored.
        // A broker that hangs lets the next request time out within this span.
        let span = interval * TIMED_OUT_LOOKS;
        let has_timed_out = |connection: &BrokerConnection| {
            connection.timed_out_at.is_some_and(|at| now.since(at) < span)
        };
        self.is_stalled = silent.any(|(_name, connection)| !has_timed_out(connection));
        // A broker that is silent later is silent for another reason.
        if !self.is_silent && self.throttled_until.is_some_and(|until| until <= now) {
            self.throttled_until = None;
        }
        self.taken_at = Some(now);
    }

    /// Returns for how long a broker delays requests, if one has reported so lately. While requests
    /// of the throttled client wait, the report stays valid.
    pub(super) fn throttle(&self, now: Monotonic) -> Option<Duration> {
        let is_told = self.throttled_until.is_some_and(|until| now < until);
        let waits_on = self.throttled_until.is_some() && self.is_silent;
        (is_told || waits_on).then_some(self.throttle)
    }

    /// Returns true when a broker has not answered some requests since the last statistics but one,
    /// and has let none time out lately.
    pub(super) const fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Returns true when a broker has taken the login of a connection.
    pub(super) fn has_connection(&self) -> bool {
        self.brokers.values().any(|connection| connection.is_up)
    }

    /// Returns true when there is certainly no connection to any broker, and none is being made.
    /// Before the first statistics nothing is certain.
    pub(super) fn has_no_way(&self) -> bool {
        self.taken_at.is_some() && !self.brokers.values().any(|connection| connection.has_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    /// Statistics as librdkafka 2.12 writes them, with members left out.
    fn statistics(state: &str, waiting: i64, answers: u64, throttle_ms: i64) -> String {
        statistics_after(0, (state, waiting, answers, throttle_ms))
    }

    fn statistics_after(
        timeouts: u64,
        (state, waiting, answers, throttle_ms): (&str, i64, u64, i64),
    ) -> String {
        format!(
            r#"{{ "name": "punctual#producer-1", "ts": 5016483227792, "brokers": {{
              "b:9092/1": {{ "name": "b:9092/1",
              "source": "learned", "state": "{state}",
                "waitresp_cnt": {waiting}, "rx": {answers}, "rtt": {{ "max": 9 }},
                "req_timeouts": {timeouts},
                  "throttle": {{ "min": 0, "max": {throttle_ms}, "cnt": 1 }},
                "toppars": {{ "t-0": {{ "topic": "t", "partition": 0 }} }} }},
                ":0/internal": {{ "source": "internal", "state": "UP", "waitresp_cnt": 1, "rx": 0,
                  "req_timeouts": 0, "throttle": {{ "max": 0 }} }} }},
                "topics": {{ "t": {{ "topic": "t", "partitions": {{}} }} }} }}"#
        )
    }

    fn signs(lines: &[(&str, i64, u64, i64)]) -> Signs {
        let mut signs = Signs::default();
        for (turn, (state, waiting, answers, throttle)) in (1..).zip(lines) {
            signs.take_in(
                statistics(state, *waiting, *answers, *throttle).as_bytes(),
                at(turn * 2),
                INTERVAL,
            );
        }
        signs
    }

    #[test]
    fn a_broker_that_throttles_is_known_for_as_long_as_it_said_and_while_it_is_silent() {
        let one = signs(&[("UP", 5, 10, 6_400)]);
        assert_eq!(one.throttle(at(2)), Some(Duration::from_millis(6_400)));
        assert_eq!(
            one.throttle(at(12)),
            Some(Duration::from_millis(6_400)),
            "two intervals beyond that"
        );
        assert_eq!(one.throttle(at(13)), None);
        let silent = signs(&[("UP", 5, 10, 6_400), ("UP", 5, 10, 0)]);
        assert_eq!(
            silent.throttle(at(60)),
            Some(Duration::from_millis(6_400)),
            "it has not answered since"
        );
        let over = signs(&[("UP", 5, 10, 6_400), ("UP", 5, 12, 0)]);
        assert_eq!(over.throttle(at(60)), None);
        assert_eq!(signs(&[("UP", 5, 10, 0)]).throttle(at(2)), None);
    }

    #[test]
    fn requests_without_any_answer_between_two_looks_are_a_stall() {
        assert!(!signs(&[("UP", 1, 10, 0)]).is_stalled(), "it was sent a moment ago");
        assert!(signs(&[("UP", 1, 10, 0), ("UP", 3, 10, 0)]).is_stalled());
        assert!(!signs(&[("UP", 1, 10, 0), ("UP", 3, 11, 0)]).is_stalled(), "it answers");
        assert!(!signs(&[("UP", 0, 10, 0), ("UP", 3, 10, 0)]).is_stalled(), "nothing was asked");
        assert!(!signs(&[("UP", 1, 10, 0), ("DOWN", 1, 10, 0)]).is_stalled(), "that is not slow");
    }

    /// A hung log directory: connections and small questions are answered, and nothing is stored.
    #[test]
    fn a_broker_that_lets_requests_time_out_is_not_slow_for_a_while() {
        let mut signs = Signs::default();
        let mut look = |turn: u64, timeouts: u64, waiting: i64, answers: u64| {
            let text = statistics_after(timeouts, ("UP", waiting, answers, 0));
            signs.take_in(text.as_bytes(), at(turn * 2), INTERVAL);
            signs.is_stalled()
        };
        assert_eq!([look(1, 0, 3, 10), look(2, 0, 3, 10)], [false, true], "slow");
        assert!(!look(3, 3, 3, 11), "the requests have timed out; a reconnection was answered");
        assert_eq!([look(4, 3, 3, 11), look(9, 3, 3, 11)], [false, false], "it still hangs");
        assert!(!look(18, 3, 0, 12), "the requests wait to be sent again");
        assert_eq!([look(19, 3, 3, 12), look(20, 3, 3, 12)], [false, false], "it still hangs");
        assert!(!look(43, 3, 2, 90), "it has answered for long, and requests always wait");
        assert_eq!([look(44, 3, 2, 90), look(45, 3, 2, 91)], [true, false], "slow, for a look");
    }

    /// The quota of a client holds back requests beyond their time, too.
    #[test]
    fn a_broker_that_throttles_is_throttling_although_requests_time_out_and_not_for_ever() {
        let mut signs = Signs::default();
        let mut look = |seconds: u64, timeouts: u64, waiting: i64, throttle: i64| {
            let text = statistics_after(timeouts, ("UP", waiting, 10, throttle));
            signs.take_in(text.as_bytes(), at(seconds), INTERVAL);
            signs.throttle(at(seconds)).is_some()
        };
        assert!(look(2, 0, 5, 6_400));
        assert!(look(4, 0, 5, 0) && look(60, 5, 5, 0), "it has not answered since");
        assert!(!look(62, 5, 0, 0), "it has answered");
        assert!(!look(3_602, 5, 3, 0) && !look(3_604, 5, 3, 0), "silent for another reason");
    }

    #[test]
    fn only_a_client_without_any_connection_has_no_way() {
        assert!(!Signs::default().has_no_way(), "nothing is known");
        assert!(signs(&[("DOWN", 0, 0, 0)]).has_no_way());
        assert!(signs(&[("INIT", 0, 0, 0)]).has_no_way());
        for state in ["CONNECT", "SSL_HANDSHAKE", "AUTH_REQ", "APIVERSION_QUERY", "UP"] {
            assert!(!signs(&[(state, 0, 0, 0)]).has_no_way(), "{state}");
        }
        let mut forgot_all = signs(&[("UP", 0, 5, 0)]);
        forgot_all.take_in(br#"{ "brokers": {} }"#, at(9), INTERVAL);
        assert!(forgot_all.has_no_way());
    }

    #[test]
    fn what_cannot_be_read_changes_nothing() {
        let mut signs = signs(&[("UP", 5, 10, 6_400)]);
        signs.take_in(b"{", at(4), INTERVAL);
        assert!(signs.throttle(at(4)).is_some() && !signs.has_no_way());
    }
}
