//! The settings for Kafka: properties that the operator may set, and properties that are fixed
//! because a promise rests on them.

mod sasl;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::producer::BaseProducer;
use rdkafka::types::RDKafkaConfRes;

/// Whether a producer puts several records into one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Together,
    /// Each record gets a batch of its own, so that a refusal concerns exactly this record. This
    /// mode is slow, and serves only records whose batch was refused.
    Alone,
}

/// The settings for Kafka. Values of properties are never printed, because any of them may be a
/// secret.
#[derive(Clone)]
pub struct KafkaSettings {
    /// `host:port`, comma-separated.
    pub bootstrap: String,
    /// librdkafka's properties, as the operator gave them. The last one of a name counts.
    pub properties: KafkaProperties,
    pub client_id: String,
    /// Number of producers of a publisher. Each topic uses one of them.
    pub producers: NonZeroUsize,
    /// How long a record waits for other records of its batch. librdkafka rounds up to whole
    /// milliseconds. docs/reference/settings.md has what each value costs.
    pub linger: Duration,
    /// The maximum time from the send to the report, while Kafka is not slow. A record that waits
    /// for longer is taken back.
    pub publish_deadline: Duration,
    /// Limits of a producer's queue, for all topics together. A caller's own limits should lie
    /// below them, so that a full queue is rare. A queue always has room for one record of any
    /// size: otherwise a record that never fits would be retried forever, before all others.
    pub records_in_flight_max: usize,
    pub bytes_in_flight_max: usize,
}

/// The operator's properties. Clones share them. They may be replaced: clients that are made
/// afterwards have the new ones.
#[derive(Clone, Default)]
pub struct KafkaProperties(Arc<RwLock<GivenProperties>>);

#[derive(Default)]
struct GivenProperties {
    pairs: Arc<[(String, String)]>,
    version: u64,
}

impl From<Vec<(String, String)>> for KafkaProperties {
    fn from(pairs: Vec<(String, String)>) -> Self {
        Self(Arc::new(RwLock::new(GivenProperties { pairs: pairs.into(), version: 0 })))
    }
}

/// Values are never printed.
impl fmt::Debug for KafkaProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.pairs().iter().map(|(name, _)| name)).finish()
    }
}

impl KafkaProperties {
    pub fn pairs(&self) -> Arc<[(String, String)]> {
        Arc::clone(&self.0.read().pairs)
    }

    /// Returns a number that changes with the properties.
    pub fn version(&self) -> u64 {
        self.0.read().version
    }

    pub fn replace(&self, pairs: Vec<(String, String)>) {
        let mut given = self.0.write();
        given.pairs = pairs.into();
        given.version += 1;
    }
}

/// The maximum that librdkafka can frame. The limits of the broker and the topic decide, not the
/// client's.
const RECORD_BYTES_MAX: usize = 1_000_000_000;
/// librdkafka itself keeps a record for this multiple of the publish deadline. A sent record must
/// not end before the answer: the node would send the record again although the first may still be
/// written. The node's own deadline therefore decides, which takes back waiting records while Kafka
/// answers others (docs/decisions/0024). This multiple is the last resort, for a sent record whose
/// broker throttles or hangs without end.
const GIVE_UP_FACTOR: u32 = 20;
const GIVE_UP_MIN: Duration = Duration::from_secs(60);
const GIVE_UP_MAX: Duration = Duration::from_secs(3600);
/// Statistics are read this many times within a publish deadline, within the limits below.
const STATISTICS_FACTOR: u32 = 16;
const STATISTICS_MIN: Duration = Duration::from_millis(250);
const STATISTICS_MAX: Duration = Duration::from_secs(2);
/// A request without an answer for the publish deadline, within these limits, costs its connection.
/// All records under way are then sent again, which counts against a quota once more. While a
/// broker throttles, up to five full requests wait for each other. With 10 s instead of 30 s, a
/// small topic beside a large one was late by up to 58 s instead of 16 s (20 kB/s, one run each).
const ANSWER_DEADLINE_MIN: Duration = Duration::from_secs(1);
const ANSWER_DEADLINE_MAX: Duration = Duration::from_secs(30);
/// How long a broker waits for its replicas before it reports that they were too slow.
const REPLICAS_DEADLINE_MAX: Duration = Duration::from_secs(5);

