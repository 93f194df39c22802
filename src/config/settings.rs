//! The parsed settings of a node.

pub(super) mod callbacks;
pub(super) mod dev;
pub(super) mod exposed_secrets;
pub(super) mod intake;
pub(super) mod misspelt_variables;
pub(super) mod outbox;
pub(super) mod payload_keys;
pub(super) mod traces;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::access::{self, Access, Waivers};
use super::args::{self, KafkaArgs, LimitArgs, RetentionArgs};
use super::etcd::{self, Etcd};
use super::host::Host;
use super::properties::{self, Property};
use super::reader::{FlagRange, SettingProblem, SettingsReader};
use super::secret::Secret;
use super::tls::{self, Operators, Tls};
use super::units::{has_port, printable};
use crate::access::pattern::Pattern;

/// A node's settings, within their limits and consistent with each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    pub database_url: Secret,
    /// Warnings about how settings were given, one line each: secrets as flags, and misspelt
    /// variables.
    pub warnings_of_words: Vec<String>,
    /// The files that hold credentials for the servers.
    pub credential_files: Vec<PathBuf>,
    /// True when a connection to Postgres may be readable by others.
    pub postgres_plaintext: bool,
    pub auto_migrate: bool,
    pub outboxes: Vec<outbox::OutboxSettings>,
    pub intakes: intake::IntakeSettings,
    pub callbacks: callbacks::CallbackSettings,
    /// A crash may write a core dump.
    pub core_dumps: bool,
    pub kafka: Kafka,
    /// `None` when this node is the only one.
    pub etcd: Option<Etcd>,
    pub listen: SocketAddr,
    /// `None` for an API without TLS.
    pub tls: Option<Tls>,
    /// `None` when one port is for everybody.
    pub operator_listen: Option<SocketAddr>,
    /// True when the operator port asks nobody for a token, also beyond loopback.
    pub operator_anonymous: bool,
    /// True when the REST API has the console beside it.
    pub has_console: bool,
    /// The topics with metrics of their own.
    pub metrics_topics: Vec<Pattern>,
    /// `None` without tracing.
    pub traces: Option<traces::TraceExport>,
    /// True when no connection to a server may be readable by others.
    pub require_tls: bool,
    /// Further names of this node. A name with a dot at the beginning stands for all names with
    /// that end.
    pub hosts: Vec<String>,
    pub access: Access,
    pub cluster: String,
    pub node_name: String,
    /// A URL without a slash at the end. The port is 0 when the port of `listen` is 0. The code
    /// that binds the port then sets the port here.
    pub advertise: String,
    pub precision: Duration,
    pub session_ttl: Duration,
    pub drain_timeout: Duration,
    pub tick: Duration,
    pub claim_loops: usize,
    pub delay_max: Duration,
    pub retention: Retention,
    pub limits: NodeLimits,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kafka {
    /// `host:port`, comma-separated.
    pub bootstrap: String,
    /// Properties of librdkafka, each name once.
    pub properties: Vec<Property>,
    /// Number of producers. Each topic has one of them.
    pub producers: NonZeroUsize,
    pub linger: Duration,
    pub publish_deadline: Duration,
    /// A topic is given up after this long without metadata, or without the right to write.
    pub topic_denial_max: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention {
    pub receipts: Duration,
    pub payloads: Duration,
    pub names: Duration,
}

/// Limits of one node: counts, or bytes and durations where the name says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeLimits {
    pub in_flight_tasks: usize,
    pub in_flight_bytes: usize,
    pub topic_in_flight_tasks: usize,
    pub submit_queue_tasks: usize,
    pub submit_queue_bytes: usize,
    pub cancel_queue: usize,
    pub answer_queue: usize,
    /// Schedules of the whole cluster.
    pub schedules_max: usize,
    pub body_bytes_max: usize,
    pub body_memory_bytes: usize,
    pub batch_tasks_max: usize,
    pub header_bytes_max: usize,
    pub requests_max: usize,
    pub caller_requests_max: usize,
    pub streams_max: usize,
    pub connections_max: usize,
    pub caller_connections_max: usize,
    pub header_timeout: Duration,
    pub idle_timeout: Duration,
    pub request_timeout: Duration,
    pub answer_timeout: Duration,
}

