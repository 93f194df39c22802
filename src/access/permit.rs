//! Permits: proofs that the rights of a caller were checked.
//!
//! The service of the node takes a permit for each call that needs a right, and a permit comes only
//! out of a successful check. So a handler without the check does not compile. Only this file makes
//! permits for topics. The topic of a task with a given id is known only after a look-up, so
//! `node::messages::permitted` makes the permit for such a task, from a permit of this file.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use super::action::Action;
use super::principal::{Caller, Principal};
use crate::domain::TopicName;

/// Actions on a topic, as a type. A caller needs all of them.
pub trait Right {
    const ACTIONS: &'static [Action];
}

macro_rules! rights {
    ($($right:ident),*) => {$(
        /// The right to the action of this name: see [`Action`].
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $right {}

        impl Right for $right {
            const ACTIONS: &'static [Action] = &[Action::$right];
        }
    )*};
}

rights!(Submit, Cancel, Read, ReadPayload, Finish, Redrive, Drop, Schedule, Operate);

/// The right to take tasks for a consumer, with their records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pop {}

impl Right for Pop {
    const ACTIONS: &'static [Action] = &[Action::Pop, Action::ReadPayload];
}

/// The right to have a service get all tracked tasks of a topic, with their records, and answer for
/// its consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetCallback {}

impl Right for SetCallback {
    const ACTIONS: &'static [Action] = &[Action::Callback, Action::ReadPayload];
}

/// The right to move tasks to another due time: to cancel them, and to submit others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {}

impl Right for Move {
    const ACTIONS: &'static [Action] = &[Action::Cancel, Action::Submit];
}

/// The caller lacks the right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied(pub Action);

/// The proof that a caller has some right on a topic. Every permit on a topic is one.
#[derive(Clone, Debug)]
pub struct Grant {
    principal: Arc<Principal>,
    topic: TopicName,
}

impl Grant {
    fn new(caller: &Caller, actions: &[Action], topic: &TopicName) -> Result<Self, Denied> {
        let lacks = |action: &&Action| !caller.principal.rights.allows(**action, topic);
        if let Some(action) = actions.iter().find(lacks) {
            return Err(Denied(*action));
        }
        Ok(Self { principal: caller.principal.clone(), topic: topic.clone() })
    }

    /// Returns the caller whose rights were checked.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// Returns the checked topic. The node takes the topic from here where possible, so that no
    /// other topic is used.
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// Returns true when the caller may see the keys, headers and payloads of the topic.
    pub fn shows_records(&self) -> bool {
        let allows = |action| self.principal.rights.allows(action, &self.topic);
        allows(Action::Read) && allows(Action::ReadPayload)
    }
}

/// The proof that a caller may do `R` to the tasks of a topic.
#[derive(Clone, Debug)]
pub struct Permit<R> {
    grant: Grant,
    right: PhantomData<R>,
}

impl<R: Right> Permit<R> {
    pub fn on(caller: &Caller, topic: &TopicName) -> Result<Self, Denied> {
        Ok(Self { grant: Grant::new(caller, R::ACTIONS, topic)?, right: PhantomData })
    }
}

/// The proof that a caller may replace tasks of a topic: cancel some, and submit others.
#[derive(Clone, Debug)]
pub struct ReplacePermit {
    grant: Grant,
}

impl ReplacePermit {
    pub fn on(caller: &Caller, topic: &TopicName) -> Result<Self, Denied> {
        Grant::new(caller, &[Action::Submit], topic)?;
        Ok(Self { grant: Grant::new(caller, &[Action::Cancel], topic)? })
    }
}

/// The proof that a caller may do `R` to many tasks of a topic, or only count them.
#[derive(Clone, Debug)]
pub struct BulkPermit<R> {
    grant: Grant,
    is_dry_run: bool,
    right: PhantomData<R>,
}

impl<R: Right> BulkPermit<R> {
    /// Checks `R`, or for a dry run [`Action::Read`].
    pub fn on(caller: &Caller, topic: &TopicName, is_dry_run: bool) -> Result<Self, Denied> {
        let actions: &[Action] = if is_dry_run { &[Action::Read] } else { R::ACTIONS };
        let grant = Grant::new(caller, actions, topic)?;
        Ok(Self { grant, is_dry_run, right: PhantomData })
    }

