//! The thread that asks Kafka about topics, and constantly checks whether Kafka is there at all. It
//! is a thread because librdkafka's questions block.

use std::collections::HashSet;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use az::SaturatingAs as _;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tokio::sync::watch;

use super::known::KnownTopics;
use super::login::LoginCheck;
use super::question::{LookUpError, TopicAnswer, TopicFacts, TopicRequest};
use crate::clock;
use crate::domain::{Monotonic, TopicName};
use crate::kafka::compression::TopicCompression;
use crate::kafka::contact::PROBE_TOPIC;
use crate::kafka::patience::KafkaPatience;
use crate::kafka::{ClientError, KafkaContact, KafkaMetrics, KafkaSettings, Reason};

const THREAD: &str = "kafka-prober";
const ENDING_THREAD: &str = "kafka-ending";
/// The interval of checks for new acknowledgements.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// A probe is sent after this time without a proof of contact.
const PROBE_AFTER: Duration = Duration::from_millis(750);
/// The time limit for connections to all advertised addresses of the brokers, followed by the one
/// for a single address. Both are longer where answers take longer.
const REACH_DEADLINE: Duration = Duration::from_secs(1);
const CONNECT_DEADLINE: Duration = Duration::from_millis(500);
/// A deadline of zero is refused.
const CONNECT_MIN: Duration = Duration::from_millis(1);
/// The pause between two probes in trouble: one broker of many may be in trouble for long.
const PROBE_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// A client without an answer for this long is replaced. When a starting broker lists no brokers at
/// all, a client forgets all known brokers and never connects again (librdkafka's issue 5301).
const RENEW_AFTER: Duration = Duration::from_secs(10);
/// How long this client may go without a question while acknowledgements prove contact. They prove
/// it for the producers, which are other clients.
const PROVE_AFTER: Duration = Duration::from_secs(30);
/// The deadline of each of the two questions of a look-up. It is longer where answers take longer.
/// A Kafka that hangs is noticed by it, too.
const QUESTION_DEADLINE: Duration = Duration::from_millis(1500);
/// The broker's default limit, for a topic whose configuration this node may not read.
const RECORD_BYTES_MAX_DEFAULT: usize = 1_048_588;
/// librdkafka remembers each topic that a client has asked about for the life of the client, and
/// asks again each second about the missing ones.
const TOPICS_OPENED_MAX: usize = 10_000;

type Admin = AdminClient<DefaultClientContext>;

pub(super) struct Prober {
    settings: KafkaSettings,
    admin: Admin,
    /// The patience for which the admin client was made.
    made_for: KafkaPatience,
    /// Drives the admin client's futures. It has neither timers nor sockets.
    runtime: tokio::runtime::Runtime,
    requests: Receiver<TopicRequest>,
    known: Arc<KnownTopics>,
    contact: KafkaContact,
    metrics: KafkaMetrics,
    opened: HashSet<TopicName>,
    probe_topic: Option<TopicName>,
    /// When the last question was answered or given up.
    probed_at: Option<Monotonic>,
    own_answers: OwnAnswers,
    acknowledged_count: u64,
    /// The version of the operator's properties that the client was made with.
    properties: u64,
    /// Ends the previous client. Its end may wait for a server of tokens, up to 20 s.
    ending: Option<JoinHandle<()>>,
    /// Since a question had no answer: what is wrong with the login.
    login: Option<LoginCheck>,
}

impl Prober {
    /// The thread drops the other end of the answer when it ends, for any reason.
    pub(super) fn start(
        settings: &KafkaSettings,
        requests: Receiver<TopicRequest>,
        known: Arc<KnownTopics>,
        contact: KafkaContact,
        metrics: KafkaMetrics,
    ) -> Result<watch::Receiver<()>, ClientError> {
        let made_for = contact.patience();
        let properties = settings.properties.version();
        let admin = settings
            .admin_config(made_for.span())
            .create()
            .map_err(|source| ClientError::Create { what: "Kafka admin client", source })?;
        let failed = |source| ClientError::Thread { name: THREAD, source };
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(failed)?;
        let prober = Self {
            settings: settings.clone(),
            admin,
            made_for,
            runtime,
            requests,
            known,
            contact,
            metrics,
            opened: HashSet::new(),
            probe_topic: None,
            probed_at: None,
            own_answers: OwnAnswers::default(),
            acknowledged_count: 0,
            properties,
            ending: None,
            login: None,
        };
        let (alive, thread) = watch::channel(());
        let run = move || {
            prober.run();
            drop(alive);
        };
        std::thread::Builder::new().name(THREAD.to_owned()).spawn(run).map_err(failed)?;
        Ok(thread)
    }

