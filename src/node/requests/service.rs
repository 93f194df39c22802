//! The service that a node offers to its API.

pub mod callbacks;
pub mod look_up_limit;
#[cfg(test)]
pub mod model;
pub mod pops;
pub mod reporter;
pub mod schedules;
pub mod stored_tasks;
pub mod submitter;
pub mod topics;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::callbacks::CallbackService;
use self::pops::PopService;
use self::reporter::Reporter;
use self::schedules::ScheduleService;
use self::stored_tasks::StoredTasks;
use self::submitter::{Submitter, unanswered};
use self::topics::TopicService;
use super::answers::Answers;
use super::bulk::Bulks;
use super::lists::Lists;
use crate::access::permit::{
    self, Cancel, Grant, ListPermit, Move, OperatePermit, Permit, Read, ReplacePermit,
};
use crate::clock;
use crate::domain::topic::policy::{StoredTopic, TopicChange};
use crate::domain::{
    List, NewTask, Page, PendingState, Precondition, Selection, TaskName, TaskView, Timestamp,
    TopicName,
};
use crate::kafka::LookUpError;
use crate::node::messages::answers::{ConsumerCall, Heard, Target};
use crate::node::messages::answers::{PopCall, Popped};
use crate::node::messages::permitted::{PermittedDraft, TaskPermit};
use crate::node::messages::{
    CancelVerdict, ChangedTopic, ClusterView, Due, MoveVerdict, NotReady, PageRange, PendingCounts,
    Placed, Refusal, Requirement, SubmitAnswer, TopicView, Unavailable,
};
use crate::node::shared::NodeShared;

/// How long an answer waits to learn whether Kafka has its topic. A submit waits as long.
const TOPIC_ASIDE_MAX: Duration = Duration::from_secs(3);

/// The service of a node for the API. Opens when the node has found all servers. Cheap to clone.
///
/// A call that needs a right takes the proof of the check:
///
/// ```
/// use punctual::access::permit::Cancel;
/// use punctual::node::messages::permitted::TaskPermit;
/// use punctual::node::requests::service::Service;
///
/// async fn cancel(service: &Service, permit: &TaskPermit<Cancel>) {
///     drop(service.cancel(permit).await);
/// }
/// ```
///
/// A forgotten check does not compile:
///
/// ```compile_fail
/// use punctual::domain::TaskId;
/// use punctual::node::requests::service::Service;
///
/// async fn cancel(service: &Service, id: &TaskId) {
///     drop(service.cancel(id).await);
/// }
/// ```
///
/// Neither does the check of another right:
///
/// ```compile_fail
/// use punctual::access::permit::Read;
/// use punctual::node::messages::permitted::TaskPermit;
/// use punctual::node::requests::service::Service;
///
/// async fn cancel(service: &Service, permit: &TaskPermit<Read>) {
///     drop(service.cancel(permit).await);
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Service {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// Set once the service is open.
    parts: OnceLock<Parts>,
    /// The requirements for which the node waits while it starts.
    starting: Mutex<Vec<NotReady>>,
    /// Tests of the API need no servers.
    #[cfg(test)]
    model: Option<Arc<model::Model>>,
}

impl Default for State {
    fn default() -> Self {
        let starting = NotReady { what: Requirement::Postgres, why: "not reached yet".to_owned() };
        Self {
            parts: OnceLock::new(),
            starting: Mutex::new(vec![starting]),
            #[cfg(test)]
            model: None,
        }
    }
}

/// The parts of an open service.
#[derive(Debug)]
pub struct Parts {
    pub shared: Arc<NodeShared>,
    pub submitter: Submitter,
    pub stored: StoredTasks,
    pub lists: Lists,
    pub bulks: Bulks,
    pub answers: Answers,
    pub pops: PopService,
    pub callbacks: CallbackService,
    pub schedules: ScheduleService,
    pub topics: TopicService,
    pub reporter: Reporter,
    pub draining: CancellationToken,
}

impl Parts {
    fn takes_changes(&self) -> Result<&Self, Unavailable> {
        if self.draining.is_cancelled() { Err(Unavailable::Draining) } else { Ok(self) }
    }
}

/// The node is still starting, and this is the reason.
struct Starting {
    reason: String,
}

impl From<Starting> for Refusal {
    fn from(Starting { reason }: Starting) -> Self {
        Self::ServerAway { reason }
    }
}