/// Pairs of names with the same meaning. A property given by its other name must replace the
/// default, not stand beside it.
const ALIASES: [(&str, &str); 10] = [
    ("sasl.mechanism", "sasl.mechanisms"),
    ("metadata.broker.list", "bootstrap.servers"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("message.send.max.retries", "retries"),
    ("request.required.acks", "acks"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("compression.type", "compression.codec"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id"),
    ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret"),
];

const GAPLESS: &str = "enable.gapless.guarantee";
/// Properties on which a promise rests, with the values that keep the promise. The first value is
/// set.
const PROMISED: [(&str, &[&str], &str); 5] = [
    (
        "enable.idempotence",
        &["true"],
        "without it, a retry of the client duplicates and reorders records",
    ),
    (
        "acks",
        &["all", "-1"],
        "an acknowledgement must mean that all in-sync replicas have the record",
    ),
    (
        "allow.auto.create.topics",
        &["false"],
        "looking up a topic that does not exist would create it",
    ),
    ("delivery.report.only.error", &["false"], "a task is settled by its acknowledgement"),
    (GAPLESS, &["false"], "one refused record would end the whole producer"),
];

/// Single values that would break a promise. librdkafka's defaults are fine.
const FORBIDDEN: [(&str, &str, &str); 1] =
    [("partitioner", "random", "records of one key would lose their order")];

/// Properties that have a setting of their own, or no place here.
const REFUSED: [(&str, &str); 14] = [
    ("linger.ms", "use --linger"),
    ("bootstrap.servers", "use --kafka"),
    ("message.timeout.ms", "use --publish-deadline"),
    ("transactional.id", "Punctual does not use transactions"),
    ("queue.buffering.max.messages", "use --in-flight-tasks"),
    ("queue.buffering.max.kbytes", "use --in-flight-bytes"),
    ("message.max.bytes", "the limit is max.message.bytes of each topic, checked at submit"),
    // In a client that only asks, the statistics would pile up in an unlimited queue.
    ("statistics.interval.ms", "the node needs an interval of its own"),
    // Whoever may write the file of properties must not be able to run code as the node.
    ("plugin.library.paths", RUNS_CODE),
    ("ssl.engine.location", RUNS_CODE),
    ("ssl.providers", RUNS_CODE),
    ("sasl.kerberos.kinit.cmd", RUNS_CODE),
    ("debug", "librdkafka's debug log shows passwords; use --log for the node's log"),
    ("enable.sasl.oauthbearer.unsecure.jwt", "anybody can make a token that is not signed"),
];
const RUNS_CODE: &str = "it makes the client load or run other code";

impl KafkaSettings {
    /// Returns how long librdkafka keeps a record before it gives up.
    pub fn give_up_after(&self) -> Duration {
        (self.publish_deadline * GIVE_UP_FACTOR).clamp(GIVE_UP_MIN, GIVE_UP_MAX)
    }

    pub(super) fn statistics_interval(&self) -> Duration {
        (self.publish_deadline / STATISTICS_FACTOR).clamp(STATISTICS_MIN, STATISTICS_MAX)
    }

    pub(super) fn producer_config(&self, mode: Mode) -> ClientConfig {
        let mut config = self.client_config();
        config.set("statistics.interval.ms", self.statistics_interval().as_millis().to_string());
        if mode == Mode::Alone {
            // These follow the operator's properties: this producer exists to send each record
            // alone.
            config.set("batch.num.messages", "1").set("linger.ms", "0");
        }
        // librdkafka warns of an experimental property as soon as it is named, and false is its
        // default.
        for (name, values, _) in PROMISED.into_iter().filter(|(name, ..)| *name != GAPLESS) {
            config.set(name, values[0]);
        }
        config
    }

    /// Returns the configuration of a client that looks up topics. Such a client never
    /// produces, and needs no producer id.
    ///
    /// `patience` is the maximum time of one answer. The client asks the least busy broker, even
    /// one that hangs, until the connection to it is given up.
    pub(super) fn admin_config(&self, patience: Duration) -> ClientConfig {
        let mut config = self.client_config();
        config.set("enable.idempotence", "false").set("allow.auto.create.topics", "false");
        config.set("socket.timeout.ms", (patience * 2).as_millis().to_string());
        // rdkafka's admin client never drains its log queue: a line per second would pile up in it
        // while Kafka is away.
        config.remove("debug").set_log_level(RDKafkaLogLevel::Emerg);
        config
    }

    /// Returns the configuration of a client that reads: the settings for all kinds of clients, and
    /// the operator's properties.
    pub(super) fn consumer_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set_log_level(RDKafkaLogLevel::Error)
            .set("bootstrap.servers", &self.bootstrap)
            .set("client.id", &self.client_id)
            .set("reconnect.backoff.max.ms", "1000")
            .set("socket.keepalive.enable", "true")
            .set("allow.auto.create.topics", "false");
        for (name, value) in self.properties.pairs().iter() {
            config.set(canonical(name), value);
        }
        config
    }

    /// Returns the operator's value of a property, by its canonical name.
    pub(super) fn property(&self, name: &str) -> Option<String> {
        value_of(&self.properties.pairs(), name).map(str::to_owned)
    }

    fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        let answer_deadline = self.publish_deadline.clamp(ANSWER_DEADLINE_MIN, ANSWER_DEADLINE_MAX);
        config.set_log_level(RDKafkaLogLevel::Info);
        config
            .set("bootstrap.servers", &self.bootstrap)
            .set("client.id", &self.client_id)
            // Java's partitioner, so that a consumer finds a key in the expected partition.
            .set("partitioner", "murmur2_random")
            .set("linger.ms", millis(self.linger))
            // The default is twice the linger, and each change of partition is one more request.
            .set("sticky.partitioning.linger.ms", "10")
            .set("message.timeout.ms", self.give_up_after().as_millis().to_string())
            .set("message.max.bytes", RECORD_BYTES_MAX.to_string())
            // A broker checks a batch against its topic's limit, which may be lower than the
            // default of 1 MB.
            .set("batch.size", "131072")
            .set("queue.buffering.max.messages", self.records_in_flight_max.to_string())
            .set(
                "queue.buffering.max.kbytes",
                self.bytes_in_flight_max.max(RECORD_BYTES_MAX).div_ceil(1024).to_string(),
            )
            .set("socket.nagle.disable", "true")
            .set("socket.keepalive.enable", "true")
            .set("statistics.interval.ms", "0")
            // A broker that is back should be found within a second, not within ten. A connection
            // that hangs is tried again.
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "1000")
            // TCP, TLS, SASL and the versions take up to six round trips, of two seconds each to
            // the slowest supported broker.
            .set("socket.connection.setup.timeout.ms", "15000")
            .set("retry.backoff.ms", "50")
            // A broker that disappears without closing its connections holds up its partitions for
            // as long as a request may take.
            .set("socket.timeout.ms", answer_deadline.as_millis().to_string())
            .set(
                "request.timeout.ms",
                (answer_deadline / 2).min(REPLICAS_DEADLINE_MAX).as_millis().to_string(),
            )
            // A device between the node and a broker may drop an idle connection without telling
            // either side.
            .set("connections.max.idle.ms", "180000")
            .set("topic.metadata.refresh.fast.interval.ms", "50")
            // Topics are looked up before records are sent to them. A missing topic was therefore
            // deleted, and its records should fail soon.
            .set("topic.metadata.propagation.max.ms", "5000");
        for (name, value) in self.properties.pairs().iter() {
            config.set(canonical(name), value);
        }
        config
    }
}

