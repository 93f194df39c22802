//! The callbacks of librdkafka: delivery reports, errors, and its log.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message, Timestamp as RecordTime};
use rdkafka::producer::ProducerContext;

use super::signs::Signs;
use super::{DeliveryOutcome, DeliveryReport, KafkaContact, KafkaMetrics, Mode, Reason};
use crate::clock;
use crate::domain::text::escaped;
use crate::domain::{Monotonic, Receipt, Throttle, Timestamp};
use crate::telemetry::traces::Publications;

/// The functions called by a producer. Both run on the polling thread, for each record, and must
/// neither block nor panic.
pub struct Hooks {
    /// `None` without tracing.
    pub publications: Option<Publications>,
    pub on_report: Box<dyn Fn(DeliveryReport) + Send + Sync>,
    /// Returns the cluster's time when an acknowledgement arrives.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Hooks {
    pub fn new(
        on_report: impl Fn(DeliveryReport) + Send + Sync + 'static,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Self {
        Self { publications: None, on_report: Box::new(on_report), now: Box::new(now) }
    }

    /// Adds spans of the records.
    #[must_use]
    pub fn with_spans(self, publications: Option<Publications>) -> Self {
        Self { publications, ..self }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}

pub(super) struct Context {
    pub(super) hooks: Hooks,
    pub(super) mode: Mode,
    pub(super) contact: KafkaContact,
    pub(super) metrics: KafkaMetrics,
    pub(super) log_throttles: Mutex<LogThrottles>,
    pub(super) observed: Arc<ProducerSigns>,
    /// The interval between two statistics.
    pub(super) interval: Duration,
}

/// The observations of a producer's callbacks.
#[derive(Debug, Default)]
pub(super) struct ProducerSigns {
    /// Set when librdkafka has lost track of a partition for good.
    pub(super) is_stuck: AtomicBool,
    pub(super) signs: Mutex<Signs>,
}

/// Returns true for the log line about a partition without a leader in an answer with updates of
/// single partitions. After such an answer, librdkafka (2.12 to 2.14 at least) never learns of the
/// next leader, and lets all records to the partition time out (its issue 5430). The log is the
/// only sign.
pub(super) fn tells_of_a_lost_leader(facility: &str, line: &str) -> bool {
    facility == "METADATAUPDATE" && line.contains("not found in cache")
}

impl Context {
    fn outcome(&self, delivery: &DeliveryResult<'_>) -> DeliveryOutcome {
        match delivery {
            Ok(message) => {
                self.contact.acknowledged();
                let published_at = match message.timestamp() {
                    RecordTime::LogAppendTime(millis) if millis >= 0 => {
                        Timestamp::from_millis(millis)
                    }
                    _ => (self.hooks.now)(),
                };
                DeliveryOutcome::of_success(Receipt {
                    partition: message.partition(),
                    offset: message.offset(),
                    published_at,
                })
            }
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
                DeliveryOutcome::of_report(code, self.mode, message.partition())
            }
        }
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, delivery: &DeliveryResult<'_>, correlation_id: usize) {
        let outcome = self.outcome(delivery);
        self.metrics.outcomes.count(&outcome);
        if let Some(publications) = &self.hooks.publications {
            end_span(publications, correlation_id, &outcome);
        }
        (self.hooks.on_report)(DeliveryReport { correlation_id, outcome });
    }
}

/// Ends the span of a record, if it has one.
fn end_span(publications: &Publications, correlation_id: usize, outcome: &DeliveryOutcome) {
    match outcome {
        DeliveryOutcome::Acknowledged(receipt) => {
            publications.end(correlation_id, Ok((receipt.partition, receipt.offset)));
        }
        DeliveryOutcome::Failed(failed) => {
            publications.end(correlation_id, Err(&failed.reason));
        }
    }
}

/// How librdkafka begins an error about a login without a token.
const NO_TOKEN: &str = "Failed to acquire SASL OAUTHBEARER token: ";
/// The facilities of librdkafka's log lines about tokens: the second one serves logins by
/// assertion.
const TOKEN_FACILITIES: [&str; 2] = ["OIDC", "JWT"];
/// The length at which the answer of a server of tokens is cut. It may be a page.
const TOKEN_REASON_CHARS_MAX: usize = 300;

/// The reason why a client has no token for its login.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TokenTrouble<'a>(&'a str);