impl From<Starting> for Unavailable {
    fn from(Starting { reason }: Starting) -> Self {
        Self::ServerAway { reason }
    }
}

/// Lets the model answer a method of a service that has one. Only tests have a model.
macro_rules! answer_by_model {
    ($self:ident, $model:ident => $answer:expr) => {
        #[cfg(test)]
        if let Some($model) = &$self.state.model {
            return $answer;
        }
    };
}

// The modules use the macro, so they are declared behind it.
mod callback_calls;
mod many;
mod schedule_calls;

impl Service {
    /// Shows the requirements for which the node waits while it starts.
    pub fn waits_for(&self, missing: Vec<NotReady>) {
        *self.state.starting.lock() = missing;
    }

    /// Opens the service. Only one call is allowed.
    pub fn open(&self, parts: Parts) {
        assert!(self.state.parts.set(parts).is_ok(), "a node starts once");
    }

    #[cfg(test)]
    pub fn of_model(model: Arc<model::Model>) -> Self {
        Self { state: Arc::new(State { model: Some(model), ..State::default() }) }
    }

    /// Returns the parts of the service, or the missing requirements while the node starts.
    fn opened(&self) -> Result<&Parts, Starting> {
        self.state.parts.get().ok_or_else(|| {
            let missing: Vec<String> =
                self.missing().into_iter().map(|missing| missing.to_string()).collect();
            Starting { reason: format!("the node is starting ({})", missing.join("; ")) }
        })
    }

    /// Returns the upper bound of the cluster's clock for a request that arrives now: its `delay`
    /// counts from this time. Returns `None` while the time is not known.
    pub fn arrival(&self) -> Option<Timestamp> {
        answer_by_model!(self, model => model.arrival());
        self.state.parts.get()?.shared.clock.arrival()
    }

    /// Returns a lower bound of the cluster's time. Before the first answer of Postgres, it is that
    /// of this machine.
    pub fn now(&self) -> Timestamp {
        answer_by_model!(self, model => model.arrival().unwrap_or_else(clock::wall));
        match self.state.parts.get() {
            Some(parts) => parts.shared.clock.now_or_wall(),
            None => clock::wall(),
        }
    }

    /// Has the loops look now for due tasks, and for schedules whose runs are to be made: a dev
    /// server sets the clock ahead.
    pub fn wake_loops(&self) {
        if let Some(parts) = self.state.parts.get() {
            parts.shared.sweep();
            parts.shared.calls.runs.notify_one();
        }
    }

    /// Stores the task of a request that arrived at `arrived_at`.
    pub async fn submit(
        &self,
        draft: PermittedDraft,
        arrived_at: Option<Timestamp>,
    ) -> SubmitAnswer {
        answer_by_model!(self, model => model.submit(draft).await);
        let parts = self.opened()?;
        let mut answers = [unanswered()];
        parts.submitter.admit([draft], arrived_at, &mut answers).await;
        let [answer] = answers;
        answer
    }

    /// Stores the tasks of a request that arrived at `arrived_at`. Each draft comes with a value of
    /// the caller, returned with the answer.
    pub async fn submit_many<T>(
        &self,
        drafts: Vec<(T, PermittedDraft)>,
        arrived_at: Option<Timestamp>,
    ) -> Vec<(T, SubmitAnswer)> {
        answer_by_model!(self, model => model.submit_many(drafts).await);
        let (callers, drafts): (Vec<T>, Vec<PermittedDraft>) = drafts.into_iter().unzip();
        let mut answers = vec![unanswered(); drafts.len()];
        match self.opened() {
            Ok(parts) => {
                parts.submitter.admit(drafts, arrived_at, &mut answers).await;
            }
            Err(starting) => answers.fill(Err(starting.into())),
        }
        callers.into_iter().zip(answers).collect()
    }

    /// Checks a draft as a submit does, and stores nothing: an outbox stores tasks in one
    /// transaction with their rows.
    pub async fn check(
        &self,
        draft: PermittedDraft,
        arrived_at: Option<Timestamp>,
    ) -> Result<NewTask, Refusal> {
        let (draft, permit) = draft.into_parts();
        let parts = self.opened()?;
        let draft = parts.submitter.with_policy(&permit.principal().name, draft);
        parts.submitter.check_one(&permit.principal().name, draft, arrived_at).await
    }

