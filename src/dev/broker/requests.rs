//! Requests about topics and their records.

use std::time::Duration;

use az::SaturatingAs as _;
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest, DeleteTopicsResponse,
    DescribeClusterResponse, DescribeConfigsRequest, DescribeConfigsResponse, FetchRequest,
    FetchResponse, InitProducerIdResponse, ListOffsetsRequest, ListOffsetsResponse,
    MetadataRequest, MetadataResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
    ProduceRequest, ProduceResponse, ProducerId, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::connection::Call;
use super::records::{self, BrokerError};
use super::state::Broker;
use super::topics::{NotCreated, PARTITIONS_MAX, Partition, Topic};
use crate::clock;
use crate::domain::Timestamp;

/// The only broker. Some clients take 0 for a missing one.
const BROKER: BrokerId = BrokerId(1);
const CLUSTER: StrBytes = StrBytes::from_static_str("punctual-dev");
/// Kafka's own default.
const RECORD_BYTES_MAX: usize = 1_048_588;
/// The types of resources with a configuration.
const TOPIC_RESOURCE: i8 = 2;
const DEFAULT_CONFIG: i8 = 5;
/// The longest wait of a read.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The configuration of every topic.
const TOPIC_CONFIG: [(&str, &str); 5] = [
    ("cleanup.policy", "delete"),
    ("compression.type", "producer"),
    ("max.message.bytes", "1048588"),
    ("message.timestamp.type", "LogAppendTime"),
    ("min.insync.replicas", "1"),
];

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

impl Broker {
    pub(super) fn host(&self) -> StrBytes {
        text(&self.shared.address.ip().to_string())
    }

    pub(super) fn port(&self) -> i32 {
        i32::from(self.shared.address.port())
    }

    pub(super) fn id(&self) -> BrokerId {
        BROKER
    }

    pub(super) fn metadata(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: MetadataRequest = call.read()?;
        let topics = self.shared.topics.lock();
        let shown = match request.topics {
            // Version 0 asks for all topics by an empty list.
            Some(asked) if call.version > 0 || !asked.is_empty() => asked
                .into_iter()
                .map(|asked| {
                    let name = match asked.name {
                        Some(name) => Some(name.0.to_string()),
                        None => topics
                            .iter()
                            .find(|(_, topic)| topic.id == asked.topic_id)
                            .map(|(name, _)| name.to_owned()),
                    };
                    match name.as_deref().map(|name| (name, topics.get(name))) {
                        Some((name, Some(topic))) => described(name, topic),
                        Some((name, None)) => MetadataResponseTopic::default()
                            .with_name(Some(TopicName(text(name))))
                            .with_error_code(ResponseError::UnknownTopicOrPartition.code()),
                        None => MetadataResponseTopic::default()
                            .with_name(None)
                            .with_topic_id(asked.topic_id)
                            .with_error_code(ResponseError::UnknownTopicId.code()),
                    }
                })
                .collect(),
            _ => topics.iter().map(|(name, topic)| described(name, topic)).collect(),
        };
        drop(topics);
        let broker = MetadataResponseBroker::default()
            .with_node_id(BROKER)
            .with_host(self.host())
            .with_port(self.port());
        let answer = MetadataResponse::default()
            .with_brokers(vec![broker])
            .with_cluster_id(Some(CLUSTER))
            .with_controller_id(BROKER)
            .with_topics(shown);
        call.answer(&answer)
    }

    pub(super) fn describe_cluster(&self, call: Call) -> Result<Bytes, BrokerError> {
        let broker = DescribeClusterBroker::default()
            .with_broker_id(BROKER)
            .with_host(self.host())
            .with_port(self.port());
        let answer = DescribeClusterResponse::default()
            .with_cluster_id(CLUSTER)
            .with_controller_id(BROKER)
            .with_brokers(vec![broker]);
        call.answer(&answer)
    }

