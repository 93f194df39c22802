//! The right that an operation needs.

use crate::access::permit::{Move, Right as _};
use crate::access::{Action, Rights};

/// The rights to move a task to another due time.
pub const MOVE_RIGHTS: &[Action] = Move::ACTIONS;

/// The right that an operation needs, and where its topic comes from. There is no default, so an
/// operation without one does not compile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Everybody may, without a credential: probes, and the documents of the interface.
    Open,
    /// Every identified caller may.
    Known,
    /// Callers who operate the cluster may.
    Operate,
    /// The caller names one topic, in the path or the body, and needs all of these rights on it.
    OnTopic(&'static [Action]),
    /// Each task of the body names its topic. Tasks without the right are refused alone.
    EachItem(Action),
    /// Each item of the body names a task, by its id or by its topic and name. Items without the
    /// right are refused alone.
    EachTask(Action),
    /// The caller gives the id of a task, and needs all of these rights. Without the rights, there
    /// is no such task for the caller.
    OnTask(&'static [Action]),
    /// A topic is optional. Without one, the right is needed on `*`.
    OnTopicOrAll(Action),
    /// Many tasks of the topic in the body, which needs all of these rights. A dry run needs
    /// [`Action::Read`] instead.
    OnMany(&'static [Action]),
}

impl Access {
    /// Returns the action that rules out every call of the operation, because the rights allow it
    /// on no topic at all. Then the answer needs neither the body nor a look-up.
    pub fn ruled_out(self, rights: &Rights) -> Option<Action> {
        let lacks = |action: Action| !rights.allows_anywhere(action);
        match self {
            Self::Open | Self::Known => None,
            Self::Operate => (!rights.operates()).then_some(Action::Operate),
            Self::OnTopic(actions) | Self::OnTask(actions) => {
                actions.iter().copied().find(|action| lacks(*action))
            }
            Self::EachItem(action) | Self::EachTask(action) | Self::OnTopicOrAll(action) => {
                Some(action).filter(|action| lacks(*action))
            }
            Self::OnMany(actions) => actions
                .iter()
                .copied()
                .find(|action| lacks(*action))
                .filter(|_action| lacks(Action::Read)),
        }
    }

    /// Returns true when calls of the operation may change tasks, unless they are a GET.
    pub fn changes(self) -> bool {
        match self {
            Self::Open | Self::Known | Self::Operate | Self::OnTopicOrAll(_) => false,
            Self::OnTopic(actions) | Self::OnTask(actions) => {
                actions.iter().any(|action| *action != Action::Read)
            }
            Self::EachItem(_) | Self::EachTask(_) | Self::OnMany(_) => true,
        }
    }

    /// Returns true when calls of the operation show tasks and change none.
    pub fn reads(self) -> bool {
        matches!(self, Self::OnTopic(_) | Self::OnTask(_) | Self::OnTopicOrAll(_))
            && !self.changes()
    }

    /// Returns the name of what the operation does, for the audit trail.
    pub fn action(self) -> &'static str {
        match self {
            Self::Open | Self::Known => "none",
            Self::Operate => Action::Operate.name(),
            Self::OnTopic([action]) | Self::OnTask([action]) | Self::OnMany([action]) => {
                action.name()
            }
            Self::OnTopic(MOVE_RIGHTS) | Self::OnTask(_) | Self::OnMany(_) => "move",
            Self::OnTopic([Action::Submit, Action::Cancel]) => "replace",
            Self::OnTopic(actions) => actions.first().map_or("none", |action| action.name()),
            Self::EachItem(action) | Self::EachTask(action) | Self::OnTopicOrAll(action) => {
                action.name()
            }
        }
    }

    /// Returns the names of the rights, as the interface document lists them.
    pub fn rights(self) -> Vec<&'static str> {
        match self {
            Self::Open | Self::Known => Vec::new(),
            Self::Operate => vec![Action::Operate.name()],
            Self::OnTopic(actions) | Self::OnTask(actions) | Self::OnMany(actions) => {
                actions.iter().map(|action| action.name()).collect()
            }
            Self::EachItem(action) | Self::EachTask(action) | Self::OnTopicOrAll(action) => {
                vec![action.name()]
            }
        }
    }

    /// Returns a sentence for the description of the operation.
    pub fn sentence(self) -> Option<String> {
        let names: Vec<String> = self.rights().iter().map(|name| format!("`{name}`")).collect();
        let names = names.join(" and ");
        Some(match self {
            Self::Open => return None,
            Self::Known => "Needs no right.".to_owned(),
            Self::Operate => format!("Needs {names}."),
            Self::OnTopic(_) => format!("Needs {names} on the topic."),
            Self::EachItem(_) => {
                format!("Needs {names} on the topic of each task; a task without it gets 403.")
            }
            Self::EachTask(_) => format!(
                "Needs {names} on the topic of each task. Without it, a task that is named by its \
                 topic gets 403, and one that is named by its id gets 404."
            ),
            Self::OnTask(_) => {
                format!("Needs {names} on the topic of the task; without it, the answer is 404.")
            }
            Self::OnTopicOrAll(_) => {
                format!("Needs {names} on the topic, or on `*` if the request has no topic.")
            }
            Self::OnMany(_) => format!("Needs {names} on the topic; a dry run needs `read`."),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::pattern::Pattern;
    use crate::access::rights::Rule;

    #[test]
    fn a_caller_who_can_never_pass_is_told_the_missing_right() {
        let rule = Rule {
            actions: vec![Action::Submit, Action::Read],
            topics: vec![Pattern::new("orders").unwrap()],
        };
        let rights = Rights::new(&[rule], &[], false);
        for (access, missing) in [
            (Access::Open, None),
            (Access::Known, None),
            (Access::Operate, Some(Action::Operate)),
            (Access::OnTopic(&[Action::Submit]), None),
            (Access::OnTopic(&[Action::Submit, Action::Cancel]), Some(Action::Cancel)),
            (Access::EachItem(Action::Submit), None),
            (Access::OnTask(&[Action::Drop]), Some(Action::Drop)),
            (Access::OnTask(&[Action::Submit, Action::Cancel]), Some(Action::Cancel)),
            (Access::OnTopicOrAll(Action::Read), None),
            // Its dry run is allowed.
            (Access::OnMany(&[Action::Cancel]), None),
            (Access::OnMany(MOVE_RIGHTS), None),
        ] {
            assert_eq!(access.ruled_out(&rights), missing, "{access:?}");
            assert_eq!(access.ruled_out(&Rights::everything()), None, "{access:?}");
        }
        let pop = Access::OnTopic(&[Action::Pop, Action::ReadPayload]);
        assert_eq!([pop.action(), Access::OnTopic(MOVE_RIGHTS).action()], ["pop", "move"]);
        let none = Rights::default();
        assert_eq!(Access::OnMany(MOVE_RIGHTS).ruled_out(&none), Some(Action::Cancel));
    }
}
