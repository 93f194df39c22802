//! What a caller can do.

use std::fmt;

/// An action that needs a right. All but [`Action::Operate`] are on the tasks of one topic alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Action {
    /// Submit tasks.
    Submit,
    /// Cancel tasks that are pending.
    Cancel,
    /// Look up and list tasks and dead letters, without their keys, headers and payloads.
    Read,
    /// See keys, headers and payloads as well. It adds to [`Action::Read`] and does not imply it.
    ReadPayload,
    /// Take tasks for a consumer without Kafka. It needs [`Action::ReadPayload`] as well, and does
    /// not imply [`Action::Finish`].
    Pop,
    /// Answer for a consumer: finish, fail and extend tracked tasks.
    Finish,
    /// Publish dead letters again. It is as strong as [`Action::Submit`].
    Redrive,
    /// Delete dead letters.
    Drop,
    /// Create, change, pause, trigger and delete schedules. It is as strong as [`Action::Submit`],
    /// and withdraws the runs of schedules.
    Schedule,
    /// Set and delete the callback of a topic: the service that gets its tracked tasks and answers
    /// for its consumer. It needs [`Action::ReadPayload`] as well.
    Callback,
    /// On a topic: pause and resume it, and set its policy. `operate = true` of a principal is that
    /// for all topics, and to see the cluster: metrics, nodes, reasons for not being ready.
    Operate,
}

impl Action {
    /// The actions on the tasks of a topic: those of `*` in a rule, in the order of their places.
    pub const ON_TOPICS: [Self; 9] = [
        Self::Submit,
        Self::Cancel,
        Self::Read,
        Self::ReadPayload,
        Self::Redrive,
        Self::Drop,
        Self::Pop,
        Self::Finish,
        Self::Schedule,
    ];

    /// The actions that a rule may name. `*` does not imply the last two.
    pub const IN_RULES: [Self; 11] = [
        Self::Submit,
        Self::Cancel,
        Self::Read,
        Self::ReadPayload,
        Self::Redrive,
        Self::Drop,
        Self::Pop,
        Self::Finish,
        Self::Schedule,
        Self::Callback,
        Self::Operate,
    ];

    /// Returns the action's name in the auth file and in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Cancel => "cancel",
            Self::Read => "read",
            Self::ReadPayload => "read-payload",
            Self::Pop => "pop",
            Self::Finish => "finish",
            Self::Redrive => "redrive",
            Self::Drop => "drop",
            Self::Schedule => "schedule",
            Self::Callback => "callback",
            Self::Operate => "operate",
        }
    }

    /// Returns the action that a rule means by this name.
    pub fn in_rule(name: &str) -> Option<Self> {
        Self::IN_RULES.into_iter().find(|action| action.name() == name)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_actions() {
        assert_eq!(Action::IN_RULES[..9], Action::ON_TOPICS);
        for action in Action::IN_RULES {
            assert_eq!(Action::in_rule(action.name()), Some(action));
        }
        for name in ["Operate", "Submit", "", "read_payload", "*"] {
            assert_eq!(Action::in_rule(name), None, "{name}");
        }
    }
}
