//! Permits: proofs that the rights of a caller were checked.
//!
//! The node takes a permit for each call, and a permit comes only out of a successful check. So a
//! handler that forgets to check does not compile. The constructors here are the only ones.

use std::marker::PhantomData;
use std::sync::Arc;

use super::action::Action;
use super::principal::{Caller, Principal};
use super::rights::Rights;
use crate::domain::TopicName;

/// An action, as a type.
pub trait Right {
    const ACTION: Action;
}

macro_rules! rights {
    ($($right:ident),*) => {$(
        /// The right to the action of this name: see [`Action`].
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $right {}

        impl Right for $right {
            const ACTION: Action = Action::$right;
        }
    )*};
}

rights!(Submit, Cancel, Read, Redrive, Drop, Operate);

/// The proof that a caller may do `R` to the tasks of a topic, or of all topics.
#[derive(Clone, Debug)]
pub struct Permit<R> {
    principal: Arc<Principal>,
    /// `None` for all topics.
    topic: Option<TopicName>,
    right: PhantomData<R>,
}

/// The caller lacks the right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied(pub Action);

impl<R: Right> Permit<R> {
    /// Checks the right on one topic.
    pub fn on(caller: &Caller, topic: &TopicName) -> Result<Self, Denied> {
        let is_allowed = caller.principal.rights.allows(R::ACTION, topic);
        Self::of(caller, Some(topic.clone()), is_allowed)
    }

    /// Checks the right on `*`. Topics whose names begin with `_` are not included: the caller of
    /// this function leaves out what [`Rights::allows`] does not allow.
    pub fn everywhere(caller: &Caller) -> Result<Self, Denied> {
        Self::of(caller, None, caller.principal.rights.allows_everywhere(R::ACTION))
    }

    /// Returns a permit for all topics without exception, if the caller has every right there is.
    /// Then no task must be looked up to know its topic.
    pub fn unlimited(caller: &Caller) -> Option<Self> {
        let is_unlimited = *caller.principal.rights == Rights::everything();
        Self::of(caller, None, is_unlimited).ok()
    }

    fn of(caller: &Caller, topic: Option<TopicName>, is_allowed: bool) -> Result<Self, Denied> {
        let permit = || Self { principal: caller.principal.clone(), topic, right: PhantomData };
        if is_allowed { Ok(permit()) } else { Err(Denied(R::ACTION)) }
    }

    /// Returns the caller whose rights were checked.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// Returns true when the permit is for this topic. The node asserts it in debug builds: the
    /// topic that was checked is the one that is used.
    pub fn covers(&self, topic: &TopicName) -> bool {
        self.topic.as_ref().is_none_or(|permitted| permitted == topic)
    }

    /// Returns a permit for all topics, for tests of the node.
    #[cfg(test)]
    pub fn for_tests() -> Self {
        let caller = Caller::anonymous(Rights::everything());
        Self { principal: caller.principal, topic: None, right: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::pattern::Pattern;
    use crate::access::rights::Rule;

    fn caller(actions: &[Action], topic: &str) -> Caller {
        let topics = vec![Pattern::new(topic).unwrap()];
        Caller::anonymous(Rights::new(&[Rule { actions: actions.to_vec(), topics }], &[], false))
    }

    #[test]
    fn a_permit_comes_out_of_a_check_of_its_own_action_and_topic() {
        let [orders, other] = ["orders", "other"].map(|name| TopicName::new(name).unwrap());
        let caller = caller(&[Action::Cancel], "orders");
        let permit = Permit::<Cancel>::on(&caller, &orders).unwrap();
        assert!(permit.covers(&orders) && !permit.covers(&other));
        assert_eq!(Permit::<Cancel>::on(&caller, &other).unwrap_err(), Denied(Action::Cancel));
        assert_eq!(Permit::<Submit>::on(&caller, &orders).unwrap_err(), Denied(Action::Submit));
        assert!(Permit::<Cancel>::everywhere(&caller).is_err());
        assert!(Permit::<Cancel>::unlimited(&caller).is_none());
    }

    #[test]
    fn a_star_is_everywhere_but_not_without_a_limit() {
        let all = caller(&Action::ON_TOPICS, "*");
        assert!(Permit::<Read>::everywhere(&all).is_ok());
        assert!(Permit::<Read>::unlimited(&all).is_none());
        assert!(Permit::<Operate>::everywhere(&all).is_err());
        assert!(Permit::<Operate>::unlimited(&Caller::anonymous(Rights::everything())).is_some());
    }
}
