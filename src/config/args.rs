//! The command line as it is written. Values stay text here; [`super::settings`] and
//! [`super::migration`] say what they mean. The comments on the fields are the manual that `--help`
//! prints.

mod access;
mod database;
mod dev;
mod examples;
mod outbox;
mod payload_keys;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(super) use self::access::{Access, Auth, Token};
pub use self::access::{AuthCommand, CheckAuth, CheckToken, NewToken, TokenCommand};
pub(super) use self::database::{Database, Schema};
pub(super) use self::dev::{Dev, Supervisor};
pub(super) use self::outbox::{
    CallbackArgs, IntakeTopics, Outbox, OutboxDatabase, OutboxWords, Outboxes,
};
pub(super) use self::payload_keys::{PayloadKeys, PayloadKeysWords};

use super::secret::Secret;
use super::tls::TlsWords;
use crate::bench::args::BenchArgs;
use crate::client::args as client;

/// The release, `0.1.0`.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The commit that it was built from, or `unknown`.
pub const COMMIT: &str = env!("PUNCTUAL_COMMIT");

/// Both, as `--version` prints them.
pub(super) const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("PUNCTUAL_COMMIT"), ")");

/// Delayed messages for Kafka: submit a record with a due time over REST, and it appears in its
/// topic on time.
///
/// Every setting is a flag or an environment variable; the flag takes precedence. Write spans of
/// time like 200ms, 30s, 1h 30m or 7d, and sizes like 16MiB, 1GiB or a number of bytes. All times
/// of a cluster are those of Postgres's clock.
///
/// Exit codes: 0 done, 1 failed or refused, 2 wrong usage or settings. The client commands have
/// more; their help lists them.
#[derive(Parser, Debug)]
#[command(
    name = "punctual",
    version,
    long_version = VERSION,
    max_term_width = 110,
    disable_help_subcommand = true
)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub command: CommandArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Subcommand, Debug)]
pub(super) enum CommandArgs {
    /// Runs everything that development needs, in one process: a node, a broker that Kafka clients
    /// can use, and a Postgres of its own.
    ///
    /// Needs the programs of Postgres 15 or later, but no running server. The REST API is the one
    /// of `serve`, for one node. Nothing survives the end of the process, unless --data keeps the
    /// tasks. A single broker in memory proves nothing about failures: test these with real
    /// servers.
    #[command(after_long_help = dev::EXAMPLES)]
    Dev(Box<Dev>),
    /// Keeps the Postgres of a dev server, until its standard input ends.
    #[command(hide = true)]
    DevPostgres(Supervisor),
    /// Runs a node, which takes tasks over REST and publishes each one at its due time.
    ///
    /// Start any number of nodes with the same database, Kafka and etcd. On SIGTERM, a node drains:
    /// it stops claiming, publishes and settles the tasks in flight, and leaves the cluster.
    #[command(after_long_help = examples::SERVE)]
    Serve(Box<Serve>),
    /// Brings the database's schema up to date, and stores the settings that all nodes share.
    ///
    /// Can be repeated at any time. Settings that are not given keep their stored values; the first
    /// migration stores their defaults. Nodes use changed settings from their next start on.
    #[command(after_long_help = examples::MIGRATE)]
    Migrate(Migrate),
    /// Starts a node, migrates its database, or checks that it could start.
    #[command(subcommand)]
    Server(ServerCommand),
    #[command(flatten)]
    Client(Box<client::ClientCommand>),
    /// Installs, checks and removes outboxes, through which applications submit inside their own
    /// database transactions.
    Outbox(Outbox),
    /// Encrypts stored records again with another payload key.
    PayloadKeys(PayloadKeys),
    /// Makes and checks tokens, which identify callers.
    Token(Token),
    /// Checks auth files, which list the principals of a cluster and their rights.
    Auth(Auth),
    /// Measures a running cluster: submits tasks over REST and reads their records from the topic.
    Bench(Box<BenchWords>),
    /// Generates shell completions.
    #[command(after_help = examples::COMPLETIONS)]
    Completions(Completions),
    /// Generates the manual page of the program, or of one command.
    #[command(after_help = examples::MAN)]
    Man(Man),
}

