//! Requests of consumer groups.

use std::collections::BTreeMap;
use std::time::Duration;

use az::SaturatingAs as _;
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{
    BrokerId, FindCoordinatorRequest, FindCoordinatorResponse, GroupId, HeartbeatRequest,
    HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse,
    ListGroupsResponse, OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest,
    OffsetFetchResponse, SyncGroupRequest, SyncGroupResponse, TopicName,
};

use super::connection::Call;
use super::groups::{JoinAnswer, JoinRequest, Joined};
use super::records::BrokerError;
use super::requests::text;
use super::state::Broker;
use crate::clock;

/// The type of a coordinator's key that is the id of a transactional producer.
const TRANSACTION: i8 = 1;
const NO_TRANSACTIONS: (ResponseError, &str) = (
    ResponseError::TransactionalIdAuthorizationFailed,
    "the broker of `punctual dev` has no transactions; give it a Kafka with --kafka",
);

/// The partitions that are asked for, by topic.
type Wanted = BTreeMap<String, Vec<i32>>;

impl Broker {
    /// Names this broker. A client that wants the coordinator of transactions gets the reason why
    /// there is none: otherwise it would wait for its transaction to begin.
    pub(super) fn find_coordinator(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: FindCoordinatorRequest = call.read()?;
        let answer = FindCoordinatorResponse::default();
        if request.key_type == TRANSACTION {
            let (error, reason) = (NO_TRANSACTIONS.0.code(), Some(text(NO_TRANSACTIONS.1)));
            if call.version < 4 {
                let answer = answer.with_error_code(error).with_error_message(reason);
                return call.answer(&answer.with_node_id(BrokerId(-1)));
            }
            let of = |key| {
                let coordinator = Coordinator::default().with_key(key).with_node_id(BrokerId(-1));
                coordinator.with_error_code(error).with_error_message(reason.clone())
            };
            let coordinators = request.coordinator_keys.into_iter().map(of).collect();
            return call.answer(&answer.with_coordinators(coordinators));
        }
        if call.version < 4 {
            let answer = answer.with_node_id(self.id()).with_host(self.host());
            return call.answer(&answer.with_port(self.port()));
        }
        let of = |key| {
            Coordinator::default()
                .with_key(key)
                .with_node_id(self.id())
                .with_host(self.host())
                .with_port(self.port())
        };
        let coordinators = request.coordinator_keys.into_iter().map(of).collect();
        call.answer(&answer.with_coordinators(coordinators))
    }

    pub(super) async fn join_group(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: JoinGroupRequest = call.read()?;
        let group = request.group_id.0.to_string();
        let session_timeout = Duration::from_millis(request.session_timeout_ms.saturating_as());
        let wanted = JoinRequest {
            member: request.member_id.to_string(),
            instance: request.group_instance_id.map(|instance| instance.to_string()),
            protocol_type: request.protocol_type.to_string(),
            protocols: request
                .protocols
                .into_iter()
                .map(|protocol| (protocol.name.to_string(), protocol.metadata))
                .collect(),
            session_timeout,
            rebalance_timeout: if call.version == 0 {
                session_timeout
            } else {
                Duration::from_millis(request.rebalance_timeout_ms.saturating_as())
            },
        };
        let member = wanted.member.clone();
        let joining = self.shared.groups.lock().join(&group, wanted, clock::monotonic());
        let joined: JoinAnswer = match joining {
            // A newer join of the same member drops the channel.
            Ok(answer) => {
                answer.await.unwrap_or_else(|_replaced| Err(ResponseError::UnknownMemberId))
            }
            Err(error) => Err(error),
        };
        let answer = JoinGroupResponse::default();
        call.answer(&match joined {
            Ok(joined) => of_joined(answer, joined),
            Err(error) => answer
                .with_error_code(error.code())
                .with_generation_id(-1)
                .with_protocol_name(Some(text("")))
                .with_member_id(text(&member)),
        })
    }

    pub(super) async fn sync_group(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: SyncGroupRequest = call.read()?;
        let assignments = request.assignments.into_iter();
        let assignments =
            assignments.map(|one| (one.member_id.to_string(), one.assignment)).collect();
        let syncing = self.shared.groups.lock().sync(
            request.group_id.0.as_str(),
            (request.member_id.as_str(), request.generation_id),
            assignments,
            clock::monotonic(),
        );
        let synced = match syncing {
            Ok(answer) => answer.await.unwrap_or_else(|_gone| Err(ResponseError::UnknownMemberId)),
            Err(error) => Err(error),
        };
        // Clients check that both names are the group's own.
        let answer = SyncGroupResponse::default()
            .with_protocol_type(request.protocol_type)
            .with_protocol_name(request.protocol_name);
        call.answer(&match synced {
            Ok(assignment) => answer.with_assignment(assignment),
            Err(error) => answer.with_error_code(error.code()),
        })
    }

    pub(super) fn heartbeat(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: HeartbeatRequest = call.read()?;
        let seen = self.shared.groups.lock().heartbeat(
            request.group_id.0.as_str(),
            request.member_id.as_str(),
            request.generation_id,
            clock::monotonic(),
        );
        call.answer(&HeartbeatResponse::default().with_error_code(code_of(seen)))
    }

    pub(super) fn leave_group(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: LeaveGroupRequest = call.read()?;
        let mut groups = self.shared.groups.lock();
        let mut leave = |member: &MemberIdentity| {
            let instance = member.group_instance_id.as_ref().map(|instance| instance.as_str());
            let group = request.group_id.0.as_str();
            code_of(groups.leave(group, member.member_id.as_str(), instance, clock::monotonic()))
        };
        let answer = LeaveGroupResponse::default();
        let answer = if call.version < 3 {
            let member = MemberIdentity::default().with_member_id(request.member_id);
            answer.with_error_code(leave(&member))
        } else {
            let members = request.members.into_iter().map(|member| {
                let code = leave(&member);
                MemberResponse::default()
                    .with_member_id(member.member_id)
                    .with_group_instance_id(member.group_instance_id)
                    .with_error_code(code)
            });
            answer.with_members(members.collect())
        };
        call.answer(&answer)
    }