impl fmt::Debug for KafkaSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSettings")
            .field("bootstrap", &self.bootstrap)
            .field("properties", &self.properties)
            .field("client_id", &self.client_id)
            .field("linger", &self.linger)
            .field("publish_deadline", &self.publish_deadline)
            .field("producers", &self.producers)
            .field("records_in_flight_max", &self.records_in_flight_max)
            .field("bytes_in_flight_max", &self.bytes_in_flight_max)
            .finish()
    }
}

fn canonical(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name)
}

/// Returns all problems of the librdkafka properties, in words for the operator. No value is
/// repeated.
pub fn problems_of_properties(properties: &[(String, String)]) -> Vec<String> {
    let problems = properties.iter().filter_map(|(name, value)| problem_of(name, value));
    problems.chain(sasl::problems(&|name| value_of(properties, name))).collect()
}

/// Checks that a client can be made with these properties, which reads the files that they name.
/// The client knows no broker and connects to none.
///
/// # Errors
/// With librdkafka's reason.
pub fn try_properties(properties: &[(String, String)]) -> Result<(), String> {
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Emerg);
    for (name, value) in properties {
        config.set(canonical(name), value);
    }
    config.create::<BaseProducer>().map(drop).map_err(|error| match error {
        KafkaError::ClientCreation(reason) => reason,
        // Other messages may repeat a value.
        _ => "librdkafka refuses a property".to_owned(),
    })
}