/// The commands of a node with their noun.
#[derive(Subcommand, Debug)]
pub(super) enum ServerCommand {
    /// Runs a node, as `punctual serve`.
    #[command(after_long_help = examples::START)]
    Start(Box<Serve>),
    /// Brings the database's schema up to date, as `punctual migrate`.
    #[command(after_long_help = examples::SERVER_MIGRATE)]
    Migrate(Migrate),
    /// Checks the settings of a node, and asks its servers, without starting it.
    ///
    /// Takes the flags and variables of `serve`. Prints a line for the settings and for each
    /// server, within ten seconds. Changes nothing: --auto-migrate is ignored, and a schema that is
    /// too old is told.
    #[command(after_long_help = examples::CHECK)]
    Check(Box<Serve>),
}

#[derive(Args, Debug)]
pub(super) struct BenchWords {
    #[command(flatten)]
    pub bench: BenchArgs,
    #[command(flatten, next_help_heading = "For every scenario")]
    pub kafka_properties: KafkaProperties,
}

#[derive(Args, Debug)]
pub(super) struct Completions {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub(super) struct Man {
    /// The words of the command. Without them, the page of the program lists all commands.
    #[arg(value_name = "COMMAND")]
    pub words: Vec<String>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Logs (to stderr)")]
pub(super) struct LogArgs {
    /// The log level (error, warn, info, debug, trace, off), or a filter such as
    /// info,punctual::node=debug.
    ///
    /// A level alone applies to Punctual and its Kafka client; other libraries then log warnings
    /// and errors. Payloads and keys are never logged.
    #[arg(
        long,
        global = true,
        env = "PUNCTUAL_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log: String,
    /// The format of a line: text or json.
    #[arg(
        long,
        global = true,
        env = "PUNCTUAL_LOG_FORMAT",
        value_name = "text|json",
        default_value = "text"
    )]
    pub log_format: String,
}

#[derive(Args, Debug)]
pub(super) struct Serve {
    #[command(flatten)]
    pub database: Database,
    #[command(flatten)]
    pub schema: Schema,
    #[command(flatten)]
    pub outboxes: Outboxes,
    #[command(flatten)]
    pub intakes: IntakeTopics,
    #[command(flatten)]
    pub callbacks: CallbackArgs,
    #[command(flatten)]
    pub kafka: KafkaArgs,
    #[command(flatten)]
    pub etcd: EtcdArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub tls: TlsWords,
    #[command(flatten)]
    pub access: Access,
    #[command(flatten)]
    pub traces: TraceArgs,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub retention: RetentionArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Properties of librdkafka, from everywhere they can be written.
#[derive(Args, Debug)]
pub(super) struct KafkaProperties {
    /// A property of librdkafka, key=value; repeatable. The variable PUNCTUAL_KAFKA_PROPERTIES
    /// takes key=value,key=value; a value with commas must be in the flag or the file. Flags are
    /// visible in the list of processes: prefer the variable or the file for secrets.
    ///
    /// Any property can be set (TLS, SASL, compression.type ..), except those that the guarantees
    /// depend on, such as acks and enable.idempotence, and those with a setting of their own, such
    /// as linger.ms.
    #[arg(long = "kafka-property", global = true, value_name = "K=V")]
    pub flags: Vec<Secret>,
    /// The value of the variable; not a flag for people.
    #[arg(
        long = "kafka-properties",
        global = true,
        env = "PUNCTUAL_KAFKA_PROPERTIES",
        value_name = "K=V,K=V",
        hide = true
    )]
    pub list: Option<Secret>,
    /// A file with properties, one key=value per line; lines that start with # are comments. Use it
    /// for secrets.
    #[arg(
        long = "kafka-properties-file",
        global = true,
        env = "PUNCTUAL_KAFKA_PROPERTIES_FILE",
        value_name = "FILE"
    )]
    pub file: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Kafka")]
