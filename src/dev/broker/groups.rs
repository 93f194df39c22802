//! Consumer groups, by Kafka's classic protocol: members join, the leader assigns, all sync.
//!
//! ```text
//!             join                all have joined            the leader syncs
//!   empty ----------> joining ------------------> syncing --------------------> stable
//!                        ^    (or their time is over) |                            |
//!                        |          join, leave, a member whose session has ended  |
//!                        +---------------------------------------------------------+
//! ```
//!
//! A join and a sync are answered when the whole group is ready. Their answers travel through a
//! channel, because other members, or the time, complete them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::ResponseError;
use tokio::sync::oneshot;

use crate::domain::Monotonic;

/// Groups that the broker keeps.
const GROUPS_MAX: usize = 1_000;

/// The answer to a join. Only the leader is told the members, each with its metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    pub generation: i32,
    pub protocol_type: String,
    pub protocol: String,
    pub leader: String,
    pub member: String,
    pub members: Vec<JoinedMember>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinedMember {
    pub id: String,
    pub instance: Option<String>,
    pub metadata: Bytes,
}

/// A request to join. An empty `member` asks for an id.
#[derive(Clone, Debug)]
pub struct JoinRequest {
    pub member: String,
    pub instance: Option<String>,
    pub protocol_type: String,
    /// Names with metadata, the preferred one first.
    pub protocols: Vec<(String, Bytes)>,
    pub session_timeout: Duration,
    pub rebalance_timeout: Duration,
}

pub type JoinAnswer = Result<Joined, ResponseError>;
pub type SyncAnswer = Result<Bytes, ResponseError>;

#[derive(Debug, Default)]
pub struct Groups {
    groups: BTreeMap<String, Group>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Empty,
    Joining {
        since: Monotonic,
    },
    Syncing,
    Stable,
}

#[derive(Debug, Default)]
struct Group {
    phase: Phase,
    generation: i32,
    protocol_type: String,
    protocol: String,
    leader: String,
    members: BTreeMap<String, Member>,
    /// Committed offsets with their metadata, by topic and partition.
    offsets: BTreeMap<(String, i32), (i64, String)>,
}

#[derive(Debug)]
struct Member {
    request: JoinRequest,
    seen_at: Monotonic,
    assignment: Bytes,
    joining: Option<oneshot::Sender<JoinAnswer>>,
    syncing: Option<oneshot::Sender<SyncAnswer>>,
}

impl Groups {
    /// Lets a member join. The answer comes when all members have joined.
    ///
    /// # Errors
    /// When the group cannot take the member.
    pub fn join(
        &mut self,
        group: &str,
        request: JoinRequest,
        now: Monotonic,
    ) -> Result<oneshot::Receiver<JoinAnswer>, ResponseError> {
        self.group_mut(group)?.join(request, now)
    }

    /// Asks for the assignment of a member of a generation. The leader's request brings the
    /// assignments of all.
    ///
    /// # Errors
    /// When the member has to join again.
    pub fn sync(
        &mut self,
        group: &str,
        (member, generation): (&str, i32),
        assignments: Vec<(String, Bytes)>,
        now: Monotonic,
    ) -> Result<oneshot::Receiver<SyncAnswer>, ResponseError> {
        let group = self.groups.get_mut(group).ok_or(ResponseError::UnknownMemberId)?;
        group.sync(member, generation, assignments, now)
    }

    /// Records that a member lives.
    ///
    /// # Errors
    /// When the member has to join again.
    pub fn heartbeat(
        &mut self,
        group: &str,
        member: &str,
        generation: i32,
        now: Monotonic,
    ) -> Result<(), ResponseError> {
        let group = self.groups.get_mut(group).ok_or(ResponseError::UnknownMemberId)?;
        group.seen(member, generation, now)?;
        match group.phase {
            Phase::Joining { .. } => Err(ResponseError::RebalanceInProgress),
            Phase::Empty | Phase::Syncing | Phase::Stable => Ok(()),
        }
    }

