//! Metrics of the work of a node.

pub mod backlog;
pub mod topics;

use std::time::Duration;

use self::backlog::BacklogMetrics;
use self::topics::TopicMetrics;
use crate::access::pattern::Pattern;
use crate::domain::TopicName;
use crate::telemetry::{self, Counter, Gauge, Histogram, Registry, Unit};

/// Counters of every stage, and the durations of claims and settles. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    pub submitted: Counter,
    pub submits_refused: Counter,
    pub pending_count_failures: Counter,
    pub submit_unknown: Counter,
    pub submit_group_tasks: Histogram,
    pub submit_duration: Histogram,
    pub submit_queue_tasks: Gauge,
    pub submit_queue_bytes: Gauge,
    pub names_known: Counter,
    pub replaced: Counter,
    pub moved: Counter,
    pub cancel_queue: Gauge,
    pub cancelled: Counter,
    pub principals_not_stored: Counter,
    pub rows_looked_at: Counter,
    pub redriven: Counter,
    pub dead_letters_dropped: Counter,
    pub claimed: Counter,
    pub claimed_on_insert: Counter,
    pub claimed_after_due: Counter,
    pub claim_duration: Histogram,
    pub claim_failures: Counter,
    pub claims_too_large: Counter,
    pub deferred_ranges: Gauge,
    pub skipped_ranges: Gauge,
    pub quarantined: Counter,
    pub in_quarantine: Gauge,
    pub published: Counter,
    pub lateness: Histogram,
    pub settled: Counter,
    pub settled_by_others: Counter,
    pub settle_duration: Histogram,
    pub settle_failures: Counter,
    pub deferred: Counter,
    pub unopened: UnopenedMetrics,
    pub tracked: TrackedMetrics,
    pub dead: Counter,
    pub expired: Counter,
    pub adopted: Counter,
    pub recovered: Counter,
    pub oldest_unsettled: Gauge,
    pub in_flight_tasks: Gauge,
    pub in_flight_bytes: Gauge,
    pub in_flight_batches: Gauge,
    pub remembered_batches: Gauge,
    pub unavailable_topics: Gauge,
    pub pauses: PauseMetrics,
    pub throttled: Gauge,
    pub backlog: BacklogMetrics,
    pub topics: TopicMetrics,
}

impl NodeMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let mut to = Registrar(registry);
        Self {
            backlog: BacklogMetrics::register(to.0),
            topics: TopicMetrics::default(),
            submitted: to.counter("tasks_submitted", "Tasks stored"),
            submits_refused: to.counter(
                "tasks_refused",
                "Well-formed tasks that were refused or certainly not stored",
            ),
            pending_count_failures: to.counter(
                "pending_count_failures",
                "Failed counts of pending tasks for the limits on them (pending_max)",
            ),
            submit_unknown: to
                .counter("submit_outcomes_unknown", "Tasks of groups whose commit got no answer"),
            submit_group_tasks: to.sizes("submit_group_tasks", "Tasks stored per commit"),
            submit_duration: to
                .seconds("submit_duration", "Time of the statement that stores a group"),
            submit_queue_tasks: to.gauge("submit_queue_tasks", "Tasks that wait to be stored"),
            submit_queue_bytes: to
                .gauge("submit_queue_bytes", "Bytes of the tasks that wait to be stored"),
            names_known: to
                .counter("names_known", "Submits answered with the known task of their name"),
            replaced: to.counter("tasks_replaced", "Pending tasks replaced by a PUT"),
            moved: to.counter("tasks_moved", "Pending tasks moved to another due time"),
            cancel_queue: to.gauge("cancel_queue_tasks", "Cancels that wait for their statement"),
            cancelled: to.counter("tasks_cancelled", "Tasks cancelled"),
            principals_not_stored: to
                .counter("principals_not_stored", "Changes without the name of their caller"),
            rows_looked_at: to.counter("listed_rows", "Rows read for lists and bulk cancels"),
            redriven: to.counter("dead_letters_redriven", "Dead letters redriven"),
            dead_letters_dropped: to.counter("dead_letters_dropped", "Dead letters dropped"),
            claimed: to.counter("tasks_claimed", "Tasks claimed, including on insert"),
            claimed_on_insert: to.counter(
                "tasks_claimed_on_insert",
                "Tasks claimed on insert, due within the window",
            ),
            claimed_after_due: to.counter(
                "tasks_claimed_after_due",
                "Tasks at the watermark that were claimed after their due time; should be 0",
            ),
            claim_duration: to.seconds("claim_duration", "Time of claims with tasks"),
            claim_failures: to.counter("claim_failures", "Claims that failed or got no answer"),
            claims_too_large: to.counter("claims_too_large", "Claims whose range was too large"),
            deferred_ranges: to.gauge("claim_deferred_ranges", "Deferred ranges of ids"),
            skipped_ranges: to.gauge(
                "claim_deferred_ranges_waiting",
                "Skipped ranges of ids, whose topics are at their limit of tasks in flight; \
                 claimed when there is room",
            ),
            quarantined: to.counter(
                "tasks_quarantined",
                "Tasks that cannot be claimed in any way; should be 0",
            ),
            in_quarantine: to.gauge(
                "in_quarantine_tasks",
                "Tasks of the cluster in quarantine, at most 1,000; should be 0",
            ),
            published: to.counter("tasks_published", "Tasks whose record was acknowledged"),
            lateness: to.lateness(
                "lateness",
                "Time from the due time of a record to its append or acknowledgement",
            ),
            settled: to.counter("tasks_settled", "Tasks of batches that this node settled"),
            settled_by_others: to.counter(
                "batches_settled_by_others",
                "Batches that another node had already settled or adopted",
            ),
            settle_duration: to
                .seconds("settle_duration", "Time of the statement that settles batches"),
            settle_failures: to.counter(
                "settle_failures",
                "Settles that failed or got no answer; they are repeated",
            ),
            deferred: to.counter("tasks_deferred", "Attempts without an acknowledgement"),
            unopened: UnopenedMetrics::new(&mut to),
            tracked: TrackedMetrics::new(&mut to),
            dead: to.counter("tasks_dead", "Tasks that became dead letters"),
            expired: to.counter("tasks_expired", "Tasks not published before their expiry"),
            adopted: to.counter("batches_adopted", "Unsettled batches taken over from a dead node"),
            recovered: to.counter(
                "batches_recovered",
                "Batches found by the check, whose claim got no answer",
            ),
            oldest_unsettled: to.gauge(
                "oldest_unsettled_seconds",
                "Age of the oldest unsettled batch of the cluster, checked once a minute; 0 if \
                 none is older than a minute",
            ),
            in_flight_tasks: to
                .gauge("in_flight_tasks", "Tasks in flight: claimed and not yet settled"),
            in_flight_bytes: to.gauge("in_flight_bytes", "Bytes of the batches in flight"),
            in_flight_batches: to.gauge("in_flight_batches", "Batches in flight"),
            remembered_batches: to
                .gauge("remembered_batches", "Settled batches until their settle is durable"),
            unavailable_topics: to.gauge("unavailable_topics", "Unavailable topics"),
            pauses: PauseMetrics::new(&mut to),
            throttled: to
                .gauge("kafka_throttled", "1 while Kafka throttles this node by a quota; else 0"),
        }
    }

    /// Adds metrics of the topics that are chosen by `patterns`.
    #[must_use]
    pub fn with_topics(self, registry: &mut Registry, patterns: &[Pattern]) -> Self {
        Self { topics: TopicMetrics::register(registry, patterns), ..self }
    }

    /// Records an acknowledgement that came `lateness` after the due time of its task. `None`: the
    /// topic is paused, so the lateness says nothing.
    pub fn published(&self, topic: &TopicName, lateness: Option<Duration>) {
        self.published.inc();
        self.topics.published(topic, lateness);
        if let Some(lateness) = lateness {
            self.lateness.observe(lateness.as_secs_f64());
        }
    }
}