    /// Appends records. Returns no answer when the producer wants none.
    pub(super) fn produce(&self, mut call: Call) -> Result<Option<Bytes>, BrokerError> {
        let request: ProduceRequest = call.read()?;
        let now = self.now();
        let mut responses = Vec::new();
        for topic in request.topic_data {
            let mut partitions = Vec::new();
            for data in topic.partition_data {
                let records = data.records.unwrap_or_default();
                let response = PartitionProduceResponse::default().with_index(data.index);
                let appended = self.append(topic.name.0.as_str(), data.index, records, now);
                partitions.push(match appended {
                    Ok((first, start)) => response
                        .with_base_offset(first)
                        .with_log_append_time_ms(now.as_millis())
                        .with_log_start_offset(start),
                    Err(error) => response.with_base_offset(-1).with_error_code(error.code()),
                });
            }
            responses.push(
                TopicProduceResponse::default()
                    .with_name(topic.name)
                    .with_partition_responses(partitions),
            );
        }
        self.shared.appends.send_modify(|count| *count += 1);
        if request.acks == 0 {
            return Ok(None);
        }
        call.answer(&ProduceResponse::default().with_responses(responses)).map(Some)
    }

    /// Appends to a partition. Returns the offset of the first record, and of the oldest one.
    fn append(
        &self,
        topic: &str,
        index: i32,
        records: Bytes,
        now: Timestamp,
    ) -> Result<(i64, i64), ResponseError> {
        let batches = records::cut(records).map_err(|_other| ResponseError::CorruptMessage)?;
        if batches.iter().any(|batch| batch.len() > RECORD_BYTES_MAX) {
            return Err(ResponseError::MessageTooLarge);
        }
        let mut topics = self.shared.topics.lock();
        let partition =
            topics.partition_mut(topic, index).ok_or(ResponseError::UnknownTopicOrPartition)?;
        let first = partition.end();
        batches.iter().for_each(|batch| partition.append(batch, now));
        Ok((first, partition.start()))
    }

    /// Reads records, and waits for some while there are none.
    pub(super) async fn fetch(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: FetchRequest = call.read()?;
        let patience = Duration::from_millis(request.max_wait_ms.saturating_as()).min(WAIT_MAX);
        let began_at = clock::monotonic();
        let mut appends = self.shared.appends.subscribe();
        loop {
            appends.mark_unchanged();
            let (responses, is_enough) = self.read(&request);
            let left = patience.saturating_sub(clock::monotonic().since(began_at));
            if is_enough || left.is_zero() {
                return call.answer(&FetchResponse::default().with_responses(responses));
            }
            tokio::select! {
                changed = appends.changed() => changed?,
                () = clock::sleep(left) => {}
            }
        }
    }

    /// Returns the records for a read, and whether they, or an error, are worth an answer now.
    fn read(&self, request: &FetchRequest) -> (Vec<FetchableTopicResponse>, bool) {
        let topics = self.shared.topics.lock();
        let (mut bytes, mut has_error) = (0_usize, false);
        let mut responses = Vec::new();
        let bytes_max = usize::try_from(request.max_bytes).unwrap_or(0);
        for asked in &request.topics {
            let mut partitions = Vec::new();
            for part in &asked.partitions {
                let data = PartitionData::default()
                    .with_partition_index(part.partition)
                    .with_aborted_transactions(None)
                    .with_records(Some(Bytes::new()));
                let found = topics.partition(asked.topic.0.as_str(), part.partition);
                let data = match found {
                    None => failed(data, ResponseError::UnknownTopicOrPartition),
                    Some(log) if !(log.start()..=log.end()).contains(&part.fetch_offset) => {
                        failed(data, ResponseError::OffsetOutOfRange)
                    }
                    Some(log) => {
                        let room = bytes_max.saturating_sub(bytes);
                        let limit = usize::try_from(part.partition_max_bytes).unwrap_or(0);
                        let read = if bytes > 0 && room == 0 {
                            Bytes::new()
                        } else {
                            log.read(part.fetch_offset, limit.min(room))
                        };
                        bytes += read.len();
                        placed(data, log).with_records(Some(read))
                    }
                };
                has_error |= data.error_code != 0;
                partitions.push(data);
            }
            responses.push(
                FetchableTopicResponse::default()
                    .with_topic(asked.topic.clone())
                    .with_partitions(partitions),
            );
        }
        let bytes_min = usize::try_from(request.min_bytes).unwrap_or(0);
        (responses, has_error || bytes >= bytes_min || request.topics.is_empty())
    }