    /// Replaces the task of a name by a draft with that name, if `condition` allows it.
    pub async fn replace(
        &self,
        permit: &ReplacePermit,
        draft: PermittedDraft,
        condition: &Precondition,
        arrived_at: Option<Timestamp>,
    ) -> Result<Placed, Refusal> {
        let (draft, _submit) = draft.into_parts();
        debug_assert_eq!(permit.topic(), &draft.record.topic);
        answer_by_model!(self, model => model.replace(draft, condition).await);
        let parts = self.opened()?;
        let draft = parts.submitter.with_policy(&permit.principal().name, draft);
        let placed =
            match parts.submitter.check_one(&permit.principal().name, draft, arrived_at).await {
                Ok(task) => {
                    parts.stored.put_in_place(&permit.principal().name, task, condition).await
                }
                Err(refusal) => Err(refusal),
            };
        parts.submitter.count_refused(&[permit.topic().clone()], std::slice::from_ref(&placed));
        placed
    }

    /// Moves a task to another due time, under the same id.
    pub async fn move_to(
        &self,
        permit: &TaskPermit<Move>,
        due: Due,
        arrived_at: Option<Timestamp>,
    ) -> Result<MoveVerdict, Refusal> {
        answer_by_model!(self, model => model.move_to(permit.id(), due));
        let parts = self.opened()?;
        let topic = match permit.topic() {
            // The task of a caller with all rights was not looked up.
            None if parts.shared.policies.has_any() => parts.stored.topic_of(permit.id()).await?,
            topic => topic.cloned(),
        };
        let due_at = parts.submitter.due_at_of(topic.as_ref(), due, arrived_at)?;
        parts.stored.move_to(permit, due_at).await
    }

    /// Moves the task of a name to another due time, if `condition` allows it. The request arrived
    /// at the second part of `due`.
    pub async fn move_named(
        &self,
        permit: &Permit<Move>,
        name: &TaskName,
        condition: &Precondition,
        due: (Due, Option<Timestamp>),
    ) -> Result<MoveVerdict, Refusal> {
        answer_by_model!(self, model => model.move_named(permit.topic(), name, condition, due.0));
        let parts = self.opened()?;
        let due_at = parts.submitter.due_at_of(Some(permit.topic()), due.0, due.1)?;
        parts.stored.move_by_name(permit, name, condition, due_at).await
    }

    /// Cancels a task.
    pub async fn cancel(&self, permit: &TaskPermit<Cancel>) -> Result<CancelVerdict, Unavailable> {
        answer_by_model!(self, model => model.cancel(permit.id()).await);
        self.opened()?.takes_changes()?.stored.cancel_by_id(permit).await
    }

    /// Cancels the task of a name, if `condition` allows it.
    pub async fn cancel_named(
        &self,
        permit: &Permit<Cancel>,
        name: &TaskName,
        condition: &Precondition,
    ) -> Result<CancelVerdict, Unavailable> {
        answer_by_model!(self, model => model.cancel_named(permit.topic(), name, condition).await);
        self.opened()?.takes_changes()?.stored.cancel_by_name(permit, name, condition).await
    }

    /// Takes the answers of consumers about tracked tasks. The results are in their order.
    pub async fn answer(
        &self,
        calls: Vec<(Target, ConsumerCall)>,
    ) -> Vec<Result<Heard, Unavailable>> {
        answer_by_model!(self, model => model.answer(calls));
        let parts = match self.opened().map_err(Unavailable::from).and_then(Parts::takes_changes) {
            Ok(parts) => parts,
            Err(unavailable) => return vec![Err(unavailable); calls.len()],
        };
        parts.answers.take(calls, None).await
    }

    /// Waits for tasks of a topic for a consumer without Kafka, until `ending` at most.
    pub async fn pop(
        &self,
        permit: &Permit<permit::Pop>,
        call: PopCall,
        ending: &CancellationToken,
    ) -> Result<Vec<Popped>, Unavailable> {
        answer_by_model!(self, model => model.pop(permit.topic(), call, ending).await);
        self.opened()?.takes_changes()?.pops.pop(permit, call, ending).await
    }

    /// Returns the task of a name.
    pub async fn look_up_named(
        &self,
        permit: &Permit<Read>,
        name: &TaskName,
    ) -> Result<Option<TaskView>, Unavailable> {
        answer_by_model!(self, model => model.look_up_named(permit.topic(), name).await);
        self.opened()?.stored.by_name(permit, name).await
    }