    pub(super) fn commit_offsets(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: OffsetCommitRequest = call.read()?;
        let group = request.group_id.0.as_str();
        let mut groups = self.shared.groups.lock();
        let allowed = groups.may_commit(
            group,
            request.member_id.as_str(),
            request.generation_id_or_member_epoch,
            clock::monotonic(),
        );
        let code = code_of(allowed);
        let mut responses = Vec::new();
        for topic in request.topics {
            let mut partitions = Vec::new();
            for part in topic.partitions {
                if allowed.is_ok() {
                    let place = (topic.name.0.to_string(), part.partition_index);
                    let metadata = part.committed_metadata.unwrap_or_default().to_string();
                    groups.commit(group, place, (part.committed_offset, metadata));
                }
                partitions.push(
                    OffsetCommitResponsePartition::default()
                        .with_partition_index(part.partition_index)
                        .with_error_code(code),
                );
            }
            responses.push(
                OffsetCommitResponseTopic::default()
                    .with_name(topic.name)
                    .with_partitions(partitions),
            );
        }
        drop(groups);
        call.answer(&OffsetCommitResponse::default().with_topics(responses))
    }

    pub(super) fn fetch_offsets(&self, mut call: Call) -> Result<Bytes, BrokerError> {
        let request: OffsetFetchRequest = call.read()?;
        let answer = OffsetFetchResponse::default();
        if call.version < 8 {
            let asked = request.topics.map(|topics| {
                let of = |name: TopicName, indexes| (name.0.to_string(), indexes);
                topics.into_iter().map(|topic| of(topic.name, topic.partition_indexes)).collect()
            });
            let topics = self.wanted(&request.group_id, asked).into_iter();
            let topics = topics.map(|(topic, partitions)| {
                let found = partitions.into_iter().map(|index| {
                    let (offset, metadata) = self.committed(&request.group_id, &topic, index);
                    OffsetFetchResponsePartition::default()
                        .with_partition_index(index)
                        .with_committed_offset(offset)
                        .with_metadata(Some(text(&metadata)))
                });
                OffsetFetchResponseTopic::default()
                    .with_partitions(found.collect())
                    .with_name(TopicName(text(&topic)))
            });
            return call.answer(&answer.with_topics(topics.collect()));
        }
        let groups = request.groups.into_iter().map(|asked| {
            let wanted = asked.topics.map(|topics| {
                let of = |name: TopicName, indexes| (name.0.to_string(), indexes);
                topics.into_iter().map(|topic| of(topic.name, topic.partition_indexes)).collect()
            });
            let topics = self.wanted(&asked.group_id, wanted).into_iter();
            let topics = topics.map(|(topic, partitions)| {
                let found = partitions.into_iter().map(|index| {
                    let (offset, metadata) = self.committed(&asked.group_id, &topic, index);
                    OffsetFetchResponsePartitions::default()
                        .with_partition_index(index)
                        .with_committed_offset(offset)
                        .with_metadata(Some(text(&metadata)))
                });
                OffsetFetchResponseTopics::default()
                    .with_partitions(found.collect())
                    .with_name(TopicName(text(&topic)))
            });
            let topics = topics.collect();
            OffsetFetchResponseGroup::default().with_group_id(asked.group_id).with_topics(topics)
        });
        call.answer(&answer.with_groups(groups.collect()))
    }

    /// Returns the partitions that are asked for, or all with an offset.
    fn wanted(&self, group: &GroupId, asked: Option<Wanted>) -> Wanted {
        asked.unwrap_or_else(|| {
            let mut all = Wanted::new();
            for (topic, partition) in self.shared.groups.lock().places(group.0.as_str()) {
                all.entry(topic).or_default().push(partition);
            }
            all
        })
    }

    /// Returns the committed offset with its metadata, or -1.
    fn committed(&self, group: &GroupId, topic: &str, partition: i32) -> (i64, String) {
        let groups = self.shared.groups.lock();
        let found = groups.committed(group.0.as_str(), topic, partition);
        found.map_or((-1, String::new()), |(offset, metadata)| (offset, metadata.to_owned()))
    }

    pub(super) fn list_groups(&self, call: Call) -> Result<Bytes, BrokerError> {
        let groups = self.shared.groups.lock().all();
        let listed = groups.into_iter().map(|(name, protocol_type)| {
            ListedGroup::default()
                .with_group_id(GroupId(text(&name)))
                .with_protocol_type(text(&protocol_type))
        });
        call.answer(&ListGroupsResponse::default().with_groups(listed.collect()))
    }
}

fn of_joined(answer: JoinGroupResponse, joined: Joined) -> JoinGroupResponse {
    let members = joined.members.into_iter().map(|member| {
        JoinGroupResponseMember::default()
            .with_member_id(text(&member.id))
            .with_group_instance_id(member.instance.as_deref().map(text))
            .with_metadata(member.metadata)
    });
    answer
        .with_generation_id(joined.generation)
        .with_protocol_type(Some(text(&joined.protocol_type)))
        .with_protocol_name(Some(text(&joined.protocol)))
        .with_leader(text(&joined.leader))
        .with_member_id(text(&joined.member))
        .with_members(members.collect())
}

fn code_of(done: Result<(), ResponseError>) -> i16 {
    done.err().map_or(0, |error| error.code())
}
