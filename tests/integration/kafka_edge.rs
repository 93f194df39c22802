//! Bytes, receipts, refusals and look-ups, with a healthy broker.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use punctual::domain::topic::group::ConsumerGroup;
use punctual::domain::{Failure, Headers, TopicName};
use punctual::kafka::{
    DeliveryFailure, DeliveryOutcome, EndsClient, GroupMember, Hooks, IntakeReader, KafkaSettings,
    LookUpError, Mode, Producer, ReadFailure, SendError, Stall, TopicCompression, TopicFacts,
};
use rdkafka::ClientConfig;
use rdkafka::message::{Headers as _, Message, Timestamp as RecordTime};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::kafka_support::{
    Edge, Is as _, NOW, Parts, batch, bootstrap, consume, create, delete, outcomes, plain_batch,
    producer, settings, stamp, task_id, topic,
};
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn a_record_arrives_byte_for_byte_and_its_receipt_is_where_a_consumer_finds_it() {
    let bootstrap = bootstrap();
    let topic =
        topic(&bootstrap, "edge-bytes", 3, &[("message.timestamp.type", "LogAppendTime")]).await;
    let headers = Headers::new([
        ("a", Some(b"\x00\x01\xff".as_slice())),
        ("a", Some(b"again")),
        ("empty", Some(b"")),
        ("null", None),
        ("a", None),
    ])
    .unwrap();
    let all_bytes: Vec<u8> = (0..=255).collect();
    let records: [Parts<'_>; 5] = [
        (Some(b"key"), Some(all_bytes.as_slice()), headers),
        (Some(b"key"), None, Headers::default()),
        (None, Some(b"null"), Headers::default()),
        (Some(b""), Some(b""), Headers::default()),
        (Some(all_bytes.as_slice()), Some(b"{}"), Headers::default()),
    ];
    let batch = batch(&topic, &records);
    let mut edge = Edge::new(&settings(&bootstrap, &[]), Mode::Together);
    assert_eq!(edge.producer.preload(vec![topic.clone()], Duration::from_secs(30)).await, 1);
    edge.send(&batch);
    let outcomes = edge.outcomes(records.len()).await;
    let read = consume(&bootstrap, &topic, 3, records.len()).await;

    for (correlation_id, (key, payload, own)) in records.iter().enumerate() {
        let DeliveryOutcome::Acknowledged(receipt) = outcomes[&correlation_id] else {
            panic!("{:?}", outcomes[&correlation_id])
        };
        let here = |message: &&rdkafka::message::OwnedMessage| {
            (message.partition(), message.offset()) == (receipt.partition, receipt.offset)
        };
        let message = read.iter().find(here).unwrap();
        assert_eq!((message.key(), message.payload()), (*key, *payload));
        assert_eq!(
            message.timestamp(),
            RecordTime::LogAppendTime(receipt.published_at.as_millis())
        );
        let owned =
            |(name, value): (&str, Option<&[u8]>)| (name.to_owned(), value.map(<[u8]>::to_vec));
        let found: Vec<(String, Option<Vec<u8>>)> = message
            .headers()
            .unwrap()
            .iter()
            .map(|header| owned((header.key, header.value)))
            .collect();
        let mut expected: Vec<(String, Option<Vec<u8>>)> =
            punctual::domain::task::headers::decode(own.as_bytes()).map(owned).collect();
        expected.push((
            "punctual-task-id".to_owned(),
            Some(task_id(correlation_id).to_string().into_bytes()),
        ));
        expected.push(("punctual-due-at".to_owned(), Some(b"1700000000000".to_vec())));
        assert_eq!(found, expected);
    }
    assert_eq!(
        outcomes[&0].partition(),
        outcomes[&1].partition(),
        "records of one key share a partition"
    );
    assert!(
        edge.text().contains("punctual_kafka_reports_total{outcome=\"acknowledged\"} 5"),
        "{}",
        edge.text()
    );
}

