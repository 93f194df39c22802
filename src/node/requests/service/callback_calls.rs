//! The calls of the service about callbacks, and those of the callbacks themselves.

use super::Service;
use crate::access::permit::{self, Permit};
use crate::domain::TaskId;
use crate::domain::topic::callback::{Callback, StoredCallback};
use crate::node::messages::Unavailable;
use crate::node::messages::answers::{ConsumerCall, Heard, PutCallback, Target};
use crate::node::messages::permitted::TaskPermit;
use crate::node::requests::answers::queue::Holder;

impl Service {
    /// Sets the callback of a topic.
    pub async fn put_callback(
        &self,
        permit: &Permit<permit::SetCallback>,
        callback: Callback,
    ) -> Result<PutCallback, Unavailable> {
        answer_by_model!(self, model => Ok(model.topics.put_callback(permit.topic(), callback)));
        self.opened()?.takes_changes()?.callbacks.put(permit, &callback).await
    }

    /// Returns the callback of a topic.
    pub async fn callback(
        &self,
        permit: &Permit<permit::SetCallback>,
    ) -> Result<Option<StoredCallback>, Unavailable> {
        answer_by_model!(self, model => Ok(model.topics.callback(permit.topic())));
        self.opened()?.callbacks.find(permit).await
    }

    /// Deletes the callback of a topic. Returns it, unless there was none.
    pub async fn delete_callback(
        &self,
        permit: &Permit<permit::SetCallback>,
    ) -> Result<Option<StoredCallback>, Unavailable> {
        answer_by_model!(self, model => Ok(model.topics.delete_callback(permit.topic())));
        self.opened()?.takes_changes()?.callbacks.delete(permit).await
    }

    /// Returns all callbacks of the cluster, for the loop that carries them out.
    pub async fn all_callbacks(&self) -> Result<Vec<StoredCallback>, Unavailable> {
        self.opened()?.callbacks.all().await
    }

    /// Pauses a callback whose service does not want it any more, unless it was changed since.
    /// Returns true if it did.
    pub async fn pause_callback(
        &self,
        stored: &StoredCallback,
        reason: &str,
    ) -> Result<bool, Unavailable> {
        self.opened()?.callbacks.pause(stored, reason).await
    }

    /// Takes the answer of a service about a task. It is taken while the node drains, too: the
    /// service has done the work.
    pub async fn answer_for_callback(
        &self,
        permit: &Permit<permit::Finish>,
        id: TaskId,
        call: ConsumerCall,
    ) -> Result<Heard, Unavailable> {
        let target = Target::Id(TaskPermit::of_topic(permit, id));
        let (calls, holder) = (vec![(target, call)], Some(Holder::Callbacks));
        let heard = self.opened()?.answers.take(calls, holder).await;
        let missing = || Unavailable::Unknown { reason: "no answer was taken".to_owned() };
        heard.into_iter().next().ok_or_else(missing)?
    }
}