impl Settings {
    /// Returns warnings, one line each, about settings that are allowed but risky.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings_of_words.clone();
        let is_open = |endpoint: &String| !endpoint.starts_with("https://");
        if self
            .etcd
            .as_ref()
            .is_some_and(|etcd| etcd.login.is_some() && etcd.endpoints.iter().any(is_open))
        {
            warnings.push(
                "others on the network can read the password for etcd: not all endpoints of --etcd \
                 are https://".to_owned(),
            );
        }
        warnings
    }
}

const fn limits(flag: &'static str, from: &'static str, to: &'static str) -> FlagRange {
    FlagRange { flag, from, to }
}

const PRODUCERS: FlagRange = limits("--producers", "1", "16");
const LINGER: FlagRange = limits("--linger", "0s", "1s");
const PUBLISH_DEADLINE: FlagRange = limits("--publish-deadline", "1s", "10m");
const TOPIC_DENIAL_MAX: FlagRange = limits("--topic-denial-max", "1s", "30d");
const SESSION_TTL: FlagRange = limits("--session-ttl", "1s", "60s");
const DRAIN_TIMEOUT: FlagRange = limits("--drain-timeout", "0s", "1h");
const PRECISION: FlagRange = limits("--precision", "1ms", "1s");
const TICK: FlagRange = limits("--tick", "1ms", "1s");
const CLAIM_LOOPS: FlagRange = limits("--claim-loops", "1", "16");
const DELAY_MAX: FlagRange = limits("--delay-max", "1s", "36500d");
const RECEIPT_RETENTION: FlagRange = limits("--receipt-retention", "1h", "3650d");
const PAYLOAD_RETENTION: FlagRange = limits("--payload-retention", "0s", "30d");
const NAME_RETENTION: FlagRange = limits("--name-retention", "1s", "3650d");
const IN_FLIGHT_TASKS: FlagRange = limits("--in-flight-tasks", "1000", "10000000");
const IN_FLIGHT_BYTES: FlagRange = limits("--in-flight-bytes", "1MiB", "512GiB");
const TOPIC_IN_FLIGHT_TASKS: FlagRange = limits("--topic-in-flight-tasks", "100", "10000000");
const SUBMIT_QUEUE: FlagRange = limits("--submit-queue", "1000", "10000000");
const SUBMIT_QUEUE_BYTES: FlagRange = limits("--submit-queue-bytes", "1MiB", "1024GiB");
const CANCEL_QUEUE: FlagRange = limits("--cancel-queue", "100", "1000000");
const ANSWER_QUEUE: FlagRange = limits("--answer-queue", "10000", "1000000");
const SCHEDULES_MAX: FlagRange = limits("--schedules-max", "1", "10000000");
const BODY_MAX: FlagRange = limits("--body-max", "1KiB", "1GiB");
const REQUESTS_MAX: FlagRange = limits("--requests-max", "1", "1000000");
const CONNECTIONS_MAX: FlagRange = limits("--connections-max", "1", "1000000");
const CALLER_CONNECTIONS_MAX: FlagRange = limits("--caller-connections-max", "1", "1000000");
const BODY_MEMORY: FlagRange = limits("--body-memory", "1MiB", "4GiB");
const BATCH_MAX: FlagRange = limits("--batch-max", "1", "10000");
const HEADER_MAX: FlagRange = limits("--header-max", "1KiB", "64KiB");
const CALLER_REQUESTS_MAX: FlagRange = limits("--caller-requests-max", "1", "1000000");
const STREAMS_MAX: FlagRange = limits("--streams-max", "1", "10000");
const HEADER_TIMEOUT: FlagRange = limits("--header-timeout", "100ms", "10m");
const IDLE_TIMEOUT: FlagRange = limits("--idle-timeout", "1s", "1h");
const REQUEST_TIMEOUT: FlagRange = limits("--request-timeout", "1s", "10m");
const ANSWER_TIMEOUT: FlagRange = limits("--answer-timeout", "1s", "10m");