    /// Takes a member, or the one with this instance id, out of its group.
    ///
    /// # Errors
    /// When there is no such member.
    pub fn leave(
        &mut self,
        group: &str,
        member: &str,
        instance: Option<&str>,
        now: Monotonic,
    ) -> Result<(), ResponseError> {
        let group = self.groups.get_mut(group).ok_or(ResponseError::UnknownMemberId)?;
        let id = match instance.and_then(|instance| group.of_instance(instance)) {
            Some(id) => id,
            None => member.to_owned(),
        };
        group.members.remove(&id).ok_or(ResponseError::UnknownMemberId)?;
        group.rebalance(now);
        Ok(())
    }

    /// Checks that offsets may be committed by this member, or by a consumer without a membership
    /// (with a negative generation).
    ///
    /// # Errors
    /// When the member is not one of this generation.
    pub fn may_commit(
        &mut self,
        group: &str,
        member: &str,
        generation: i32,
        now: Monotonic,
    ) -> Result<(), ResponseError> {
        let group = self.group_mut(group)?;
        if generation < 0 && group.members.is_empty() {
            return Ok(());
        }
        group.seen(member, generation, now)
    }

    pub fn commit(&mut self, group: &str, place: (String, i32), offset: (i64, String)) {
        if let Some(group) = self.groups.get_mut(group) {
            group.offsets.insert(place, offset);
        }
    }

    pub fn committed(&self, group: &str, topic: &str, partition: i32) -> Option<(i64, &str)> {
        let offsets = &self.groups.get(group)?.offsets;
        let (offset, metadata) = offsets.get(&(topic.to_owned(), partition))?;
        Some((*offset, metadata.as_str()))
    }

    /// Returns the places for which the group has committed an offset.
    pub fn places(&self, group: &str) -> Vec<(String, i32)> {
        let group = self.groups.get(group);
        group.map(|group| group.offsets.keys().cloned().collect()).unwrap_or_default()
    }

    /// Returns all groups, each with the type of its protocol.
    pub fn all(&self) -> Vec<(String, String)> {
        let groups = self.groups.iter();
        groups.map(|(name, group)| (name.clone(), group.protocol_type.clone())).collect()
    }

    /// Forgets the offsets of a deleted topic: another one may get its name.
    pub fn forget_topic(&mut self, topic: &str) {
        for group in self.groups.values_mut() {
            group.offsets.retain(|(of, _partition), _| of != topic);
        }
    }

    /// Ends sessions and joins whose time is over.
    pub fn tick(&mut self, now: Monotonic) {
        self.groups.values_mut().for_each(|group| group.tick(now));
    }

    fn group_mut(&mut self, group: &str) -> Result<&mut Group, ResponseError> {
        if group.is_empty() {
            return Err(ResponseError::InvalidGroupId);
        }
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(group) {
            self.forget_one()?;
        }
        Ok(self.groups.entry(group.to_owned()).or_default())
    }

    /// Makes room for another group: removes one without members, preferably one without offsets.
    fn forget_one(&mut self) -> Result<(), ResponseError> {
        let idle = self.groups.iter().filter(|(_, group)| group.members.is_empty());
        let least = idle.min_by_key(|(_, group)| group.offsets.len());
        let name = least.map(|(name, _)| name.clone()).ok_or(ResponseError::GroupMaxSizeReached)?;
        self.groups.remove(&name);
        Ok(())
    }
}