    /// Runs until the last [`super::TopicCache`] is dropped.
    fn run(mut self) {
        self.watch();
        loop {
            let request = self.requests.recv_timeout(POLL_INTERVAL);
            if self.known.is_stopping() {
                break;
            }
            match request {
                Ok(TopicRequest::LookUp { topic, until, answer }) => {
                    let learnt = self.look_up(&topic, until);
                    self.known.settle(&topic, learnt, &answer);
                    self.metrics.topics_known.set(self.known.topic_count().saturating_as::<i64>());
                }
                Ok(TopicRequest::Wake) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.watch();
        }
    }

    /// Watches the contact. Acknowledgements prove contact, unless they came before the trouble.
    /// Otherwise a broker is asked when a probe is due.
    fn watch(&mut self) {
        if let Some(login) = &self.login {
            login.take_in();
        }
        if self.settings.properties.version() != self.properties {
            tracing::debug!("the properties have changed; creating a new Kafka admin client");
            self.renew();
        }
        let is_proven = self.has_new_acknowledgements() && !self.contact.is_in_doubt();
        if is_proven {
            self.hold();
        }
        let is_due = if is_proven {
            self.own_answers.are_due(clock::monotonic())
        } else {
            self.is_probe_due()
        };
        if !is_due {
            return;
        }
        let topic = self.probe_topic.as_ref().map_or(PROBE_TOPIC, TopicName::as_str);
        let (asked_at, patience) = (clock::monotonic(), self.contact.patience().span());
        match self.admin.inner().fetch_metadata(Some(topic), patience) {
            Ok(metadata) => {
                self.own_answers.heard(clock::monotonic());
                self.contact
                    .set_patience(KafkaPatience::answered(clock::monotonic().since(asked_at)));
                // Existing contact is kept: a few unreachable brokers of many are no reason to
                // stop.
                let has_contact = self.contact.is_reachable() || self.has_new_acknowledgements();
                let addresses: Vec<_> = metadata
                    .brokers()
                    .iter()
                    .map(|broker| (broker.host(), broker.port()))
                    .collect();
                match if has_contact {
                    Ok(())
                } else {
                    reach_one(&addresses, self.contact.patience())
                } {
                    Ok(()) => self.hold(),
                    Err(reason) => {
                        self.probed_at = Some(clock::monotonic());
                        self.contact.note(&reason);
                        self.contact.lose(&reason);
                    }
                }
            }
            Err(error) => self.unanswered(&reason_of(&error)),
        }
        if self.made_for.is_far_from(self.contact.patience()) {
            self.renew();
        }
    }

    fn is_probe_due(&self) -> bool {
        let Some(probed_at) = self.probed_at else { return true };
        let is_urgent = self.contact.is_in_doubt() || !self.contact.is_reachable();
        clock::monotonic().since(probed_at)
            >= if is_urgent { PROBE_AGAIN_AFTER } else { PROBE_AFTER }
    }

    fn has_new_acknowledgements(&mut self) -> bool {
        let count = self.contact.acknowledged_count();
        std::mem::replace(&mut self.acknowledged_count, count) != count
    }

    /// Records an answer to this client. An answer does not prove contact yet: the bootstrap
    /// address may be the only one reachable from outside.
    fn answered(&mut self) {
        self.own_answers.heard(clock::monotonic());
        if self.contact.is_reachable() {
            self.hold();
        }
    }

    fn hold(&mut self) {
        let now = clock::monotonic();
        self.probed_at = Some(now);
        self.contact.hold(now);
        // While tokens are missing, the check tells whether that goes on.
        if !self.contact.lacks_a_token()
            && let Some(login) = self.login.take()
        {
            self.end(login);
        }
    }

    fn unanswered(&mut self, reason: &str) {
        if self.login.is_none() {
            self.login = LoginCheck::start(&self.settings, &self.contact);
        }
        let now = clock::monotonic();
        self.contact.set_patience(self.contact.patience().unanswered());
        // First, because the end of a login check, too, holds up the next renewal.
        if self.own_answers.have_ended(now) {
            tracing::debug!("no answer for a long time; creating a new Kafka admin client");
            self.renew();
        }
        if self.has_new_acknowledgements() || self.contact.goes_on_without_a_token(now) {
            // The failure concerns only this client: the producers get acknowledgements, or could.
            self.hold();
        } else {
            self.probed_at = Some(now);
            self.contact.lose(reason);
        }
    }

    /// Records that a question had no answer within `deadline`. A question that waited for its turn
    /// had less time than a probe, so a missing answer says nothing about the broker.
    fn unanswered_within(&mut self, deadline: Duration, error: &KafkaError) -> LookUpError {
        let reason = reason_of(error);
        if deadline >= self.contact.patience().span() {
            self.unanswered(&reason);
        }
        LookUpError::Unavailable { reason }
    }

    fn look_up(&mut self, topic: &TopicName, until: Monotonic) -> TopicAnswer {
        let learnt = self.facts(topic, until);
        let counter = match &learnt {
            Ok(_) => &self.metrics.look_ups.found,
            Err(LookUpError::Unknown) => &self.metrics.look_ups.unknown,
            Err(LookUpError::Denied { .. }) => &self.metrics.look_ups.denied,
            Err(LookUpError::Unavailable { .. } | LookUpError::Busy) => {
                &self.metrics.look_ups.unavailable
            }
        };
        counter.inc();
        if learnt.is_ok() {
            self.probe_topic = Some(topic.clone());
        }
        learnt
    }

    /// Asks for the configuration first, then for the metadata. The first question leaves no trace
    /// of a missing topic in the client.
    fn facts(&mut self, topic: &TopicName, until: Monotonic) -> TopicAnswer {
        let facts = self.configuration(topic, until)?;
        self.find(topic, until)?;
        Ok(facts)
    }

    fn configuration(&mut self, topic: &TopicName, until: Monotonic) -> TopicAnswer {
        let left = left(until, self.contact.patience())?;
        let options = AdminOptions::new().request_timeout(Some(left));
        let resources = [ResourceSpecifier::Topic(topic.as_str())];
        let described = self.runtime.block_on(self.admin.describe_configs(&resources, &options));
        let described = match described {
            Ok(described) => described.into_iter().next().unwrap_or(Err(Code::Unknown)),
            Err(KafkaError::AdminOp(
                code @ (Code::UnsupportedFeature | Code::UnsupportedVersion),
            )) => Err(code),
            Err(error) => return Err(self.unanswered_within(left, &error)),
        };
        self.answered();
        match described {
            Ok(resource) => {
                let value =
                    |name: &str| resource.get(name).and_then(|entry| entry.value.as_deref());
                let record_bytes_max =
                    value("max.message.bytes").and_then(|bytes| bytes.parse().ok());
                Ok(TopicFacts {
                    record_bytes_max: record_bytes_max.unwrap_or(RECORD_BYTES_MAX_DEFAULT),
                    needs_key: value("cleanup.policy")
                        .is_some_and(|policy| policy.contains("compact")),
                    compression: value("compression.type")
                        .map(TopicCompression::of)
                        .unwrap_or_default(),
                })
            }
            // An unreadable configuration does not mean that the topic is missing. The metadata
            // will tell.
            Err(
                Code::TopicAuthorizationFailed
                | Code::ClusterAuthorizationFailed
                | Code::UnsupportedFeature
                | Code::UnsupportedVersion,
            ) => Ok(TopicFacts {
                record_bytes_max: RECORD_BYTES_MAX_DEFAULT,
                needs_key: false,
                compression: TopicCompression::default(),
            }),
            Err(code) => Err(error_of(code)),
        }
    }

    /// Fails unless the topic exists.
    fn find(&mut self, topic: &TopicName, until: Monotonic) -> Result<(), LookUpError> {
        self.make_room();
        self.opened.insert(topic.clone());
        let left = left(until, self.contact.patience())?;
        let metadata = match self.admin.inner().fetch_metadata(Some(topic.as_str()), left) {
            Ok(metadata) => metadata,
            Err(error) => return Err(self.unanswered_within(left, &error)),
        };
        self.answered();
        let Some(topic) = metadata.topics().first() else { return Err(LookUpError::Unknown) };
        match topic.error() {
            Some(code) => Err(error_of(code.into())),
            None => Ok(()),
        }
    }

    /// Replaces the client when it remembers too many topics.
    fn make_room(&mut self) {
        if self.opened.len() >= TOPICS_OPENED_MAX {
            self.renew();
        }
    }

    /// Ends clients, away from this thread if it can be.
    fn end(&mut self, clients: impl Send + 'static) {
        let end = move || drop(clients);
        self.ending = std::thread::Builder::new().name(ENDING_THREAD.to_owned()).spawn(end).ok();
    }

    /// Replaces the client, unless the previous one is still ending.
    fn renew(&mut self) {
        if self.ending.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let patience = self.contact.patience();
        self.properties = self.settings.properties.version();
        match self.settings.admin_config(patience.span()).create() {
            Ok(admin) => {
                let previous = std::mem::replace(&mut self.admin, admin);
                let login = self.login.take();
                self.end((previous, login));
                self.own_answers = OwnAnswers::default();
                self.made_for = patience;
                self.opened.clear();
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot create a new Kafka admin client; keeping the old one"
                )
            }
        }
    }
}