trait Partition {
    fn partition(&self) -> Option<i32>;
}

impl Partition for DeliveryOutcome {
    fn partition(&self) -> Option<i32> {
        match self {
            Self::Acknowledged(receipt) => Some(receipt.partition),
            _ => None,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_append_time_a_record_is_published_when_its_acknowledgement_comes() {
    let bootstrap = bootstrap();
    let topic = topic(&bootstrap, "edge-create-time", 1, &[]).await;
    let mut edge = Edge::new(&settings(&bootstrap, &[]), Mode::Together);
    edge.send(&plain_batch(&topic, 1, 10));
    let DeliveryOutcome::Acknowledged(receipt) = edge.outcomes(1).await[&0] else {
        panic!("not acknowledged")
    };
    assert_eq!((receipt.partition, receipt.offset, receipt.published_at), (0, 0, NOW));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_has_the_time_that_it_was_given_and_one_that_a_broker_refuses_condemns_nobody() {
    let bootstrap = bootstrap();
    let topic = topic(&bootstrap, "edge-time", 1, &[]).await;
    let mut edge = Edge::new(&settings(&bootstrap, &[]), Mode::Together);
    let (batch, given) = (plain_batch(&topic, 1, 10), stamp());
    edge.producer.send(0, topic.as_str(), &batch.task(0), given).unwrap();
    assert!(matches!(edge.outcomes(1).await[&0], DeliveryOutcome::Acknowledged(_)));
    let read = consume(&bootstrap, &topic, 1, 1).await;
    assert_eq!(read[0].timestamp(), RecordTime::CreateTime(given.as_millis()));
    // A broker accepts an hour at most: Postgres's clock and the broker's differ, which is not the
    // fault of the task.
    edge.producer
        .send(1, topic.as_str(), &batch.task(0), given.plus(Duration::from_secs(3 * 3600)))
        .unwrap();
    let outcome = edge.outcomes(1).await[&1];
    assert!(outcome.is(Failure::Unavailable), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_does_not_exist_takes_nothing_and_is_not_made() {
    let bootstrap = bootstrap();
    let nowhere = TopicName::new(&format!("edge-nowhere-{:016x}", rand::random::<u64>())).unwrap();
    let mut edge = Edge::new(&settings(&bootstrap, &[]), Mode::Together);
    assert_eq!(edge.topics.look_up(&nowhere).await, Err(LookUpError::Unknown));
    edge.send(&plain_batch(&nowhere, 2, 10));
    for outcome in edge.outcomes(2).await.values() {
        assert!(outcome.is(Failure::Unavailable) && !outcome.is_maybe_sent(), "{outcome:?}");
    }
    // Once the producer knows, the answer is immediate.
    let batch = plain_batch(&nowhere, 1, 10);
    let refused = edge.producer.send(0, nowhere.as_str(), &batch.task(0), stamp());
    assert!(
        matches!(
            refused,
            Err(SendError::Failed(DeliveryFailure {
                failure: Failure::Unavailable,
                maybe_sent: false,
                ..
            }))
        ),
        "{refused:?}"
    );
    assert_eq!(edge.topics.ask(&nowhere).await, Err(LookUpError::Unknown));
    // A topic that is created later is known without a restart, and takes records.
    create(&bootstrap, &nowhere, 1, &[]).await;
    edge.topics.ask(&nowhere).await.unwrap();
    assert_eq!(edge.producer.preload(vec![nowhere.clone()], Duration::from_secs(5)).await, 1);
    edge.send(&batch);
    assert!(matches!(edge.outcomes(1).await[&0], DeliveryOutcome::Acknowledged(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_too_large_condemns_only_the_record_that_is_too_large_alone() {
    let bootstrap = bootstrap();
    let narrow = topic(&bootstrap, "edge-narrow", 1, &[("max.message.bytes", "2000")]).await;
    let wide = topic(&bootstrap, "edge-wide", 1, &[("max.message.bytes", "10000000")]).await;
    // Long enough for all records to be in one producer batch.
    let settings = punctual::kafka::KafkaSettings {
        linger: Duration::from_millis(100),
        ..settings(&bootstrap, &[])
    };
    let mut edge = Edge::new(&settings, Mode::Together);
    edge.producer.preload(vec![narrow.clone(), wide.clone()], Duration::from_secs(30)).await;
    edge.send(&plain_batch(&narrow, 50, 500));
    let together = edge.outcomes(50).await;
    assert!(together.values().all(|outcome| outcome.is(Failure::BatchRefused)), "{together:?}");

    let (alone, mut reports) = producer(&settings, Mode::Alone, &edge.topics, &edge.metrics);
    let small = plain_batch(&narrow, 50, 500);
    for (correlation_id, task) in small.tasks().enumerate() {
        alone.send(correlation_id, narrow.as_str(), &task, stamp()).unwrap();
    }
    let large = plain_batch(&narrow, 1, 3000);
    alone.send(50, narrow.as_str(), &large.task(0), stamp()).unwrap();
    let alone_outcomes = outcomes(&mut reports, 51).await;
    for (correlation_id, outcome) in &alone_outcomes {
        let is_expected = if *correlation_id == 50 {
            outcome.is(Failure::RefusedForGood)
        } else {
            matches!(outcome, DeliveryOutcome::Acknowledged(_))
        };
        assert!(is_expected, "{correlation_id}: {outcome:?}");
    }

    // Both producers keep working, on this topic and on others. A large record goes to a topic with
    // a higher limit.
    edge.send(&plain_batch(&narrow, 1, 500));
    assert!(matches!(edge.outcomes(1).await[&0], DeliveryOutcome::Acknowledged(_)));
    edge.send(&plain_batch(&wide, 3, 5_000_000));
    assert!(
        edge.outcomes(3)
            .await
            .values()
            .all(|outcome| matches!(outcome, DeliveryOutcome::Acknowledged(_)))
    );
    alone.send(0, narrow.as_str(), &small.task(0), stamp()).unwrap();
    assert!(matches!(outcomes(&mut reports, 1).await[&0], DeliveryOutcome::Acknowledged(_)));
    assert_eq!((edge.producer.fatal(), alone.fatal()), (None, None));
    assert_eq!(consume(&bootstrap, &narrow, 1, 52).await.len(), 52);
    alone.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_the_topic_refuses_is_refused_for_good_and_its_neighbours_are_not() {
    let bootstrap = bootstrap();
    let compacted = topic(&bootstrap, "edge-compacted", 1, &[("cleanup.policy", "compact")]).await;
    let settings = punctual::kafka::KafkaSettings {
        linger: Duration::from_millis(100),
        ..settings(&bootstrap, &[])
    };
    let mut edge = Edge::new(&settings, Mode::Together);
    edge.producer.preload(vec![compacted.clone()], Duration::from_secs(30)).await;
    let keyed: Parts<'_> = (Some(b"k"), Some(b"v"), Headers::default());
    let keyless = (None, Some(b"v".as_slice()), Headers::default());
    let records = batch(&compacted, &[keyed.clone(), keyless, keyed]);
    edge.send(&records);
    let together = edge.outcomes(3).await;
    assert!(together.values().all(|outcome| outcome.is(Failure::BatchRefused)), "{together:?}");
    let (alone, mut reports) = producer(&settings, Mode::Alone, &edge.topics, &edge.metrics);
    for (correlation_id, task) in records.tasks().enumerate() {
        alone.send(correlation_id, compacted.as_str(), &task, stamp()).unwrap();
    }
    let outcomes = outcomes(&mut reports, 3).await;
    assert!(
        matches!(outcomes[&0], DeliveryOutcome::Acknowledged(_))
            && matches!(outcomes[&2], DeliveryOutcome::Acknowledged(_)),
        "{outcomes:?}"
    );
    assert!(outcomes[&1].is(Failure::RefusedForGood), "{outcomes:?}");
    alone.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_reports_every_record_once_and_the_producer_goes_on() {
    let bootstrap = bootstrap();
    let topic = topic(&bootstrap, "edge-purge", 4, &[]).await;
    let mut edge = Edge::new(&settings(&bootstrap, &[]), Mode::Together);
    edge.producer.preload(vec![topic.clone()], Duration::from_secs(30)).await;
    let batch = plain_batch(&topic, 20_000, 500);
    edge.send(&batch);
    edge.producer.purge();
    let outcomes = edge.outcomes(20_000).await;
    let unknown_count = outcomes.values().filter(|outcome| outcome.is(Failure::Unknown)).count();
    let acknowledged_count = outcomes
        .values()
        .filter(|outcome| matches!(outcome, DeliveryOutcome::Acknowledged(_)))
        .count();
    assert_eq!(
        unknown_count + acknowledged_count,
        20_000,
        "records with a partition are never known not to be sent"
    );
    assert!(unknown_count > 0);
    edge.send(&plain_batch(&topic, 100, 10));
    assert!(
        edge.outcomes(100)
            .await
            .values()
            .all(|outcome| matches!(outcome, DeliveryOutcome::Acknowledged(_)))
    );
    assert_eq!(edge.producer.fatal(), None);
}

/// The node ends then: its records will have no outcome.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_whose_reports_nobody_takes_in_any_more_says_so() {
    let bootstrap = bootstrap();
    let topic = topic(&bootstrap, "edge-deaf", 1, &[]).await;
    let settings = settings(&bootstrap, &[]);
    let edge = Edge::new(&settings, Mode::Together);
    let is_first = AtomicBool::new(true);
    let hooks = Hooks::new(
        move |_report| assert!(!is_first.swap(false, Ordering::Relaxed), "a panic for this test"),
        || NOW,
    );
    let producer = Producer::new(
        &settings,
        Mode::Together,
        edge.topics.contact(),
        edge.metrics.clone(),
        hooks,
    )
    .unwrap();
    assert!(!producer.is_deaf() && !edge.producer.is_deaf());
    producer.send(0, topic.as_str(), &plain_batch(&topic, 1, 10).task(0), stamp()).unwrap();
    eventually("it is deaf", Duration::from_secs(10), async || producer.is_deaf()).await;
    assert!(!edge.producer.is_deaf(), "the other one hears");
    producer.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_told_and_takes_records_again() {
    let bootstrap = bootstrap();
    let topic = topic(&bootstrap, "edge-full", 1, &[]).await;
    let linger = Duration::from_millis(200);
    let few = punctual::kafka::KafkaSettings {
        records_in_flight_max: 10,
        linger,
        ..settings(&bootstrap, &[])
    };
    let mut edge = Edge::new(&few, Mode::Together);
    edge.send(&plain_batch(&topic, 10, 10));
    let batch = plain_batch(&topic, 1, 10);
    assert_eq!(
        edge.producer.send(10, topic.as_str(), &batch.task(0), stamp()),
        Err(SendError::Full)
    );
    assert_eq!(edge.outcomes(10).await.len(), 10);
    // The last report arrives shortly before the record leaves the queue.
    eventually("the queue is empty", Duration::from_secs(10), async || {
        edge.producer.in_flight() == 0
    })
    .await;
    edge.send(&batch);
    assert!(matches!(edge.outcomes(1).await[&0], DeliveryOutcome::Acknowledged(_)));
    assert!(edge.text().contains("punctual_kafka_queue_full_total 1"), "{}", edge.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_up_tells_what_a_topic_takes_and_many_at_once_ask_once() {
    let bootstrap = bootstrap();
    let topic = topic(&bootstrap, "edge-facts", 5, &[("max.message.bytes", "4321")]).await;
    let edge = Edge::new(&settings(&bootstrap, &[]), Mode::Together);
    let facts = TopicFacts {
        record_bytes_max: 4321,
        needs_key: false,
        compression: TopicCompression::AsSent,
    };
    let answers =
        futures_util::future::join_all((0..1000).map(|_| edge.topics.look_up(&topic))).await;
    assert!(answers.iter().all(|answer| *answer == Ok(facts)), "{answers:?}");
    assert_eq!(edge.topics.look_up(&topic).await, Ok(facts));
    assert!(
        edge.text().contains("punctual_kafka_topic_look_ups_total{outcome=\"found\"} 1"),
        "{}",
        edge.text()
    );
}

/// Fails without the partitions' own queues when the answer comes before the last of them is there.
#[tokio::test]
async fn each_partition_tells_of_an_offset_that_its_log_does_not_have() {
    const PARTITIONS: i32 = 200;
    let bootstrap = bootstrap();
    let topic = topic(&bootstrap, "edge-offsets", PARTITIONS, &[]).await;
    let mut reader = IntakeReader::new(&settings(&bootstrap, &[]), &topic).unwrap();
    assert_eq!(
        reader.probe().await.map(|found| found.map(|found| found.count)),
        Ok(Some(PARTITIONS))
    );
    reader.assign(&(0..PARTITIONS).map(|partition| (partition, 5)).collect()).unwrap();
    let mut silent: BTreeSet<i32> = (0..PARTITIONS).collect();
    eventually("all partitions tell of it", Duration::from_secs(120), async || {
        silent.retain(|partition| {
            let taken = reader.take(*partition, &mut VecDeque::new(), (1, 1));
            taken != Err(ReadFailure::OutOfRange)
        });
        silent.is_empty()
    })
    .await;
    reader.close().await;
}

/// The client forgets a partition of a topic that it does not know, and the queue with it.
#[tokio::test]
async fn a_partition_of_a_topic_that_is_made_anew_has_its_queue_again() {
    const DEADLINE: Duration = Duration::from_secs(30);
    let bootstrap = bootstrap();
    let topic = topic(&bootstrap, "edge-anew", 1, &[]).await;
    // The client believes at once that a topic is gone.
    let settings = settings(&bootstrap, &[("topic.metadata.propagation.max.ms", "0")]);
    let mut reader = IntakeReader::new(&settings, &topic).unwrap();
    let take = |reader: &IntakeReader| reader.take(0, &mut VecDeque::new(), (1, 1));
    reader.assign(&[(0, 0)].into()).unwrap();
    assert_eq!(take(&reader), Ok(()));
    delete(&bootstrap, &topic).await;
    eventually("the partition is refused", DEADLINE, async || {
        matches!(take(&reader), Err(ReadFailure::Refused { .. }))
    })
    .await;
    // The keeper does so after a refusal, before it asks for the topic.
    reader.assign(&[(0, 5)].into()).unwrap();
    create(&bootstrap, &topic, 1, &[]).await;
    eventually("the partition tells of its offset", DEADLINE, async || {
        take(&reader) == Err(ReadFailure::OutOfRange)
    })
    .await;
    reader.close().await;
}

/// The broker of one reader refuses each fetch, and answers all else. So that reader stands still
/// before the end of its log. The end of the other one's log has no records.
#[tokio::test]
async fn a_reader_that_stands_still_before_the_end_of_a_log_is_outdated_and_an_idle_one_is_not() {
    const DEADLINE: Duration = Duration::from_secs(180);
    let real = bootstrap();
    let topic = topic(&real, "edge-stalled", 2, &[]).await;
    let refusing = MockCluster::new(1).unwrap();
    refusing.create_topic(topic.as_str(), 2, 1).unwrap();
    refusing.request_errors(
        RDKafkaApiKey::Fetch,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR; 1000],
    );
    let [plain, refused] =
        [real.clone(), refusing.bootstrap_servers()].map(|servers| settings(&servers, &[]));
    let mut readers = Vec::new();
    for settings in [&plain, &refused] {
        let mut edge = Edge::new(settings, Mode::Together);
        edge.send(&plain_batch(&topic, 3, 100));
        edge.outcomes(3).await;
        let mut reader = IntakeReader::new(settings, &topic).unwrap();
        reader.assign(&[(0, 0), (1, 0)].into()).unwrap();
        readers.push((reader, VecDeque::new()));
    }
    append_and_abort(&real, &topic).await;

    let began = Instant::now();
    eventually("the reader is outdated", DEADLINE, async || {
        for (reader, taken) in &mut readers {
            assert_eq!(
                reader.probe().await.map(|found| found.map(|found| found.count)),
                Ok(Some(2))
            );
            for partition in [0, 1] {
                assert_eq!(reader.take(partition, taken, (100, 1 << 20)), Ok(()));
            }
        }
        readers[1].0.is_outdated(&refused)
    })
    .await;
    assert!(began.elapsed() >= Duration::from_secs(20), "slow is not stalled");
    assert!(!readers[0].0.is_outdated(&plain), "an idle reader is not stalled");
    assert_eq!(readers.iter().map(|(_, taken)| taken.len()).collect::<Vec<_>>(), [3, 0]);
    for (reader, _) in readers {
        reader.close().await;
    }
}

/// The broker of one member names no coordinator of its group. The other two share a partition, so
/// one of them gets none.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_does_not_join_its_group_is_stalled_and_one_without_a_partition_is_not() {
    const DEADLINE: Duration = Duration::from_secs(180);
    const LOOKS: Duration = Duration::from_secs(40);
    let real = bootstrap();
    let topic = topic(&real, "edge-member", 1, &[]).await;
    let without_coordinator = MockCluster::new(1).unwrap();
    without_coordinator.create_topic(topic.as_str(), 1, 1).unwrap();
    without_coordinator.request_errors(
        RDKafkaApiKey::FindCoordinator,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE; 10_000],
    );
    let group = ConsumerGroup::new(topic.as_str()).unwrap();
    let member =
        |settings: &KafkaSettings| GroupMember::join(settings, &topic, &group).expect("a member");
    let lonely = settings(&without_coordinator.bootstrap_servers(), &[]);
    let outside = member(&lonely);
    let plain = settings(&real, &[]);
    let members = [member(&plain), member(&plain)];

    let stall_of = async |settings: &KafkaSettings, member: &GroupMember, deadline| {
        let stalled = member.stalled(&EndsClient::new(settings));
        tokio::select! {
            stall = tokio::time::timeout(deadline, stalled) => stall.ok(),
            read = member.next() => panic!("read {read:?}"),
        }
    };
    let (outside_stall, first, second) = tokio::join!(
        stall_of(&lonely, &outside, DEADLINE),
        stall_of(&plain, &members[0], LOOKS),
        stall_of(&plain, &members[1], LOOKS),
    );
    assert_eq!(outside_stall, Some(Stall::Group));
    assert_eq!([first, second], [None; 2], "they are members");
    let [first, second] = members;
    tokio::join!(outside.leave(), first.leave(), second.leave());
}

/// Appends to all partitions, in a transaction that is aborted.
async fn append_and_abort(bootstrap: &str, topic: &TopicName) {
    const DEADLINE: Duration = Duration::from_secs(30);
    let (bootstrap, topic) = (bootstrap.to_owned(), topic.clone());
    let append = move || {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &bootstrap)
            .set("transactional.id", topic.as_str())
            .create()
            .unwrap();
        producer.init_transactions(DEADLINE).unwrap();
        producer.begin_transaction().unwrap();
        for partition in [0, 1] {
            let record = BaseRecord::<(), str>::to(topic.as_str()).partition(partition);
            producer.send(record.payload("aborted")).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(DEADLINE).unwrap();
        producer.abort_transaction(DEADLINE).unwrap();
    };
    tokio::task::spawn_blocking(append).await.unwrap();
}