/// Parses `args` on `host`. Returns the settings, or all problems. Leaves `warnings_of_words`
/// empty: only the caller knows which settings were flags.
pub(super) fn read(args: &args::Serve, host: &Host<'_>) -> Result<Settings, Vec<SettingProblem>> {
    let mut reader = SettingsReader::default();
    let listen = listen(&args.node.listen, &mut reader);
    let node_name = node_name(args.node.node_name.as_deref(), host, &mut reader);
    let tls = tls::read(&args.tls, &mut reader);
    let waivers = Waivers::read(&args.access, &mut reader);
    let access = access::read(&args.access, (listen, tls.is_some()), waivers, &mut reader);
    let is_operator_anonymous = reader.truth("--operator-anonymous", &args.tls.operator_anonymous);
    let operators = match (is_operator_anonymous, &access.auth_file) {
        (true, _) => Operators::Everyone,
        (false, None) => Operators::Unasked,
        (false, Some(_)) if tls.is_none() && !waivers.plaintext_behind_proxy => Operators::InClear,
        (false, Some(_)) => Operators::Protected,
    };
    let operator_listen = tls::operator_listen(&args.tls, operators, &mut reader);
    let advertise =
        advertise(args.node.advertise.as_deref(), (listen, tls.is_some()), &node_name, &mut reader);
    let settings = Settings {
        database_url: host.database_url(&args.database, &mut reader),
        warnings_of_words: Vec::new(),
        credential_files: credential_files(args),
        postgres_plaintext: postgres_plaintext(&args.database, &mut reader),
        auto_migrate: reader.truth("--auto-migrate", &args.schema.auto_migrate),
        outboxes: outbox::outboxes(&args.outboxes, host, &mut reader),
        intakes: intake::intakes(&args.intakes, &mut reader),
        callbacks: callbacks::callbacks(&args.callbacks, &mut reader),
        core_dumps: reader.truth("--core-dumps", &args.node.core_dumps),
        kafka: kafka(&args.kafka, host, &mut reader),
        etcd: etcd::read(&args.etcd, host, &mut reader),
        listen,
        tls,
        operator_listen,
        has_console: !reader.truth("--no-console", &args.access.no_console),
        metrics_topics: metrics_topics(&args.node.metrics_topics, &mut reader),
        traces: traces::traces(&args.traces, host, &mut reader),
        require_tls: reader.truth("--require-tls", &args.tls.require_tls),
        access,
        operator_anonymous: is_operator_anonymous,
        hosts: hosts(&args.node.host, &mut reader),
        cluster: cluster(&args.node.cluster, &mut reader),
        advertise,
        node_name,
        precision: reader.whole_millis(PRECISION, &args.timing.precision),
        session_ttl: reader.duration(SESSION_TTL, &args.node.session_ttl),
        drain_timeout: reader.duration(DRAIN_TIMEOUT, &args.node.drain_timeout),
        tick: reader.duration(TICK, &args.timing.tick),
        claim_loops: reader.count(CLAIM_LOOPS, &args.timing.claim_loops),
        delay_max: reader.duration(DELAY_MAX, &args.timing.delay_max),
        retention: retention(&args.retention, &mut reader),
        limits: node_limits(&args.limits, &mut reader),
    };
    reader.finish(settings)
}

fn credential_files(args: &args::Serve) -> Vec<PathBuf> {
    let (etcd, kafka) = (&args.etcd, &args.kafka.properties);
    let files = [
        &args.database.database_url_file,
        &kafka.file,
        &etcd.password_file,
        &etcd.ca_file,
        &etcd.certificate_file,
        &etcd.key_file,
    ];
    let given = files.into_iter().flatten().filter(|path| !path.as_os_str().is_empty());
    given.cloned().collect()
}

fn kafka(args: &KafkaArgs, host: &Host<'_>, reader: &mut SettingsReader) -> Kafka {
    let bootstrap = args.bootstrap.as_deref().unwrap_or_default().trim();
    if bootstrap.is_empty() {
        reader.problem("--kafka", "required: the bootstrap servers, host:port (or PUNCTUAL_KAFKA)");
    } else if let Some(wrong) = bootstrap.split(',').find(|server| !has_port(server.trim())) {
        reader.problem("--kafka", format!("{} is not host:port", printable(wrong)));
    }
    let properties = properties::read(&args.properties, host, reader);
    let linger = reader.duration(LINGER, &args.linger);
    let publish_deadline = reader.duration(PUBLISH_DEADLINE, &args.publish_deadline);
    if publish_deadline <= linger && reader.took(LINGER.flag) && reader.took(PUBLISH_DEADLINE.flag)
    {
        reader.problem(PUBLISH_DEADLINE.flag, "must be longer than --linger");
    }
    Kafka {
        bootstrap: bootstrap.to_owned(),
        properties,
        producers: NonZeroUsize::new(reader.count(PRODUCERS, &args.producers))
            .unwrap_or(NonZeroUsize::MIN),
        linger,
        publish_deadline,
        topic_denial_max: reader.duration(TOPIC_DENIAL_MAX, &args.topic_denial_max),
    }
}