    pub(super) fn list_offsets(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: ListOffsetsRequest = call.read()?;
        let topics = self.shared.topics.lock();
        let mut responses = Vec::new();
        for asked in request.topics {
            let found = asked.partitions.iter().map(|part| {
                let response = ListOffsetsPartitionResponse::default()
                    .with_partition_index(part.partition_index);
                match topics.partition(asked.name.0.as_str(), part.partition_index) {
                    None => response.with_error_code(ResponseError::UnknownTopicOrPartition.code()),
                    Some(log) => {
                        let (at, offset) = offset_of(log, part.timestamp);
                        let epoch = if call.version >= 4 { 0 } else { -1 };
                        response.with_timestamp(at).with_offset(offset).with_leader_epoch(epoch)
                    }
                }
            });
            let partitions = found.collect();
            responses.push(
                ListOffsetsTopicResponse::default()
                    .with_name(asked.name)
                    .with_partitions(partitions),
            );
        }
        drop(topics);
        call.answer(&ListOffsetsResponse::default().with_topics(responses))
    }

    /// Answers where an epoch of a leader ends. There is one epoch, which goes on.
    pub(super) fn end_of_epoch(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: OffsetForLeaderEpochRequest = call.read()?;
        let topics = self.shared.topics.lock();
        let mut responses = Vec::new();
        for asked in request.topics {
            let found = asked.partitions.iter().map(|part| {
                let end = EpochEndOffset::default().with_partition(part.partition);
                match topics.partition(asked.topic.0.as_str(), part.partition) {
                    None => end.with_error_code(ResponseError::UnknownTopicOrPartition.code()),
                    Some(log) => end.with_leader_epoch(0).with_end_offset(log.end()),
                }
            });
            let partitions = found.collect();
            responses.push(
                OffsetForLeaderTopicResult::default()
                    .with_topic(asked.topic)
                    .with_partitions(partitions),
            );
        }
        drop(topics);
        call.answer(&OffsetForLeaderEpochResponse::default().with_topics(responses))
    }

    /// Gives a producer an id. Nothing is remembered of it: duplicates are not detected.
    pub(super) fn init_producer(&self, call: Call) -> Result<Bytes, BrokerError> {
        let id = ProducerId(i64::from(rand::random::<u32>()));
        let answer = InitProducerIdResponse::default().with_producer_id(id).with_producer_epoch(0);
        call.answer(&answer)
    }

    /// Creates topics. Their settings are ignored: all topics have the same.
    pub(super) fn create_topics(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: CreateTopicsRequest = call.read()?;
        let mut topics = self.shared.topics.lock();
        let mut create = |new: CreatableTopic| {
            let name = new.name.0.to_string();
            let partitions = if new.num_partitions == -1 {
                new.assignments.len().max(1)
            } else {
                usize::try_from(new.num_partitions).unwrap_or(0)
            };
            let result = CreatableTopicResult::default().with_name(new.name);
            if request.validate_only {
                return result;
            }
            match topics.create(&name, partitions) {
                Ok(topic) => result
                    .with_topic_id(topic.id)
                    .with_num_partitions(partitions.saturating_as())
                    .with_replication_factor(1),
                Err(reason) => {
                    let (error, detail) = match reason {
                        NotCreated::Exists => (ResponseError::TopicAlreadyExists, None),
                        NotCreated::InvalidName => (ResponseError::InvalidTopicException, None),
                        NotCreated::InvalidPartitions => {
                            let limits = format!(
                                "a topic has at least one partition, and the topics of `punctual \
                                 dev` at most {PARTITIONS_MAX} in all"
                            );
                            (ResponseError::InvalidPartitions, Some(text(&limits)))
                        }
                    };
                    result.with_error_code(error.code()).with_error_message(detail)
                }
            }
        };
        let results = request.topics.into_iter().map(&mut create).collect();
        drop(topics);
        call.answer(&CreateTopicsResponse::default().with_topics(results))
    }