/// Returns the value of a property, by its canonical name.
fn value_of<'a>(properties: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let given = properties.iter().rev().find(|(given, _)| canonical(given) == name);
    given.map(|(_, value)| value.as_str())
}

fn problem_of(given: &str, value: &str) -> Option<String> {
    let name = canonical(given);
    if let Some((_, instead)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return Some(format!("the Kafka property {given} cannot be set: {instead}"));
    }
    if let Some((_, values, why)) = PROMISED.iter().find(|(promised, ..)| *promised == name) {
        let is_kept = values.contains(&value);
        return (!is_kept)
            .then(|| format!("the Kafka property {given} is always {}: {why}", values[0]));
    }
    if let Some((.., why)) =
        FORBIDDEN.iter().find(|(forbidden, value_of, _)| (*forbidden, *value_of) == (name, value))
    {
        return Some(format!("the Kafka property {given} cannot have this value: {why}"));
    }
    if !is_property(given) {
        return Some(format!("librdkafka has no property {given}"));
    }
    let taken = ClientConfig::new().set(given, value).create_native_config();
    // librdkafka's own words repeat the value.
    taken.is_err().then(|| format!("librdkafka refuses the value of the Kafka property {given}"))
}

/// Returns true for a name that librdkafka knows.
pub fn is_property(name: &str) -> bool {
    let set = ClientConfig::new().set(name, "").create_native_config();
    !matches!(set, Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)))
}

/// Returns milliseconds with three decimals, as librdkafka reads them.
fn millis(span: Duration) -> String {
    format!("{}.{:03}", span.as_millis(), span.subsec_micros() % 1000)
}

