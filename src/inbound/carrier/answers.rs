//! Carries out answers of consumers: finish, fail and extend.

use std::collections::{HashSet, VecDeque};
use std::slice;

use super::{Answer, Carried, Carrier, Stop, TRIES_MAX, stop_of};
use crate::api::inbound;
use crate::node::messages::Unavailable;
use crate::node::messages::answers::{Heard, Target};
use crate::node::requests::answers::steps;
use crate::node::requests::moving;
use crate::node::requests::postgres_failures::refusal_of;
use crate::postgres::PostgresError;
use crate::postgres::inbound::{InboundAnswers, ItemKey, StoreError, StorePrecondition};
use crate::postgres::tasks::answers::{AnswerCall, Answered};

/// The right to answer, as the audit trail names all three calls.
const ACTION: &str = "finish";

impl Carrier {
    /// Takes answers in their order. An answer that changes nothing is found by halves, and taken
    /// alone. Answers that must be stored in their order are stored up to the first that is
    /// refused.
    pub async fn answer(
        &mut self,
        precondition: &mut StorePrecondition,
        answers: Vec<(ItemKey, Answer)>,
        carried: &mut Carried,
    ) -> Result<(), Stop> {
        let rejected_before = carried.rejected.len();
        let mut pieces = VecDeque::from([answers.as_slice()]);
        while let Some(piece) = pieces.pop_front() {
            if carried.is_over() {
                carried.left.extend(piece.iter().map(|(item, _answer)| item.seq));
            } else if let [answer] = piece {
                self.answer_one(precondition, answer, carried).await?;
                if precondition.is_ordered() && carried.rejected.len() > rejected_before {
                    return Ok(());
                }
            } else if !self.answer_together(precondition, piece, carried).await? {
                let (first, rest) = piece.split_at(piece.len() / 2);
                pieces.push_front(rest);
                pieces.push_front(first);
            }
        }
        Ok(())
    }

    /// Takes answers in one transaction. Returns false when one of them would not change its task,
    /// or another cannot be taken together with it: then none is taken.
    async fn answer_together(
        &mut self,
        precondition: &mut StorePrecondition,
        answers: &[(ItemKey, Answer)],
        carried: &mut Carried,
    ) -> Result<bool, Stop> {
        let calls = self.calls_of(answers).await?;
        let calls: Option<Vec<AnswerCall>> = calls.into_iter().collect();
        let Some(calls) = calls else { return Ok(false) };
        let mut firsts = HashSet::with_capacity(calls.len());
        if !calls.iter().all(|call| firsts.insert(call.first)) {
            return Ok(false);
        }
        let items: Vec<ItemKey> = answers.iter().map(|(item, _answer)| *item).collect();
        let terms = steps::terms(&self.shared);
        let all: Vec<&AnswerCall> = calls.iter().collect();
        match self.store.answer(precondition, &items, &all, terms).await {
            Ok(InboundAnswers { are_stored: true, answers }) => {
                precondition.stored(&items);
                carried.stored += items.len();
                for call in &calls {
                    self.changed(call, answers.get(&call.first), carried);
                }
                Ok(true)
            }
            Ok(InboundAnswers { are_stored: false, .. }) => Ok(false),
            Err(StoreError::Postgres(
                PostgresError::GaveWay { .. } | PostgresError::BadValue { .. },
            )) => Ok(false),
            Err(error) => {
                carried.failed(ACTION, items.len(), &error);
                Err(error.into())
            }
        }
    }

    /// Takes one answer. An answer that changes nothing is refused as REST refuses it, or done.
    async fn answer_one(
        &mut self,
        precondition: &mut StorePrecondition,
        given: &(ItemKey, Answer),
        carried: &mut Carried,
    ) -> Result<(), Stop> {
        let (item, Answer { target, .. }) = given;
        let item = *item;
        let is_id = matches!(target, Target::Id(_));
        for _try in 0..TRIES_MAX {
            let call = self.calls_of(slice::from_ref(given)).await?.pop().flatten();
            let Some(call) = call else {
                return self.verdict(precondition, (item, is_id), Heard::NotFound, carried).await;
            };
            let terms = steps::terms(&self.shared);
            match self.store.answer(precondition, &[item], &[&call], terms).await {
                Ok(InboundAnswers { are_stored: true, answers }) => {
                    precondition.stored(&[item]);
                    carried.stored += 1;
                    self.changed(&call, answers.get(&call.first), carried);
                    return Ok(());
                }
                Ok(InboundAnswers { are_stored: false, mut answers }) => {
                    let by = target.principal();
                    let answered = answers.remove(&call.first);
                    let heard = steps::heard(&self.look_up, None, (&call, by), answered).await;
                    match heard.map_err(stop_of_unavailable)? {
                        Some(heard) => {
                            return self.verdict(precondition, (item, is_id), heard, carried).await;
                        }
                        None => moving::pause().await,
                    }
                }
                Err(StoreError::Postgres(error)) if error.gave_way_to_others() => {}
                Err(StoreError::Postgres(error @ PostgresError::BadValue { .. })) => {
                    return carried.refuse(item, inbound::of_service(refusal_of(&error)));
                }
                Err(error) => {
                    carried.failed(ACTION, 1, &error);
                    return Err(error.into());
                }
            }
        }
        Err(Stop::later("other requests kept moving the task that a consumer answers for"))
    }

    /// Notes an answer that is done without a change, and refuses any other as REST does. `is_id`
    /// tells how its task was named.
    async fn verdict(
        &mut self,
        precondition: &mut StorePrecondition,
        (item, is_id): (ItemKey, bool),
        heard: Heard,
        carried: &mut Carried,
    ) -> Result<(), Stop> {
        match inbound::of_heard(heard, is_id) {
            Ok(()) => {
                self.note(precondition, item).await?;
                carried.stored += 1;
                Ok(())
            }
            Err(refused) => carried.refuse(item, refused),
        }
    }

    fn changed(&self, call: &AnswerCall, answered: Option<&Answered>, carried: &mut Carried) {
        steps::observe(&self.shared, call, answered);
        if let Some(view) = answered.and_then(|answered| answered.view.as_deref()) {
            carried.turn.changed(ACTION, &view.topic, Some(call.first));
        }
    }

    /// Returns the calls of answers. `None` for a name without a task.
    async fn calls_of(
        &self,
        answers: &[(ItemKey, Answer)],
    ) -> Result<Vec<Option<AnswerCall>>, Stop> {
        let targets: Vec<&Target> = answers.iter().map(|(_item, answer)| &answer.target).collect();
        let ids = steps::ids_of(&self.names, &self.look_up, &targets).await;
        let ids = ids.map_err(stop_of_unavailable)?;
        let unknown = || Stop::later("the time of the cluster is unknown");
        let arrived_at = self.shared.clock.arrival().ok_or_else(unknown)?;
        let mut calls = Vec::with_capacity(answers.len());
        for ((_item, answer), id) in answers.iter().zip(ids) {
            let principal = self.shared.callers.of(answer.target.principal()).await?;
            calls.push(id.map(|first| AnswerCall {
                principal,
                topic: answer.target.topic().cloned(),
                ..steps::call_of(first, answer.call.clone(), arrived_at)
            }));
        }
        Ok(calls)
    }
}

fn stop_of_unavailable(unavailable: Unavailable) -> Stop {
    stop_of(inbound::of_unavailable(unavailable))
}