/// The answers to the prober's own client, which say whether it still finds Kafka. Answers to the
/// producers do not count.
#[derive(Default, Debug)]
struct OwnAnswers {
    last_at: Option<Monotonic>,
    /// The time of the first question without an answer since the last answer.
    missing_since: Option<Monotonic>,
}

impl OwnAnswers {
    fn heard(&mut self, now: Monotonic) {
        (self.last_at, self.missing_since) = (Some(now), None);
    }

    /// Returns true when the client is to be asked although Kafka has acknowledged records: its
    /// last answer is old, or its last question had none.
    fn are_due(&self, now: Monotonic) -> bool {
        self.missing_since.is_some() || self.last_at.is_none_or(|at| now.since(at) >= PROVE_AFTER)
    }

    /// Notes that a question had no answer. Returns true after [`RENEW_AFTER`] of that.
    fn have_ended(&mut self, now: Monotonic) -> bool {
        now.since(*self.missing_since.get_or_insert(now)) >= RENEW_AFTER
    }
}

/// Checks whether one of the advertised addresses of the brokers takes a connection. A broker
/// answers a client under any name by which the client has found it, but records go to the
/// advertised address. An empty list proves nothing against the brokers, because a starting broker
/// lists none.
fn reach_one(addresses: &[(&str, i32)], patience: KafkaPatience) -> Result<(), String> {
    // Patience is the time of three answers, and a connection takes the time of one.
    let (deadline, at_once) =
        (REACH_DEADLINE.max(patience.span()), CONNECT_DEADLINE.max(patience.span() / 2));
    let begun_at = clock::monotonic();
    // The first address is random each time: unreachable ones must not use up the time of all
    // others.
    let begin = rand::random_range(0..addresses.len().max(1));
    let mut tried = Vec::new();
    for (host, port) in addresses[begin..].iter().chain(&addresses[..begin]) {
        let left = || deadline.saturating_sub(clock::monotonic().since(begun_at)).min(at_once);
        if left().is_zero() {
            break;
        }
        if can_connect(host, *port, left) {
            return Ok(());
        }
        tried.push(format!("{host}:{port}"));
    }
    if tried.is_empty() {
        return Ok(());
    }
    Err(format!(
        "Kafka answers, but its advertised address {} is unreachable (advertised.listeners)",
        tried.join(", ")
    ))
}