fn listen(text: &str, reader: &mut SettingsReader) -> SocketAddr {
    text.trim().parse().unwrap_or_else(|_not_an_address| {
        reader.problem(
            "--listen",
            format!(
                "{} is not an address with a port; write it like 127.0.0.1:7070 or [::1]:7070",
                printable(text)
            ),
        );
        SocketAddr::from(([127, 0, 0, 1], 0))
    })
}

fn hosts(names: &[String], reader: &mut SettingsReader) -> Vec<String> {
    let is_name = |name: &str| {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
        !name.trim_matches('.').is_empty() && name.bytes().all(legal) && !has_port(name)
    };
    let names: Vec<String> = names.iter().map(|name| name.trim().to_owned()).collect();
    if let Some(wrong) = names.iter().find(|name| !is_name(name)) {
        reader.problem(
            "--host",
            format!("{} is not a host name; write it without a port", printable(wrong)),
        );
    }
    names
}

fn metrics_topics(patterns: &[String], reader: &mut SettingsReader) -> Vec<Pattern> {
    let given = patterns.iter().map(|pattern| pattern.trim()).filter(|pattern| !pattern.is_empty());
    let (right, wrong): (Vec<_>, Vec<_>) = given.map(Pattern::new).partition(Result::is_ok);
    for error in wrong.into_iter().filter_map(Result::err) {
        let expected = "write a topic's name, a prefix with a * at its end, or *";
        reader.problem("--metrics-topics", format!("{error}; {expected}"));
    }
    right.into_iter().filter_map(Result::ok).collect()
}

fn cluster(text: &str, reader: &mut SettingsReader) -> String {
    let is_name = (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if !is_name {
        reader.problem(
            "--cluster",
            format!("`{text}` is not a valid name; expected 1 to 64 of a-z A-Z 0-9 . _ and -"),
        );
    }
    text.to_owned()
}

fn node_name(text: Option<&str>, host: &Host<'_>, reader: &mut SettingsReader) -> String {
    let name = text.map(str::trim).filter(|name| !name.is_empty()).unwrap_or(&host.name);
    if name.chars().count() > 255 || name.chars().any(char::is_control) {
        reader.problem("--node-name", "expected 1 to 255 characters without control characters");
    }
    name.to_owned()
}

fn advertise(
    text: Option<&str>,
    (listen, has_tls): (SocketAddr, bool),
    node_name: &str,
    reader: &mut SettingsReader,
) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else {
        // Other machines cannot connect to "all addresses". The name of the host is the better
        // guess.
        return if listen.ip().is_unspecified() {
            format!("{scheme}://{node_name}:{}", listen.port())
        } else {
            format!("{scheme}://{listen}")
        };
    };
    let place =
        text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).unwrap_or_default();
    if place.is_empty() || place.starts_with('/') || text.contains(char::is_whitespace) {
        reader.problem(
            "--advertise",
            format!("{} is not a URL; write it like http://node-1:7070", printable(text)),
        );
    }
    text.trim_end_matches('/').to_owned()
}

/// Reads whether a connection to Postgres may be readable by others.
pub(super) fn postgres_plaintext(args: &args::Database, reader: &mut SettingsReader) -> bool {
    reader.truth("--postgres-plaintext", &args.postgres_plaintext)
}

fn retention(args: &RetentionArgs, reader: &mut SettingsReader) -> Retention {
    let receipts = reader.duration(RECEIPT_RETENTION, &args.receipt_retention);
    let payloads = reader.duration(PAYLOAD_RETENTION, &args.payload_retention);
    if reader.took(RECEIPT_RETENTION.flag) && payloads > receipts {
        reader.problem(
            PAYLOAD_RETENTION.flag,
            "must not be longer than --receipt-retention, because receipts lead to the payloads",
        );
    }
    Retention { receipts, payloads, names: reader.duration(NAME_RETENTION, &args.name_retention) }
}