/// Counters of due records that could not be decrypted.
#[derive(Clone, Debug)]
pub struct UnopenedMetrics {
    pub without_key: Counter,
    pub damaged: Counter,
}

impl UnopenedMetrics {
    fn new(to: &mut Registrar<'_>) -> Self {
        Self {
            without_key: to.counter(
                "records_without_key",
                "Due records that were deferred, because this node lacks their payload key; should \
                 be 0",
            ),
            damaged: to.counter(
                "records_damaged",
                "Due records that could not be decrypted and became dead letters; should be 0",
            ),
        }
    }
}

/// The metrics of tracked tasks.
#[derive(Clone, Debug)]
pub struct TrackedMetrics {
    pub timed_out: Counter,
    pub exhausted: Counter,
    pub finished: Counter,
    pub failed: Counter,
    pub extended: Counter,
    pub answer_queue: Gauge,
    pub time_to_finish: Histogram,
}

impl TrackedMetrics {
    fn new(to: &mut Registrar<'_>) -> Self {
        Self {
            timed_out: to.counter(
                "attempts_timed_out",
                "Attempts of tracked tasks that were not answered in their time to run",
            ),
            exhausted: to.counter(
                "tasks_exhausted",
                "Tracked tasks that were given up because they were not finished",
            ),
            finished: to.counter("tasks_finished", "Tracked tasks finished by their consumers"),
            failed: to.counter("attempts_failed", "Attempts that their consumers have failed"),
            extended: to.counter("attempts_extended", "Attempts that were extended"),
            answer_queue: to.gauge("answer_queue", "Answers of consumers that wait"),
            time_to_finish: to
                .seconds("time_to_finish", "Time from the append of an attempt to its finish"),
        }
    }
}

/// The metrics of paused topics.
#[derive(Clone, Debug)]
pub struct PauseMetrics {
    pub topics: Gauge,
    pub longest: Gauge,
    pub held: Counter,
    pub released: Counter,
}

impl PauseMetrics {
    fn new(to: &mut Registrar<'_>) -> Self {
        Self {
            topics: to.gauge("paused_topics", "Topics that operators have paused"),
            longest: to.gauge(
                "paused_topics_longest_seconds",
                "How long the topic has been paused that was paused first; 0 without one",
            ),
            held: to.counter(
                "tasks_held",
                "Overdue tasks of paused topics that this node moved out of the leaves",
            ),
            released: to.counter(
                "tasks_released",
                "Held tasks that this node made due after the pause of their topic",
            ),
        }
    }
}

struct Registrar<'a>(&'a mut Registry);

impl Registrar<'_> {
    fn counter(&mut self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.0.register(format!("punctual_{name}"), help, counter.clone());
        counter
    }

    fn gauge(&mut self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.0.register(format!("punctual_{name}"), help, gauge.clone());
        gauge
    }

    fn seconds(&mut self, name: &str, help: &str) -> Histogram {
        self.histogram(name, help, telemetry::durations())
    }

    fn lateness(&mut self, name: &str, help: &str) -> Histogram {
        self.histogram(name, help, telemetry::lateness())
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: Histogram) -> Histogram {
        self.0.register_with_unit(
            format!("punctual_{name}"),
            help,
            Unit::Seconds,
            histogram.clone(),
        );
        histogram
    }

    fn sizes(&mut self, name: &str, help: &str) -> Histogram {
        let histogram =
            Histogram::new([1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        self.0.register(format!("punctual_{name}"), help, histogram.clone());
        histogram
    }
}