fn can_connect(host: &str, port: i32, left: impl Fn() -> Duration) -> bool {
    let Ok(port) = u16::try_from(port) else { return false };
    let Ok(mut addresses) = (host, port).to_socket_addrs() else { return false };
    addresses.any(|address| {
        !left().is_zero() && TcpStream::connect_timeout(&address, left().max(CONNECT_MIN)).is_ok()
    })
}

/// Returns how long a question may take that must be answered by `until`.
fn left(until: Monotonic, patience: KafkaPatience) -> Result<Duration, LookUpError> {
    let left = until.since(clock::monotonic()).min(QUESTION_DEADLINE.max(patience.span()));
    if left < Duration::from_millis(1) {
        return Err(LookUpError::Unavailable {
            reason: "no answer to earlier look-ups".to_owned(),
        });
    }
    Ok(left)
}

/// Returns the meaning of a broker's error for a topic.
fn error_of(code: Code) -> LookUpError {
    let reason = Reason::new(code).to_string();
    match code {
        Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownTopicId
        | Code::InvalidTopic => LookUpError::Unknown,
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            LookUpError::Denied { reason }
        }
        _ => LookUpError::Unavailable { reason },
    }
}

fn reason_of(error: &KafkaError) -> String {
    error
        .rdkafka_error_code()
        .map_or_else(|| error.to_string(), |code| Reason::new(code).to_string())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_what_kafka_said_of_the_topic_counts_against_it() {
        assert_eq!(error_of(Code::UnknownTopicOrPartition), LookUpError::Unknown);
        assert!(matches!(error_of(Code::TopicAuthorizationFailed), LookUpError::Denied { .. }));
        for code in
            [Code::LeaderNotAvailable, Code::RequestTimedOut, Code::NotController, Code::Unknown]
        {
            assert!(matches!(error_of(code), LookUpError::Unavailable { .. }), "{code:?}");
        }
    }

    #[test]
    fn brokers_are_there_when_one_takes_a_connection_where_it_says() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = i32::from(listener.local_addr().unwrap().port());
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            i32::from(listener.local_addr().unwrap().port())
        };
        assert_eq!(
            reach_one(&[("127.0.0.1", closed), ("127.0.0.1", port)], KafkaPatience::default()),
            Ok(())
        );
        let reason =
            reach_one(&[("127.0.0.1", closed), ("127.0.0.1", -1)], KafkaPatience::default())
                .unwrap_err();
        assert!(
            reason.contains(&format!("127.0.0.1:{closed}")) && reason.contains("127.0.0.1:-1"),
            "{reason}"
        );
        assert_eq!(reach_one(&[], KafkaPatience::default()), Ok(()), "one that is just starting");
    }

    #[test]
    fn a_client_is_asked_each_30_seconds_and_without_answers_it_ends_after_10() {
        let at = |seconds| Monotonic::from_start(Duration::from_secs(seconds));
        let mut answers = OwnAnswers::default();
        assert!(answers.are_due(at(0)), "a new client");
        answers.heard(at(0));
        assert!(!answers.are_due(at(29)) && answers.are_due(at(30)));
        assert!(!answers.have_ended(at(30)) && answers.are_due(at(31)));
        assert!(!answers.have_ended(at(39)));
        answers.heard(at(39));
        assert!(!answers.have_ended(at(45)) && !answers.have_ended(at(54)));
        assert!(answers.have_ended(at(55)));
    }

    #[test]
    fn a_question_that_waited_too_long_is_not_asked() {
        let patience = KafkaPatience::default();
        assert!(left(Monotonic::default(), patience).is_err());
        assert_eq!(
            left(clock::monotonic().plus(Duration::from_secs(60)), patience),
            Ok(QUESTION_DEADLINE)
        );
        let far_away = KafkaPatience::answered(Duration::from_secs(2));
        assert_eq!(
            left(clock::monotonic().plus(Duration::from_secs(60)), far_away),
            Ok(far_away.span())
        );
    }
}