pub(super) struct KafkaArgs {
    /// Bootstrap servers, host:port, comma-separated. Required.
    #[arg(long = "kafka", env = "PUNCTUAL_KAFKA", value_name = "SERVERS")]
    pub bootstrap: Option<String>,
    #[command(flatten)]
    pub properties: KafkaProperties,
    /// Number of producers, from 1 to 16. Each topic uses one of them.
    ///
    /// A producer has at most five requests in flight for each broker, and each request has the
    /// records of one partition. A node that publishes to hundreds of topics needs several.
    #[arg(long, env = "PUNCTUAL_PRODUCERS", value_name = "COUNT", default_value = "4")]
    pub producers: String,
    /// How long a producer collects records for one request. From 0s to 1s.
    ///
    /// librdkafka waits in whole milliseconds, so each value above 0s and up to 1ms means 1 ms.
    /// With 0s, records leave one millisecond earlier. At 2,000 tasks per second the cost is
    /// about the same; at 10,000 it is a tenth higher. Values above 1ms cost a little less.
    #[arg(long, env = "PUNCTUAL_LINGER", value_name = "SPAN", default_value = "500us")]
    pub linger: String,
    /// A record without an acknowledgement after this time, while Kafka acknowledges others, is
    /// retried later, as a new attempt of its task. From 1s to 10m.
    #[arg(long, env = "PUNCTUAL_PUBLISH_DEADLINE", value_name = "SPAN", default_value = "30s")]
    pub publish_deadline: String,
    /// If Kafka says for this long, without a break, that a topic does not exist or that this node
    /// may not write to it, the topic's tasks become dead letters. From 1s to 30d.
    #[arg(long, env = "PUNCTUAL_TOPIC_DENIAL_MAX", value_name = "SPAN", default_value = "5m")]
    pub topic_denial_max: String,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "etcd")]
pub(super) struct EtcdArgs {
    /// Endpoints of etcd, comma-separated: host:port, http:// or https://. Without it, this node is
    /// the only one and owns all shards.
    ///
    /// https:// trusts the certificates of --etcd-ca-file, or else those that this machine trusts.
    #[arg(long = "etcd", env = "PUNCTUAL_ETCD", value_name = "ENDPOINTS")]
    pub endpoints: Option<String>,
    /// The user for etcd, if its authentication is enabled. The user needs the right to read and
    /// write the keys that begin with the cluster's name and a slash.
    #[arg(long = "etcd-user", env = "PUNCTUAL_ETCD_USER", value_name = "NAME")]
    pub user: Option<String>,
    /// The password of the user for etcd. Flags are visible in the list of processes: prefer the
    /// variable or the file.
    #[arg(long = "etcd-password", env = "PUNCTUAL_ETCD_PASSWORD", value_name = "PASSWORD")]
    pub password: Option<Secret>,
    /// A file with the password, and nothing else.
    #[arg(long = "etcd-password-file", env = "PUNCTUAL_ETCD_PASSWORD_FILE", value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The certificate authorities of etcd, in PEM. They replace those that this machine trusts.
    /// Needs https:// endpoints. A changed file is read again.
    #[arg(long = "etcd-ca-file", env = "PUNCTUAL_ETCD_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// A client certificate for etcd, in PEM, with its intermediate certificates. Needs its key and
    /// https:// endpoints. A changed file is read again.
    #[arg(
        long = "etcd-certificate-file",
        env = "PUNCTUAL_ETCD_CERTIFICATE_FILE",
        value_name = "FILE"
    )]
    pub certificate_file: Option<PathBuf>,
    /// The private key of the client certificate, in PEM.
    #[arg(long = "etcd-key-file", env = "PUNCTUAL_ETCD_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Traces")]
pub(super) struct TraceArgs {
    /// An OpenTelemetry collector that gets spans by OTLP over HTTP: http:// or https://, host and
    /// port. Spans go to its path /v1/traces. [default: none, and no spans]
    ///
    /// A request that submits tasks has a span, a child of the caller's if the request has a
    /// traceparent. Each publication is a trace of its own, with a link to the submit.
    #[arg(long, env = "PUNCTUAL_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// A file with headers for the requests to the collector, such as its token: `name: value`, one
    /// per line; lines that start with # are comments. Read once, at start.
    #[arg(long, env = "PUNCTUAL_OTLP_HEADERS_FILE", value_name = "FILE")]
    pub otlp_headers_file: Option<PathBuf>,
    /// The share of traces that are recorded, of those that begin at this node. A caller decides
    /// about its own traces. From 0 to 1.
    #[arg(long, env = "PUNCTUAL_TRACE_RATIO", value_name = "RATIO", default_value = "1")]
    pub trace_ratio: String,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "The node and its cluster")]