    /// Returns the topic of a permit.
    pub async fn topic(
        &self,
        permit: &ListPermit,
        topic: &TopicName,
    ) -> Result<TopicView, Unavailable> {
        debug_assert_eq!(permit.grant().map(Grant::topic), Some(topic));
        answer_by_model!(self, model => Ok(model.topics.find(topic).into()));
        let parts = self.opened()?;
        let stored = parts.topics.find(permit.principal(), topic).await?;
        let pending = Box::pin(parts.lists.counts(permit, None)).await?.pending;
        Ok(TopicView {
            stored,
            pending: Some(pending),
            in_flight: Some(parts.topics.in_flight(permit.principal(), topic).await?),
            unavailable: parts.reporter.unavailable(topic),
        })
    }

    /// Lists topics that have pending tasks, dead letters, a policy or a pause, in the order of
    /// their names: at most `limit`, after a name.
    pub async fn topics(
        &self,
        permit: &ListPermit,
        after: Option<&TopicName>,
        limit: usize,
    ) -> Result<Vec<TopicView>, Unavailable> {
        answer_by_model!(self, model => Ok(model.topics.list(permit, after, limit)));
        let parts = self.opened()?;
        let counted = Box::pin(parts.lists.topic_counts(permit)).await?;
        let stored = parts.topics.all_or_former(permit.principal()).await?;
        let dead = parts.lists.dead_topics(permit.principal(), after).await?;
        let mut topics: BTreeMap<TopicName, TopicView> = BTreeMap::new();
        topics.extend(counted.into_iter().map(|(topic, figure)| {
            let stored = StoredTopic::plain(topic.clone());
            (topic, TopicView { pending: Some(figure), ..stored.into() })
        }));
        for topic in dead.into_iter().filter(|topic| permit.covers(topic)) {
            let stored = StoredTopic::plain(topic.clone());
            topics.entry(topic).or_insert_with(|| stored.into());
        }
        for stored in stored.into_iter().filter(|stored| permit.covers(&stored.topic)) {
            let listed = topics.get(&stored.topic);
            // A former policy or pause does not list a topic, but has its revision.
            if listed.is_some() || stored.has_any() {
                let pending = listed.and_then(|topic| topic.pending);
                topics.insert(stored.topic.clone(), TopicView { pending, ..stored.into() });
            }
        }
        let is_next = |topic: &TopicView| after.is_none_or(|after| topic.stored.topic > *after);
        let mut page: Vec<TopicView> = topics.into_values().filter(is_next).take(limit).collect();
        for topic in &mut page {
            topic.unavailable = parts.reporter.unavailable(&topic.stored.topic);
        }
        Ok(page)
    }

    /// Changes the policy of a topic, or pauses or resumes it.
    pub async fn change_topic(
        &self,
        permit: &Permit<permit::Operate>,
        change: TopicChange,
    ) -> Result<ChangedTopic, Unavailable> {
        answer_by_model!(self, model => Ok(model.topics.change(permit.topic(), change)));
        let parts = self.opened()?.takes_changes()?;
        let is_pause = change.is_paused == Some(true);
        if let Some(refusal) = parts.submitter.old_nodes(&change) {
            return Err(Unavailable::ServerAway { reason: refusal });
        }
        let changed = parts.topics.change(permit, change).await?;
        // The pause is committed, whatever becomes of the count.
        let in_flight = match is_pause {
            true => parts.topics.in_flight(permit.principal(), permit.topic()).await.ok(),
            false => None,
        };
        Ok(ChangedTopic { changed, in_flight })
    }

    /// Lists pending tasks, or dead letters, in the order of their due times.
    pub async fn list(
        &self,
        permit: &ListPermit,
        list: List,
        selection: &Selection,
        range: PageRange,
    ) -> Result<Page, Unavailable> {
        debug_assert_eq!(permit.grant().map(Grant::topic), selection.topic.as_ref());
        let mut page = self.page(permit, list, selection, range).await?;
        page.tasks.retain(|task| permit.covers(&task.topic));
        Ok(page)
    }

    async fn page(
        &self,
        permit: &ListPermit,
        list: List,
        selection: &Selection,
        range: PageRange,
    ) -> Result<Page, Unavailable> {
        answer_by_model!(self, model => {
            model.list(list, selection, range.from, range.limit).await
        });
        self.opened()?.lists.list(permit.principal(), list, selection, range).await
    }