impl Group {
    fn join(
        &mut self,
        mut request: JoinRequest,
        now: Monotonic,
    ) -> Result<oneshot::Receiver<JoinAnswer>, ResponseError> {
        let replaced = request.instance.as_deref().and_then(|instance| self.of_instance(instance));
        if let Some(replaced) = replaced.filter(|replaced| *replaced != request.member) {
            self.members.remove(&replaced);
        }
        let others = || self.members.iter().filter(|(id, _)| **id != request.member);
        let is_alone = others().next().is_none();
        let is_shared = |name: &String| others().all(|(_, other)| other.supports(name));
        if !request.protocols.iter().any(|(name, _)| is_shared(name))
            || !is_alone && request.protocol_type != self.protocol_type
        {
            return Err(ResponseError::InconsistentGroupProtocol);
        }
        if request.member.is_empty() {
            request.member = format!("member-{:032x}", rand::random::<u128>());
        }
        self.protocol_type.clone_from(&request.protocol_type);
        let (sender, answer) = oneshot::channel();
        let member = Member {
            seen_at: now,
            assignment: Bytes::new(),
            joining: Some(sender),
            syncing: None,
            request,
        };
        self.members.insert(member.request.member.clone(), member);
        self.rebalance(now);
        Ok(answer)
    }

    fn sync(
        &mut self,
        member: &str,
        generation: i32,
        assignments: Vec<(String, Bytes)>,
        now: Monotonic,
    ) -> Result<oneshot::Receiver<SyncAnswer>, ResponseError> {
        self.seen(member, generation, now)?;
        if matches!(self.phase, Phase::Empty | Phase::Joining { .. }) {
            return Err(ResponseError::RebalanceInProgress);
        }
        if self.phase == Phase::Syncing && member == self.leader {
            for (id, assignment) in assignments {
                if let Some(member) = self.members.get_mut(&id) {
                    member.assignment = assignment;
                }
            }
            self.phase = Phase::Stable;
        }
        let (sender, answer) = oneshot::channel();
        if let Some(member) = self.members.get_mut(member) {
            member.syncing = Some(sender);
        }
        if self.phase == Phase::Stable {
            self.members.values_mut().for_each(|member| {
                let assignment = member.assignment.clone();
                send(&mut member.syncing, Ok(assignment));
            });
        }
        Ok(answer)
    }

    /// Begins a rebalance unless one is under way, and completes it when all members have joined.
    fn rebalance(&mut self, now: Monotonic) {
        if !matches!(self.phase, Phase::Joining { .. }) {
            self.phase = Phase::Joining { since: now };
        }
        for member in self.members.values_mut() {
            send(&mut member.syncing, Err(ResponseError::RebalanceInProgress));
        }
        if self.members.is_empty() {
            self.phase = Phase::Empty;
        } else if self.members.values().all(|member| member.joining.is_some()) {
            self.complete(now);
        }
    }

    fn complete(&mut self, now: Monotonic) {
        if !self.members.contains_key(&self.leader) {
            self.leader = self.members.keys().next().cloned().unwrap_or_default();
        }
        let Some(leader) = self.members.get(&self.leader) else { return };
        let is_shared = |name: &&String| self.members.values().all(|member| member.supports(name));
        let names = leader.request.protocols.iter().map(|(name, _)| name);
        self.protocol = names.clone().find(is_shared).cloned().unwrap_or_default();
        self.generation += 1;
        self.phase = Phase::Syncing;
        let all: Vec<JoinedMember> = self
            .members
            .values()
            .map(|member| JoinedMember {
                id: member.request.member.clone(),
                instance: member.request.instance.clone(),
                metadata: member.metadata(&self.protocol),
            })
            .collect();
        for (id, member) in &mut self.members {
            member.seen_at = now;
            member.assignment = Bytes::new();
            let joined = Joined {
                generation: self.generation,
                protocol_type: self.protocol_type.clone(),
                protocol: self.protocol.clone(),
                leader: self.leader.clone(),
                member: id.clone(),
                members: if *id == self.leader { all.clone() } else { Vec::new() },
            };
            send(&mut member.joining, Ok(joined));
        }
    }

    fn tick(&mut self, now: Monotonic) {
        let count = self.members.len();
        let patience = self.members.values().map(|member| member.request.rebalance_timeout).max();
        let is_over = matches!((self.phase, patience), (Phase::Joining { since }, Some(patience))
            if now.since(since) >= patience);
        // A member that waits for an answer sends no heartbeats.
        self.members.retain(|_, member| {
            let has_lapsed = now.since(member.seen_at) >= member.request.session_timeout;
            member.joining.is_some() || !is_over && (member.syncing.is_some() || !has_lapsed)
        });
        if self.members.len() < count {
            self.rebalance(now);
        }
    }

