//! What a caller can do.

use std::fmt;

/// An action that needs a right. All but [`Action::Operate`] are on the tasks of one topic.
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
    /// Answer for a consumer: finish, fail and extend tracked tasks.
    Finish,
    /// Publish dead letters again. It is as strong as [`Action::Submit`].
    Redrive,
    /// Delete dead letters.
    Drop,
    /// Create, change, pause, trigger and delete schedules. It is as strong as [`Action::Submit`],
    /// and withdraws the runs of schedules.
    Schedule,
    /// See the cluster: metrics, nodes, reasons for not being ready. It concerns no topic.
    Operate,
}

impl Action {
    /// The actions on a topic, in the order of their places.
    pub const ON_TOPICS: [Self; 8] = [
        Self::Submit,
        Self::Cancel,
        Self::Read,
        Self::ReadPayload,
        Self::Redrive,
        Self::Drop,
        Self::Finish,
        Self::Schedule,
    ];

    /// Returns the action's name in the auth file and in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Cancel => "cancel",
            Self::Read => "read",
            Self::ReadPayload => "read-payload",
            Self::Finish => "finish",
            Self::Redrive => "redrive",
            Self::Drop => "drop",
            Self::Schedule => "schedule",
            Self::Operate => "operate",
        }
    }

    /// Returns the action on topics with this name.
    pub fn on_topics(name: &str) -> Option<Self> {
        Self::ON_TOPICS.into_iter().find(|action| action.name() == name)
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
    fn names_lead_back_to_their_actions_and_operate_is_on_no_topic() {
        for action in Action::ON_TOPICS {
            assert_eq!(Action::on_topics(action.name()), Some(action));
        }
        for name in ["operate", "Submit", "", "read_payload", "*"] {
            assert_eq!(Action::on_topics(name), None, "{name}");
        }
    }
}