fn node_limits(args: &LimitArgs, reader: &mut SettingsReader) -> NodeLimits {
    let limits = NodeLimits {
        in_flight_tasks: reader.count(IN_FLIGHT_TASKS, &args.in_flight_tasks),
        in_flight_bytes: reader.size(IN_FLIGHT_BYTES, &args.in_flight_bytes),
        topic_in_flight_tasks: reader.count(TOPIC_IN_FLIGHT_TASKS, &args.topic_in_flight_tasks),
        submit_queue_tasks: reader.count(SUBMIT_QUEUE, &args.submit_queue),
        submit_queue_bytes: reader.size(SUBMIT_QUEUE_BYTES, &args.submit_queue_bytes),
        cancel_queue: reader.count(CANCEL_QUEUE, &args.cancel_queue),
        answer_queue: reader.count(ANSWER_QUEUE, &args.answer_queue),
        schedules_max: reader.count(SCHEDULES_MAX, &args.schedules_max),
        body_bytes_max: reader.size(BODY_MAX, &args.body_max),
        body_memory_bytes: reader.size(BODY_MEMORY, &args.body_memory),
        batch_tasks_max: reader.count(BATCH_MAX, &args.batch_max),
        header_bytes_max: reader.size(HEADER_MAX, &args.header_max),
        requests_max: reader.count(REQUESTS_MAX, &args.requests_max),
        caller_requests_max: reader.count(CALLER_REQUESTS_MAX, &args.caller_requests_max),
        streams_max: reader.count(STREAMS_MAX, &args.streams_max),
        connections_max: reader.count(CONNECTIONS_MAX, &args.connections_max),
        caller_connections_max: reader.count(CALLER_CONNECTIONS_MAX, &args.caller_connections_max),
        header_timeout: reader.duration(HEADER_TIMEOUT, &args.header_timeout),
        idle_timeout: reader.duration(IDLE_TIMEOUT, &args.idle_timeout),
        request_timeout: reader.duration(REQUEST_TIMEOUT, &args.request_timeout),
        answer_timeout: reader.duration(ANSWER_TIMEOUT, &args.answer_timeout),
    };
    if reader.took(IN_FLIGHT_TASKS.flag) && limits.topic_in_flight_tasks > limits.in_flight_tasks {
        reader.problem(TOPIC_IN_FLIGHT_TASKS.flag, "must not be more than --in-flight-tasks");
    }
    // With a lower limit, a task could be accepted that never fits.
    for (range, bytes) in
        [(IN_FLIGHT_BYTES, limits.in_flight_bytes), (SUBMIT_QUEUE_BYTES, limits.submit_queue_bytes)]
    {
        if reader.took(range.flag) && bytes < limits.body_bytes_max {
            reader.problem(range.flag, "must be at least --body-max");
        }
    }
    if reader.took(BODY_MEMORY.flag) && limits.body_memory_bytes / 2 < limits.body_bytes_max {
        reader.problem(
            BODY_MEMORY.flag,
            "must be at least twice --body-max, because a compressed body is in memory twice",
        );
    }
    limits
}

#[cfg(test)]
pub(super) const ALL_LIMITS: [FlagRange; 33] = [
    LINGER,
    PUBLISH_DEADLINE,
    TOPIC_DENIAL_MAX,
    SESSION_TTL,
    DRAIN_TIMEOUT,
    PRECISION,
    TICK,
    CLAIM_LOOPS,
    DELAY_MAX,
    RECEIPT_RETENTION,
    PAYLOAD_RETENTION,
    NAME_RETENTION,
    IN_FLIGHT_TASKS,
    IN_FLIGHT_BYTES,
    TOPIC_IN_FLIGHT_TASKS,
    SUBMIT_QUEUE,
    SUBMIT_QUEUE_BYTES,
    CANCEL_QUEUE,
    ANSWER_QUEUE,
    SCHEDULES_MAX,
    BODY_MAX,
    REQUESTS_MAX,
    CONNECTIONS_MAX,
    CALLER_CONNECTIONS_MAX,
    BODY_MEMORY,
    BATCH_MAX,
    HEADER_MAX,
    CALLER_REQUESTS_MAX,
    STREAMS_MAX,
    HEADER_TIMEOUT,
    IDLE_TIMEOUT,
    REQUEST_TIMEOUT,
    ANSWER_TIMEOUT,
];