    fn seen(&mut self, member: &str, generation: i32, now: Monotonic) -> Result<(), ResponseError> {
        let member = self.members.get_mut(member).ok_or(ResponseError::UnknownMemberId)?;
        if generation != self.generation {
            return Err(ResponseError::IllegalGeneration);
        }
        member.seen_at = now;
        Ok(())
    }

    fn of_instance(&self, instance: &str) -> Option<String> {
        let mut members = self.members.iter();
        let found = members.find(|(_, one)| one.request.instance.as_deref() == Some(instance));
        found.map(|(id, _)| id.clone())
    }
}

impl Member {
    fn supports(&self, protocol: &str) -> bool {
        self.request.protocols.iter().any(|(name, _)| name == protocol)
    }

    fn metadata(&self, protocol: &str) -> Bytes {
        let mut protocols = self.request.protocols.iter();
        let found = protocols.find(|(name, _)| name == protocol);
        found.map(|(_, metadata)| metadata.clone()).unwrap_or_default()
    }
}

/// Sends an answer that somebody may wait for. A caller that is gone needs none.
fn send<T>(waiting: &mut Option<oneshot::Sender<T>>, answer: T) {
    if let Some(waiting) = waiting.take() {
        waiting.send(answer).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    fn request(member: &str, metadata: &'static str) -> JoinRequest {
        JoinRequest {
            member: member.to_owned(),
            instance: None,
            protocol_type: "consumer".to_owned(),
            protocols: vec![("range".to_owned(), Bytes::from_static(metadata.as_bytes()))],
            session_timeout: Duration::from_secs(10),
            rebalance_timeout: Duration::from_secs(30),
        }
    }

    fn ready<T>(mut answer: oneshot::Receiver<T>) -> T {
        answer.try_recv().unwrap()
    }

    fn assignments(of: &[(&str, &'static str)]) -> Vec<(String, Bytes)> {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        of.iter().map(|(id, text)| ((*id).to_owned(), bytes(text))).collect()
    }

    /// A group in which `a` is the only member, and stable.
    fn group_of_a() -> Groups {
        let mut groups = Groups::default();
        let joined = ready(groups.join("g", request("a", "of a"), at(0)).unwrap()).unwrap();
        assert_eq!((joined.generation, joined.leader.as_str()), (1, "a"));
        assert_eq!(joined.members.len(), 1);
        let synced = groups.sync("g", ("a", 1), assignments(&[("a", "all")]), at(0)).unwrap();
        assert_eq!(ready(synced).unwrap(), "all");
        groups
    }

    #[test]
    fn a_second_member_rebalances_the_group() {
        let mut groups = group_of_a();
        let mut second = groups.join("g", request("b", "of b"), at(1)).unwrap();
        assert!(second.try_recv().is_err());
        let told = groups.heartbeat("g", "a", 1, at(1));
        assert_eq!(told, Err(ResponseError::RebalanceInProgress));
        let first = ready(groups.join("g", request("a", "of a"), at(1)).unwrap()).unwrap();
        let second = ready(second).unwrap();
        assert_eq!((first.members.len(), second.members.len()), (2, 0));
        assert_eq!((second.generation, second.leader.as_str()), (2, "a"));
        let mut waits = groups.sync("g", ("b", 2), Vec::new(), at(1)).unwrap();
        assert!(waits.try_recv().is_err());
        let halves = assignments(&[("a", "0-1"), ("b", "2-3")]);
        assert_eq!(ready(groups.sync("g", ("a", 2), halves, at(1)).unwrap()).unwrap(), "0-1");
        assert_eq!(ready(waits).unwrap(), "2-3");
        assert_eq!(groups.heartbeat("g", "b", 2, at(2)), Ok(()));
        assert_eq!(groups.heartbeat("g", "b", 1, at(2)), Err(ResponseError::IllegalGeneration));
    }

    #[test]
    fn a_member_that_left_or_lapsed_is_not_waited_for() {
        let mut groups = group_of_a();
        let mut second = groups.join("g", request("b", "of b"), at(1)).unwrap();
        groups.tick(at(9));
        assert!(second.try_recv().is_err());
        groups.tick(at(10));
        let alone = ready(second).unwrap();
        assert_eq!((alone.leader.as_str(), alone.members.len()), ("b", 1));
        assert_eq!(groups.heartbeat("g", "a", 1, at(11)), Err(ResponseError::UnknownMemberId));
        groups.leave("g", "b", None, at(11)).unwrap();
        assert_eq!(groups.leave("g", "b", None, at(11)), Err(ResponseError::UnknownMemberId));
        let again = ready(groups.join("g", request("", "of c"), at(12)).unwrap()).unwrap();
        assert!(again.member.starts_with("member-") && again.leader == again.member);
    }

    #[test]
    fn an_instance_takes_the_place_of_its_predecessor() {
        let mut groups = Groups::default();
        let of_instance =
            |member| JoinRequest { instance: Some("one".to_owned()), ..request(member, "") };
        ready(groups.join("g", of_instance("a"), at(0)).unwrap()).unwrap();
        let next = ready(groups.join("g", of_instance("b"), at(1)).unwrap()).unwrap();
        assert_eq!((next.leader.as_str(), next.members.len()), ("b", 1));
        groups.leave("g", "", Some("one"), at(2)).unwrap();
        assert_eq!(groups.heartbeat("g", "b", 2, at(2)), Err(ResponseError::UnknownMemberId));
    }

    #[test]
    fn offsets_belong_to_the_group_and_foreign_members_cannot_commit() {
        let mut groups = group_of_a();
        assert_eq!(groups.may_commit("g", "a", 1, at(1)), Ok(()));
        assert_eq!(groups.may_commit("g", "x", 1, at(1)), Err(ResponseError::UnknownMemberId));
        assert_eq!(groups.may_commit("alone", "", -1, at(1)), Ok(()));
        groups.commit("alone", ("demo".to_owned(), 2), (17, "mine".to_owned()));
        assert_eq!(groups.committed("alone", "demo", 2), Some((17, "mine")));
        assert_eq!(groups.committed("g", "demo", 2), None);
        assert_eq!(groups.places("alone"), [("demo".to_owned(), 2)]);
    }

    #[test]
    fn a_topic_that_is_made_anew_has_no_offsets_of_the_former_one() {
        let mut groups = Groups::default();
        groups.may_commit("g", "", -1, at(0)).unwrap();
        for topic in ["demo", "other"] {
            groups.commit("g", (topic.to_owned(), 0), (3, String::new()));
        }
        groups.forget_topic("demo");
        assert_eq!(groups.places("g"), [("other".to_owned(), 0)]);
    }

    #[test]
    fn beyond_the_limit_a_new_group_takes_the_place_of_one_without_members() {
        let mut groups = group_of_a();
        groups.may_commit("kept", "", -1, at(0)).unwrap();
        groups.commit("kept", ("demo".to_owned(), 0), (3, String::new()));
        for number in 0..GROUPS_MAX {
            groups.may_commit(&format!("{number}"), "", -1, at(0)).unwrap();
        }
        assert_eq!(groups.all().len(), GROUPS_MAX);
        assert_eq!(groups.heartbeat("g", "a", 1, at(1)), Ok(()));
        assert_eq!(groups.committed("kept", "demo", 0), Some((3, "")));
    }

    #[test]
    fn a_member_without_a_common_protocol_is_refused() {
        let mut groups = group_of_a();
        let mut other = request("b", "");
        other.protocols[0].0 = "sticky".to_owned();
        assert_eq!(
            groups.join("g", other, at(1)).unwrap_err(),
            ResponseError::InconsistentGroupProtocol
        );
    }
}