pub(super) struct NodeArgs {
    /// The address of the REST API: address:port. Port 0 takes a free port.
    ///
    /// Beyond loopback, a node starts only with --auth-file or --allow-anonymous.
    #[arg(long, env = "PUNCTUAL_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    pub listen: String,
    /// A host name of this node, without a port; repeat the flag, or separate names by commas. A
    /// name that begins with a dot allows all names that end in it.
    ///
    /// Requests for other hosts are refused (421), so that no web page can point its own name at
    /// this node. Always allowed: localhost, the address of --listen (any address of the machine,
    /// for 0.0.0.0), and the host of --advertise.
    #[arg(long, env = "PUNCTUAL_HOST", value_name = "NAME", value_delimiter = ',')]
    pub host: Vec<String>,
    /// Topics that get metrics of their own, punctual_topic_..: a name, a prefix such as orders.*,
    /// or *; repeat the flag, or separate patterns by commas. [default: none]
    ///
    /// The first 200 topics that this node sees get them, with 8 series each. Give all nodes the
    /// same patterns. Names that begin with _ must be written out.
    #[arg(long, env = "PUNCTUAL_METRICS_TOPICS", value_name = "PATTERN", value_delimiter = ',')]
    pub metrics_topics: Vec<String>,
    /// The cluster's name, the prefix of its keys in etcd. 1 to 64 of a-z A-Z 0-9 . _ and -.
    #[arg(long, env = "PUNCTUAL_CLUSTER", value_name = "NAME", default_value = "punctual")]
    pub cluster: String,
    /// This node's name, for people; its id is new at every start. 1 to 255 characters. [default:
    /// the host's name]
    #[arg(long, env = "PUNCTUAL_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
    /// The URL at which people and other nodes reach this node's API. [default: http:// (with a
    /// certificate https://) and the address of --listen, with this node's name in place of
    /// 0.0.0.0]
    #[arg(long, env = "PUNCTUAL_ADVERTISE", value_name = "URL")]
    pub advertise: Option<String>,
    /// How long a node may be without a heartbeat before others count it as dead. They take over
    /// its shards within about one second more. From 1s to 60s.
    #[arg(long, env = "PUNCTUAL_SESSION_TTL", value_name = "SPAN", default_value = "3s")]
    pub session_ttl: String,
    /// How long a node publishes and settles the tasks in flight after SIGTERM. Other nodes adopt
    /// the rest. From 0s to 1h.
    #[arg(long, env = "PUNCTUAL_DRAIN_TIMEOUT", value_name = "SPAN", default_value = "30s")]
    pub drain_timeout: String,
    /// Allows a core dump when the node crashes. The dump has payloads and passwords. Without it,
    /// only root can attach a debugger to the node. true or false; the flag alone means true.
    #[arg(long, env = "PUNCTUAL_CORE_DUMPS", value_name = "BOOL")]
    pub core_dumps: String,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Timing")]
pub(super) struct Timing {
    /// Tasks due within one slice of this length are published together at its end: never early, up
    /// to one slice late. Tasks with the same key keep the order of their due times and submits.
    /// From 1ms to 1s.
    ///
    /// At low rates, wake-ups and requests are most of the cost: 20ms saves most of it.
    #[arg(long, env = "PUNCTUAL_PRECISION", value_name = "SPAN", default_value = "1ms")]
    pub precision: String,
    /// The time between two claims while many tasks are due. With few due tasks, up to a quarter of
    /// the window passes; with none, up to two fifths. From 1ms to 1s; shorter than the window.
    ///
    /// Lateness does not depend on the tick while the window is longer than the tick plus the
    /// slowest claim.
    #[arg(long, env = "PUNCTUAL_TICK", value_name = "SPAN", default_value = "20ms")]
    pub tick: String,
    /// Number of claim loops. Each has its own connection and its part of the node's shards. From 1
    /// to 16.
    #[arg(long, env = "PUNCTUAL_CLAIM_LOOPS", value_name = "COUNT", default_value = "2")]
    pub claim_loops: String,
    /// How far ahead a task may be due. Tasks beyond it are refused. From 1s to 36500d.
    #[arg(long, env = "PUNCTUAL_DELAY_MAX", value_name = "SPAN", default_value = "1825d")]
    pub delay_max: String,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Retention")]
pub(super) struct RetentionArgs {
    /// How long receipts (the execlog) are kept. From 1h to 3650d; dropped day by day.
    #[arg(long, env = "PUNCTUAL_RECEIPT_RETENTION", value_name = "SPAN", default_value = "7d")]
    pub receipt_retention: String,
    /// How long payloads are kept after their settle. From 0s to 30d; dropped hour by hour.
    #[arg(long, env = "PUNCTUAL_PAYLOAD_RETENTION", value_name = "SPAN", default_value = "1h")]
    pub payload_retention: String,
    /// How long a name stands for its task after the task's end or due time, whichever is later (of
    /// a cancelled task, after its due time). Then the name is free. From 1s to 3650d.
    #[arg(long, env = "PUNCTUAL_NAME_RETENTION", value_name = "SPAN", default_value = "24h")]
    pub name_retention: String,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Limits (of this node)")]
pub(super) struct LimitArgs {
    /// Tasks in flight (claimed and not yet settled). At the limit, claims pause. From 1000 to
    /// 10000000.
    #[arg(long, env = "PUNCTUAL_IN_FLIGHT_TASKS", value_name = "COUNT", default_value = "100000")]
    pub in_flight_tasks: String,
    /// Bytes of the tasks in flight. From 1MiB to 512GiB; at least --body-max.
    #[arg(long, env = "PUNCTUAL_IN_FLIGHT_BYTES", value_name = "SIZE", default_value = "256MiB")]
    pub in_flight_bytes: String,
    /// Tasks in flight per topic, so that a slow topic leaves room for others. From 100 to
    /// 10000000; at most --in-flight-tasks.
    #[arg(
        long,
        env = "PUNCTUAL_TOPIC_IN_FLIGHT_TASKS",
        value_name = "COUNT",
        default_value = "25000"
    )]
    pub topic_in_flight_tasks: String,
    /// Submitted tasks that wait for their insert. At the limit, 503 with Retry-After. From 1000 to
    /// 10000000.
    #[arg(long, env = "PUNCTUAL_SUBMIT_QUEUE", value_name = "COUNT", default_value = "20000")]
    pub submit_queue: String,
    /// Bytes of the tasks that wait for their insert. From 1MiB to 1024GiB; at least --body-max.
    #[arg(long, env = "PUNCTUAL_SUBMIT_QUEUE_BYTES", value_name = "SIZE", default_value = "64MiB")]
    pub submit_queue_bytes: String,
    /// Cancels that wait for their statement. At the limit, 503 with Retry-After. From 100 to
    /// 1000000.
    #[arg(long, env = "PUNCTUAL_CANCEL_QUEUE", value_name = "COUNT", default_value = "10000")]
    pub cancel_queue: String,
    /// Answers of consumers (finish, fail, extend) that wait for their statement. At the limit, 503
    /// with Retry-After. From 10000 to 1000000.
    #[arg(long, env = "PUNCTUAL_ANSWER_QUEUE", value_name = "COUNT", default_value = "20000")]
    pub answer_queue: String,
    /// Schedules of the whole cluster. At the limit, a new one gets 422; others can be changed.
    /// Give all nodes the same value. From 1 to 10000000.
    #[arg(long, env = "PUNCTUAL_SCHEDULES_MAX", value_name = "COUNT", default_value = "1000000")]
    pub schedules_max: String,
    /// Size of a request's body, compressed and uncompressed; a larger one gets 413. From 1KiB to
    /// 1GiB.
    #[arg(long, env = "PUNCTUAL_BODY_MAX", value_name = "SIZE", default_value = "16MiB")]
    pub body_max: String,
    /// Bytes of all bodies in progress, and of large answers until they are written. One caller
    /// gets half of them, and all when --caller-requests-max is not below --requests-max. At the
    /// limit, 503 with Retry-After. From 1MiB to 4GiB; at least twice --body-max, because a
    /// compressed body is in memory twice.
    #[arg(long, env = "PUNCTUAL_BODY_MEMORY", value_name = "SIZE", default_value = "256MiB")]
    pub body_memory: String,
    /// Tasks of a bulk submit; a larger one gets 413. From 1 to 10000.
    #[arg(long, env = "PUNCTUAL_BATCH_MAX", value_name = "COUNT", default_value = "10000")]
    pub batch_max: String,
    /// Size of a request's header, plus 32 bytes for each field; a larger one gets 431. From 1KiB
    /// to 64KiB. Over HTTP/1.1, a header has 100 fields at most.
    #[arg(long, env = "PUNCTUAL_HEADER_MAX", value_name = "SIZE", default_value = "16KiB")]
    pub header_max: String,
    /// Requests in progress, until their answers are written. At the limit, 503 with Retry-After.
    /// From 1 to 1000000.
    #[arg(long, env = "PUNCTUAL_REQUESTS_MAX", value_name = "COUNT", default_value = "1024")]
    pub requests_max: String,
    /// Requests in progress per caller, which is an IP address (with IPv6, a /64). At the limit,
    /// 429 with Retry-After. From 1 to 1000000.
    ///
    /// A proxy is one caller: behind one, set this to the value of --requests-max.
    #[arg(long, env = "PUNCTUAL_CALLER_REQUESTS_MAX", value_name = "COUNT", default_value = "512")]
    pub caller_requests_max: String,
    /// Requests in progress per HTTP/2 connection. The protocol tells the caller. From 1 to 10000.
    #[arg(long, env = "PUNCTUAL_STREAMS_MAX", value_name = "COUNT", default_value = "256")]
    pub streams_max: String,
    /// Open connections of the API. At the limit, new ones get 503 and are closed. From 1 to
    /// 1000000.
    #[arg(long, env = "PUNCTUAL_CONNECTIONS_MAX", value_name = "COUNT", default_value = "4096")]
    pub connections_max: String,
    /// Open connections per caller, which is an IP address (with IPv6, a /64). At the limit, new
    /// ones get 429 and are closed. From 1 to 1000000.
    ///
    /// A proxy is one caller: behind one, set this to the value of --connections-max.
    #[arg(
        long,
        env = "PUNCTUAL_CALLER_CONNECTIONS_MAX",
        value_name = "COUNT",
        default_value = "2048"
    )]
    pub caller_connections_max: String,
    /// How long a request's header may take to arrive, and how long a new connection may be without
    /// one; then the connection is closed. From 100ms to 10m.
    #[arg(long, env = "PUNCTUAL_HEADER_TIMEOUT", value_name = "SPAN", default_value = "10s")]
    pub header_timeout: String,
    /// How long a connection may be without a request; then it is closed. Set it longer than the
    /// idle timeout of a load balancer in front. From 1s to 1h.
    #[arg(long, env = "PUNCTUAL_IDLE_TIMEOUT", value_name = "SPAN", default_value = "75s")]
    pub idle_timeout: String,
    /// How long a request may take from its header to its answer; then 408 if its body has not
    /// arrived, else 503. From 1s to 10m.
    #[arg(long, env = "PUNCTUAL_REQUEST_TIMEOUT", value_name = "SPAN", default_value = "30s")]
    pub request_timeout: String,
    /// How long a caller may take to read its answer, or 64 KiB of a longer one; then the
    /// connection is closed. From 1s to 10m.
    #[arg(long, env = "PUNCTUAL_ANSWER_TIMEOUT", value_name = "SPAN", default_value = "30s")]
    pub answer_timeout: String,
}