    pub(super) fn delete_topics(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: DeleteTopicsRequest = call.read()?;
        let mut topics = self.shared.topics.lock();
        let delete = |name: TopicName| {
            let is_deleted = topics.delete(name.0.as_str());
            self.shared.groups.lock().forget_topic(name.0.as_str());
            let code = if is_deleted { 0 } else { ResponseError::UnknownTopicOrPartition.code() };
            DeletableTopicResult::default().with_name(Some(name)).with_error_code(code)
        };
        let results = request.topic_names.into_iter().map(delete).collect();
        drop(topics);
        self.shared.appends.send_modify(|count| *count += 1);
        call.answer(&DeleteTopicsResponse::default().with_responses(results))
    }

    pub(super) fn describe_configs(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: DescribeConfigsRequest = call.read()?;
        let topics = self.shared.topics.lock();
        let describe = |resource: DescribeConfigsResource| {
            let result = DescribeConfigsResult::default()
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone());
            if resource.resource_type != TOPIC_RESOURCE {
                return result;
            }
            if topics.get(resource.resource_name.as_str()).is_none() {
                return result
                    .with_error_code(ResponseError::UnknownTopicOrPartition.code())
                    .with_error_message(Some(text("there is no such topic")));
            }
            let keys = resource.configuration_keys.as_ref();
            let is_wanted = |name: &str| {
                keys.is_none_or(|keys| {
                    keys.is_empty() || keys.iter().any(|key| key.as_str() == name)
                })
            };
            let wanted = TOPIC_CONFIG.iter().filter(|(name, _)| is_wanted(name));
            let configs = wanted.map(|(name, value)| {
                DescribeConfigsResourceResult::default()
                    .with_name(text(name))
                    .with_value(Some(text(value)))
                    .with_config_source(DEFAULT_CONFIG)
            });
            result.with_configs(configs.collect())
        };
        let results = request.resources.into_iter().map(describe).collect();
        drop(topics);
        call.answer(&DescribeConfigsResponse::default().with_results(results))
    }
}

fn described(name: &str, topic: &Topic) -> MetadataResponseTopic {
    let partitions = (0..).zip(&topic.partitions).map(|(index, _)| {
        MetadataResponsePartition::default()
            .with_partition_index(index)
            .with_leader_id(BROKER)
            .with_leader_epoch(0)
            .with_replica_nodes(vec![BROKER])
            .with_isr_nodes(vec![BROKER])
    });
    MetadataResponseTopic::default()
        .with_name(Some(TopicName(text(name))))
        .with_topic_id(topic.id)
        .with_partitions(partitions.collect())
}

fn failed(data: PartitionData, error: ResponseError) -> PartitionData {
    data.with_error_code(error.code()).with_high_watermark(-1)
}

fn placed(data: PartitionData, log: &Partition) -> PartitionData {
    data.with_high_watermark(log.end())
        .with_last_stable_offset(log.end())
        .with_log_start_offset(log.start())
}

/// Returns the timestamp and the offset for a timestamp of a request. Negative ones have meanings
/// of their own: -1 the end, -2 the start, -3 the record with the latest timestamp.
fn offset_of(log: &Partition, timestamp: i64) -> (i64, i64) {
    let found = match timestamp {
        -1 => return (-1, log.end()),
        -2 => return (-1, log.start()),
        -3 => log.last(),
        at => log.first_since(Timestamp::from_millis(at)),
    };
    found.map_or((-1, -1), |batch| (batch.appended_at.as_millis(), batch.first))
}