    /// True when nothing may be changed.
    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }
}

/// The proof that a caller may cancel many tasks of one topic or of all topics, or only count them.
#[derive(Clone, Debug)]
pub struct CancelManyPermit {
    principal: Arc<Principal>,
    /// `None` for all topics.
    grant: Option<Grant>,
    is_dry_run: bool,
}

impl CancelManyPermit {
    /// Checks [`Action::Cancel`], or for a dry run [`Action::Read`], on the topic. Without a topic,
    /// checks the right on `*`.
    pub fn on(
        caller: &Caller,
        topic: Option<&TopicName>,
        is_dry_run: bool,
    ) -> Result<Self, Denied> {
        let action = Self::action(is_dry_run);
        let grant = topic.map(|topic| Grant::new(caller, &[action], topic)).transpose()?;
        if grant.is_none() && !caller.principal.rights.allows_everywhere(action) {
            return Err(Denied(action));
        }
        Ok(Self { principal: caller.principal.clone(), grant, is_dry_run })
    }

    const fn action(is_dry_run: bool) -> Action {
        if is_dry_run { Action::Read } else { Action::Cancel }
    }

    /// Returns the caller whose rights were checked.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// Returns the permit for its topic, unless it is for all topics.
    pub fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// True when nothing may be changed.
    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    /// Returns true for the topics whose tasks may be cancelled, or counted. `*` does not include
    /// topics whose names begin with `_`, so every single task is to be asked for.
    pub fn covers(&self, topic: &TopicName) -> bool {
        match &self.grant {
            Some(grant) => grant.topic == *topic,
            None => self.principal.rights.allows(Self::action(self.is_dry_run), topic),
        }
    }
}

impl<R> Deref for Permit<R> {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.grant
    }
}

impl<R> Deref for BulkPermit<R> {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.grant
    }
}

impl Deref for ReplacePermit {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.grant
    }
}

/// The proof that a caller may see the tasks of one topic, or of all topics.
#[derive(Clone, Debug)]
pub struct ListPermit {
    principal: Arc<Principal>,
    /// `None` for all topics.
    grant: Option<Grant>,
}

impl ListPermit {
    /// Checks [`Action::Read`] on the topic, or without one on `*`.
    pub fn on(caller: &Caller, topic: Option<&TopicName>) -> Result<Self, Denied> {
        let grant = topic.map(|topic| Grant::new(caller, &[Action::Read], topic)).transpose()?;
        if grant.is_none() && !caller.principal.rights.allows_everywhere(Action::Read) {
            return Err(Denied(Action::Read));
        }
        Ok(Self { principal: caller.principal.clone(), grant })
    }

    /// Returns the caller whose rights were checked.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// Returns the permit for its topic, unless it is for all topics.
    pub fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Returns true for the topics whose tasks may be shown. `*` does not include topics whose
    /// names begin with `_`, so every single task of a list is to be asked for.
    pub fn covers(&self, topic: &TopicName) -> bool {
        match &self.grant {
            Some(grant) => grant.topic == *topic,
            None => self.principal.rights.allows(Action::Read, topic),
        }
    }
}

/// The proof that a caller may see the state of the cluster.
#[derive(Clone, Debug)]
pub struct OperatePermit {
    principal: Arc<Principal>,
}

impl OperatePermit {
    pub fn of(caller: &Caller) -> Result<Self, Denied> {
        let principal = caller.principal.clone();
        if principal.rights.operates() {
            Ok(Self { principal })
        } else {
            Err(Denied(Action::Operate))
        }
    }

    /// Returns the caller whose rights were checked.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::pattern::Pattern;
    use crate::access::rights::{Rights, Rule};

    fn caller(actions: &[Action], topic: &str) -> Caller {
        let topics = vec![Pattern::new(topic).unwrap()];
        Caller::anonymous(Rights::new(&[Rule { actions: actions.to_vec(), topics }], &[], false))
    }

    fn topics<const N: usize>(names: [&str; N]) -> [TopicName; N] {
        names.map(|name| TopicName::new(name).unwrap())
    }