#[derive(Args, Debug)]
pub(super) struct Migrate {
    #[command(flatten)]
    pub database: Database,
    #[command(flatten)]
    pub cluster: ClusterWide,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Settings of the whole cluster (stored in the database)")]
pub(super) struct ClusterWide {
    /// Number of shards, the units in which nodes share the work: a power of two from 1 to 4096.
    /// Cannot be changed later. [default at first: 64]
    #[arg(long, env = "PUNCTUAL_SHARDS", value_name = "COUNT")]
    pub shards: Option<String>,
    /// The range of due times in one partition (leaf) of the table `task`; no longer than a
    /// checkpoint interval of Postgres. From 1s to 1d. Cannot be changed later. [default at first:
    /// 15m]
    #[arg(long, env = "PUNCTUAL_LEAF", value_name = "SPAN")]
    pub leaf: Option<String>,
    /// How far ahead the table `task` reaches; tasks due later wait in `task_far`. From 1s to 300d;
    /// at most 300 leaves. [default at first: 3d]
    #[arg(long, env = "PUNCTUAL_HORIZON", value_name = "SPAN")]
    pub horizon: Option<String>,
    /// How far ahead of its due time a node claims a task into memory. A claimed task cannot be
    /// cancelled. From 20ms to 10s. [default at first: 200ms]
    #[arg(long, env = "PUNCTUAL_WINDOW", value_name = "SPAN")]
    pub window: Option<String>,
}

/// Makes a true-or-false setting, one with a value `BOOL`, false by default. The flag alone means
/// true. Other settings stay as they are.
pub(super) fn with_default(arg: clap::Arg) -> clap::Arg {
    let names = arg.get_value_names();
    if !names.is_some_and(|names| names.iter().any(|name| name.as_str() == "BOOL")) {
        return arg;
    }
    arg.required(false)
        .num_args(0..=1)
        .require_equals(true)
        .default_value("false")
        .default_missing_value("true")
}