/// A client could not be made. No broker was contacted yet: the cause is in the settings, or on
/// this machine.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot create the {what}")]
    Create {
        what: &'static str,
        #[source]
        source: rdkafka::error::KafkaError,
    },
    #[error("cannot start the thread {name}")]
    Thread {
        name: &'static str,
        #[source]
        source: std::io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(properties: &[(&str, &str)]) -> KafkaSettings {
        KafkaSettings {
            bootstrap: "localhost:9092".to_owned(),
            properties: properties
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect::<Vec<_>>()
                .into(),
            client_id: "punctual".to_owned(),
            linger: Duration::from_micros(500),
            publish_deadline: Duration::from_secs(30),
            producers: NonZeroUsize::MIN,
            records_in_flight_max: 100_000,
            bytes_in_flight_max: 64 << 20,
        }
    }

    fn problems(properties: &[(&str, &str)]) -> Vec<String> {
        problems_of_properties(&settings(properties).properties.pairs())
    }

    fn value(settings: &KafkaSettings, mode: Mode, name: &str) -> String {
        settings.producer_config(mode).create_native_config().unwrap().get(name).unwrap()
    }

    #[test]
    fn librdkafka_takes_all_of_our_own_settings() {
        let settings = settings(&[]);
        settings.admin_config(Duration::from_secs(1)).create_native_config().unwrap();
        for (name, expected) in [
            ("enable.idempotence", "true"),
            ("acks", "-1"),
            ("allow.auto.create.topics", "false"),
            ("linger.ms", "0.5"),
            ("message.timeout.ms", "600000"),
            ("statistics.interval.ms", "1875"),
            ("message.max.bytes", "1000000000"),
            ("queue.buffering.max.kbytes", "976563"),
            ("delivery.report.only.error", "false"),
        ] {
            assert_eq!(value(&settings, Mode::Together, name), expected, "{name}");
        }
        assert_eq!(value(&settings, Mode::Alone, "batch.num.messages"), "1");
    }

    #[test]
    fn an_operator_overrides_ours_by_either_name_of_a_property() {
        let properties = [
            ("message.send.max.retries", "7"),
            ("compression.type", "zstd"),
            ("partitioner", "consistent"),
        ];
        assert_eq!(problems(&properties), Vec::<String>::new());
        let settings = settings(&properties);
        assert_eq!(value(&settings, Mode::Together, "retries"), "7");
        assert_eq!(value(&settings, Mode::Together, "compression.codec"), "zstd");
        assert_eq!(value(&settings, Mode::Alone, "linger.ms"), "0");
    }

    #[test]
    fn what_would_break_a_promise_is_refused_and_what_keeps_it_is_taken() {
        for (name, value) in [
            ("enable.idempotence", "false"),
            ("acks", "1"),
            ("request.required.acks", "0"),
            ("allow.auto.create.topics", "true"),
            ("delivery.report.only.error", "true"),
            ("delivery.report.only.error", "1"),
            ("enable.gapless.guarantee", "T"),
            ("queue.buffering.max.kbytes", "1"),
            ("queue.buffering.max.ms", "7"),
            ("transactional.id", "t"),
            ("metadata.broker.list", "elsewhere:9092"),
            ("delivery.timeout.ms", "1000"),
            ("partitioner", "random"),
            ("message.max.bytes", "1000000"),
            ("statistics.interval.ms", "1000"),
            ("plugin.library.paths", "elsewhere"),
            ("ssl.engine.location", "elsewhere"),
            ("ssl.providers", "elsewhere"),
            ("sasl.kerberos.kinit.cmd", "elsewhere"),
            ("debug", "security"),
        ] {
            let problems = problems(&[(name, value)]);
            assert!(problems.len() == 1 && problems[0].contains(name), "{name}: {problems:?}");
        }
        assert!(problems(&[("acks", "-1"), ("enable.idempotence", "true")]).is_empty());
    }

    #[test]
    fn all_problems_are_told_at_once_without_any_value() {
        let problems = problems(&[("no.such.property", "s3cret"), ("linger.ms", "s3cret")]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(!format!("{problems:?}").contains("s3cret"));
    }

    #[test]
    fn no_value_of_a_property_is_printed() {
        let shown = format!("{:?}", settings(&[("sasl.password", "s3cret")]));
        assert!(shown.contains("sasl.password") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn a_span_is_written_in_milliseconds() {
        assert_eq!(millis(Duration::from_micros(500)), "0.500");
        assert_eq!(millis(Duration::from_micros(12_005)), "12.005");
    }
}