impl TokenTrouble<'_> {
    /// Returns the reason on one line, cut to a readable length.
    pub(super) fn text(self) -> String {
        let cut: String = without_query(self.0).chars().take(TOKEN_REASON_CHARS_MAX).collect();
        escaped(&cut).into_owned()
    }
}

/// Reads a log line. librdkafka reports an error only when its text has changed, but logs each
/// failure.
pub(super) fn token_trouble_of_log<'a>(facility: &str, line: &'a str) -> Option<TokenTrouble<'a>> {
    // The name of the thread comes first.
    let text = line.split_once("]: ").map_or(line, |(_, text)| text);
    TOKEN_FACILITIES.contains(&facility).then_some(TokenTrouble(text))
}

/// Returns the reason without the query of the server's address. The value of a property is never
/// shown, because it may have a secret.
fn without_query(reason: &str) -> Cow<'_, str> {
    let shortened = reason.split_once(" from \"").and_then(|(before, rest)| {
        let (address, after) = rest.split_once('"')?;
        let (place, _query) = address.split_once('?')?;
        Some(format!("{before} from \"{place}?..\"{after}"))
    });
    shortened.map_or(reason.into(), Cow::Owned)
}

/// Reads an error. A server may give an answer that is no token, which is not logged.
pub(super) fn token_trouble_of_error<'a>(
    error: &KafkaError,
    reason: &'a str,
) -> Option<TokenTrouble<'a>> {
    let is_login = error.rdkafka_error_code() == Some(RDKafkaErrorCode::Authentication);
    reason.strip_prefix(NO_TOKEN).filter(|_| is_login).map(TokenTrouble)
}

/// Returns a line of librdkafka as the log may have it: one line, without the query of a token's
/// URL, which may have a secret.
pub(super) fn shown_line<'a>(facility: &str, line: &'a str) -> Cow<'a, str> {
    let trouble = token_trouble_of_log(facility, line);
    trouble.map_or_else(|| escaped(line), |trouble| trouble.text().into())
}

/// The same for the reason of an error.
pub(super) fn shown_reason<'a>(error: &KafkaError, reason: &'a str) -> Cow<'a, str> {
    let trouble = token_trouble_of_error(error, reason);
    trouble.map_or_else(|| escaped(reason), |trouble| trouble.text().into())
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        if let Some(trouble) = token_trouble_of_log(facility, line) {
            return self.contact.note_token_failure(&trouble.text(), clock::monotonic());
        }
        // A broker must not be able to write lines of its own into the log.
        let line = &escaped(line);
        if tells_of_a_lost_leader(facility, line) {
            self.observed.is_stuck.store(true, Ordering::Relaxed);
        }
        // librdkafka's notices and infos correspond to the debug level elsewhere.
        let is_trouble = matches!(
            level,
            RDKafkaLogLevel::Emerg
                | RDKafkaLogLevel::Alert
                | RDKafkaLogLevel::Critical
                | RDKafkaLogLevel::Error
                | RDKafkaLogLevel::Warning
        );
        // While no broker answers, the log says so already. librdkafka repeats its reasons at each
        // attempt to connect.
        let is_told = is_trouble && !self.contact.is_lost();
        let mut throttles = self.log_throttles.lock();
        // A line that is not logged must not use up the turn of another one.
        match is_told.then(|| throttles.allow(facility, clock::monotonic())).flatten() {
            Some(unsaid) => tracing::warn!(target: "librdkafka", facility, unsaid, "{line}"),
            None => tracing::debug!(target: "librdkafka", facility, "{line}"),
        }
    }

    /// librdkafka calls this twice for each error. Its effects can be repeated.
    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(trouble) = token_trouble_of_error(&error, reason) {
            self.contact.note_token_failure(&trouble.text(), clock::monotonic());
            return self.contact.mark_in_doubt(None);
        }
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::Fatal) => {
                let mut throttles = self.log_throttles.lock();
                if throttles.allow("fatal", clock::monotonic()).is_some() {
                    tracing::error!(
                        target: "librdkafka", reason,
                        "the producer has failed and must be replaced"
                    );
                }
            }
            Some(code) => {
                tracing::debug!(target: "librdkafka", reason, "{}", Reason::new(code));
                if code == RDKafkaErrorCode::Authentication {
                    self.contact.note_refused_login(clock::monotonic());
                }
                // "All brokers are down" says less than the errors before it.
                let trouble = (code != RDKafkaErrorCode::AllBrokersDown).then_some(reason);
                self.contact.mark_in_doubt(trouble);
            }
            None => tracing::debug!(target: "librdkafka", reason, "{error}"),
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        let mut signs = self.observed.signs.lock();
        signs.take_in(statistics, clock::monotonic(), self.interval);
        if signs.has_connection() {
            self.contact.note_connection(clock::monotonic());
        }
    }
}