    /// Returns the number of pending tasks, of one topic or of all that the caller may see.
    pub async fn counts(
        &self,
        permit: &ListPermit,
        state: Option<PendingState>,
    ) -> Result<PendingCounts, Unavailable> {
        answer_by_model!(self, model => model.counts(permit, state).await);
        self.opened()?.lists.counts(permit, state).await
    }

    /// Returns whether the topic of a grant exists, after a request that found no task: Kafka has
    /// the topic, or there are tasks or dead letters. `None` means unknown. `searched` is a list
    /// that was searched for the topic without any other filter, and has no entry.
    pub async fn knows_topic(&self, grant: &Grant, searched: Option<List>) -> Option<bool> {
        answer_by_model!(self, model => model.knows_topic(grant.topic()));
        if self.kafka_has_topic(grant).await? {
            return Some(true);
        }
        let lists = &self.opened().ok()?.lists;
        Box::pin(lists.have_topic(grant, searched)).await
    }

    /// Returns true when the node may have had to do with a topic that Kafka lacks: its records
    /// fail now, it had a policy or a pause, or a count of all tasks has some of it. A failed
    /// search proves nothing.
    pub async fn may_have_topic(&self, grant: &Grant) -> bool {
        let topic = grant.topic();
        answer_by_model!(self, model => model.knows_topic(topic) == Some(true));
        let Ok(parts) = self.opened() else { return true };
        parts.reporter.unavailable(topic).is_some()
            || parts.topics.had_policy(grant).await.unwrap_or(true)
            || Box::pin(parts.lists.counts_topic(grant)).await.unwrap_or(true)
    }

    /// Returns whether Kafka has the topic of a grant. `None` means unknown: the caller is at the
    /// limit of look-ups, or Kafka gave no answer in time, or does not let this node see the topic.
    pub async fn kafka_has_topic(&self, grant: &Grant) -> Option<bool> {
        let topic = grant.topic();
        answer_by_model!(self, model => model.kafka_has_topic(topic));
        let Submitter { topics, look_up_limit, .. } = &self.opened().ok()?.submitter;
        let known = match topics.cached(topic) {
            Some(known) => known,
            None => {
                // The time is short, because the question is an aside of another answer.
                let look_up = tokio::time::timeout(TOPIC_ASIDE_MAX, topics.look_up(topic));
                look_up_limit.within(&grant.principal().name, look_up).await?.ok()?
            }
        };
        match known {
            Ok(_facts) => Some(true),
            Err(LookUpError::Unknown) => Some(false),
            Err(
                LookUpError::Denied { .. } | LookUpError::Unavailable { .. } | LookUpError::Busy,
            ) => None,
        }
    }

    /// Returns the cluster as this node sees it.
    ///
    /// # Errors
    /// While the node starts and knows nothing of the cluster.
    pub async fn cluster(&self, permit: &OperatePermit) -> Result<ClusterView, Unavailable> {
        tracing::debug!(principal = %permit.principal().name, "the state of the cluster is shown");
        answer_by_model!(self, model => Ok(model.cluster()));
        Ok(self.opened()?.reporter.view().await)
    }

    /// Returns the requirements that the node lacks to be ready. The list is empty when the node is
    /// ready.
    pub fn missing(&self) -> Vec<NotReady> {
        answer_by_model!(self, model => model.missing());
        match self.state.parts.get() {
            Some(parts) => parts.reporter.missing(),
            None => self.state.starting.lock().clone(),
        }
    }

    pub fn is_draining(&self) -> bool {
        answer_by_model!(self, model => model.is_draining());
        self.state.parts.get().is_some_and(|parts| parts.draining.is_cancelled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Caller, Rights};

    #[tokio::test]
    async fn a_starting_service_names_its_missing_requirements() {
        let service = Service::default();
        let why = "no route".to_owned();
        service.waits_for(vec![NotReady { what: Requirement::Kafka, why }]);
        let reason = "the node is starting (kafka: no route)".to_owned();
        let permit = ListPermit::on(&Caller::anonymous(Rights::everything()), None).unwrap();
        assert_eq!(service.counts(&permit, None).await, Err(Unavailable::ServerAway { reason }));
        assert!(!service.is_draining() && service.arrival().is_none());
    }
}