    #[test]
    fn a_permit_comes_out_of_a_check_of_its_own_action_and_topic() {
        let [orders, other] = topics(["orders", "other"]);
        let caller = caller(&[Action::Cancel], "orders");
        let permit = Permit::<Cancel>::on(&caller, &orders).unwrap();
        assert_eq!((permit.topic(), permit.principal()), (&orders, &caller.principal));
        assert_eq!(Permit::<Cancel>::on(&caller, &other).unwrap_err(), Denied(Action::Cancel));
        assert_eq!(Permit::<Submit>::on(&caller, &orders).unwrap_err(), Denied(Action::Submit));
        assert_eq!(OperatePermit::of(&caller).unwrap_err(), Denied(Action::Operate));
    }

    #[test]
    fn a_replacement_needs_both_rights() {
        let [orders] = topics(["orders"]);
        let replace =
            |actions: &[Action]| ReplacePermit::on(&caller(actions, "orders"), &orders).map(drop);
        assert_eq!(replace(&[Action::Submit]), Err(Denied(Action::Cancel)));
        assert_eq!(replace(&[Action::Cancel]), Err(Denied(Action::Submit)));
        assert_eq!(replace(&[Action::Cancel, Action::Submit]), Ok(()));
    }

    #[test]
    fn a_move_needs_both_rights() {
        let [orders] = topics(["orders"]);
        let permit =
            |actions: &[Action]| Permit::<Move>::on(&caller(actions, "orders"), &orders).map(drop);
        assert_eq!(permit(&[Action::Submit]), Err(Denied(Action::Cancel)));
        assert_eq!(permit(&[Action::Cancel]), Err(Denied(Action::Submit)));
        assert_eq!(permit(&[Action::Cancel, Action::Submit]), Ok(()));
    }

    #[test]
    fn many_tasks_are_changed_by_the_right_to_it_and_counted_by_the_right_to_read() {
        let [orders] = topics(["orders"]);
        let bulk = |action, is_dry_run| {
            let permit =
                BulkPermit::<Cancel>::on(&caller(&[action], "orders"), &orders, is_dry_run);
            permit.map(|permit| permit.is_dry_run())
        };
        assert_eq!(bulk(Action::Cancel, false), Ok(false));
        assert_eq!(bulk(Action::Cancel, true), Err(Denied(Action::Read)));
        assert_eq!(bulk(Action::Read, true), Ok(true));
        assert_eq!(bulk(Action::Read, false), Err(Denied(Action::Cancel)));
    }

    #[test]
    fn a_cancel_without_a_topic_needs_the_right_everywhere_and_leaves_out_hidden_topics() {
        let [orders, schemas] = topics(["orders", "_schemas"]);
        let on =
            |caller: &Caller, topic, is_dry_run| CancelManyPermit::on(caller, topic, is_dry_run);
        let all = caller(&[Action::Cancel], "*");
        let permit = on(&all, None, false).unwrap();
        assert!(permit.covers(&orders) && !permit.covers(&schemas) && permit.grant().is_none());
        assert_eq!(on(&all, None, true).map(drop), Err(Denied(Action::Read)));
        let one = caller(&[Action::Cancel, Action::Read], "orders");
        assert_eq!(on(&one, None, false).map(drop), Err(Denied(Action::Cancel)));
        assert_eq!(on(&one, None, true).map(drop), Err(Denied(Action::Read)));
        let permit = on(&one, Some(&orders), true).unwrap();
        assert!(permit.covers(&orders) && !permit.covers(&schemas) && permit.is_dry_run());
        assert!(on(&one, Some(&schemas), false).is_err());
    }

    #[test]
    fn a_list_of_all_topics_leaves_out_the_hidden_ones_unless_they_are_written_out() {
        let [orders, schemas] = topics(["orders", "_schemas"]);
        let all = caller(&[Action::Read], "*");
        let permit = ListPermit::on(&all, None).unwrap();
        assert!(permit.covers(&orders) && !permit.covers(&schemas) && permit.grant().is_none());
        assert!(ListPermit::on(&all, Some(&schemas)).is_err());
        let one = caller(&[Action::Read], "_schemas");
        assert!(ListPermit::on(&one, None).is_err());
        let permit = ListPermit::on(&one, Some(&schemas)).unwrap();
        assert!(permit.covers(&schemas) && !permit.covers(&orders));
        let everybody = Caller::anonymous(Rights::everything());
        assert!(ListPermit::on(&everybody, None).unwrap().covers(&schemas));
    }
}