/// The callbacks of a client beside the producers, which tell the same trouble. Its lines are for
/// debugging.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuietContext;

impl ClientContext for QuietContext {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, line: &str) {
        tracing::debug!(target: "librdkafka", facility, "{}", shown_line(facility, line));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = shown_reason(&error, reason);
        tracing::debug!(target: "librdkafka", %reason, "{error}");
    }
}

impl ConsumerContext for QuietContext {}

/// Throttles log lines: one line of each kind per minute.
#[derive(Debug, Default)]
pub(super) struct LogThrottles {
    /// Each kind has its throttle, and the number of lines that were held back.
    kinds: HashMap<String, (Throttle, u64)>,
}

const SAID_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// librdkafka has some dozens of facilities.
const KINDS_MAX: usize = 256;

impl LogThrottles {
    /// Returns how many lines of a `kind` were held back since the last one. Returns `None` when
    /// this line is held back, too.
    fn allow(&mut self, kind: &str, now: Monotonic) -> Option<u64> {
        if !self.kinds.contains_key(kind) && self.kinds.len() >= KINDS_MAX {
            return None;
        }
        let (throttle, unsaid) = self
            .kinds
            .entry(kind.to_owned())
            .or_insert_with(|| (Throttle::new(SAID_AGAIN_AFTER), 0));
        if throttle.lets_through(now) {
            Some(std::mem::take(unsaid))
        } else {
            *unsaid = unsaid.saturating_add(1);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_token_is_known_by_its_line_and_by_its_error() {
        let line =
            "[thrd:background]: Failed to retrieve OIDC token from \"http://a/b\": x\ny (-1)";
        let trouble = token_trouble_of_log("OIDC", line).unwrap();
        let wanted = "Failed to retrieve OIDC token from \"http://a/b\": x\\ny (-1)";
        assert_eq!(trouble.text(), wanted);
        assert_eq!(token_trouble_of_log("FAIL", line), None);
        assert_eq!(shown_line("FAIL", "a\nb"), "a\\nb");
        assert_eq!(
            shown_line("OIDC", "[thrd:x]: y from \"https://a?c=s3cret\": z"),
            "y from \"https://a?..\": z"
        );
        let line =
            "[thrd:background]: Failed to retrieve JWT token from \"https://a/b?c=s3cret\": d?";
        let trouble = token_trouble_of_log("JWT", line).unwrap();
        assert_eq!(trouble.text(), "Failed to retrieve JWT token from \"https://a/b?..\": d?");
        let error = KafkaError::Global(RDKafkaErrorCode::Authentication);
        let page = format!("{NO_TOKEN}{}", "x".repeat(10_000));
        let trouble = token_trouble_of_error(&error, &page).unwrap();
        assert_eq!(trouble.text(), "x".repeat(TOKEN_REASON_CHARS_MAX));
        assert_eq!(token_trouble_of_error(&error, "SASL authentication error: x"), None);
        let other = KafkaError::Global(RDKafkaErrorCode::Resolve);
        assert_eq!(token_trouble_of_error(&other, &page), None);
    }

    #[test]
    fn the_line_about_a_lost_leader_is_known() {
        let line = "[thrd:main]: Partition orders(IuZS63c/Q0OuoFWS6avLHw)[1]: new leader-1 not \
                    found in cache";
        assert!(tells_of_a_lost_leader("METADATAUPDATE", line));
        assert!(!tells_of_a_lost_leader("FAIL", line));
    }

    #[test]
    fn one_line_of_a_kind_is_said_per_minute_and_tells_how_many_were_not() {
        let mut throttles = LogThrottles::default();
        let at = |seconds| Monotonic::from_start(Duration::from_secs(seconds));
        assert_eq!(throttles.allow("FAIL", at(0)), Some(0));
        assert_eq!(throttles.allow("FAIL", at(1)), None);
        assert_eq!(throttles.allow("REQTMOUT", at(1)), Some(0));
        assert_eq!(throttles.allow("FAIL", at(59)), None);
        assert_eq!(throttles.allow("FAIL", at(60)), Some(2));
    }
}
