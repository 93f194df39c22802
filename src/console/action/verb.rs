//! The kinds of actions, and their words on the pages.

use crate::console::frame::Section;

/// The kinds of actions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Move,
    PublishNow,
    Cancel,
    Redrive,
    Drop,
    RedriveMany,
    DropMany,
    Pause,
    Resume,
    Trigger,
    PauseTopic,
    ResumeTopic,
}

impl Verb {
    pub const ALL: [Self; 12] = [
        Self::Move,
        Self::PublishNow,
        Self::Cancel,
        Self::Redrive,
        Self::Drop,
        Self::RedriveMany,
        Self::DropMany,
        Self::Pause,
        Self::Resume,
        Self::Trigger,
        Self::PauseTopic,
        Self::ResumeTopic,
    ];

    /// Returns the word in forms.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Move => "move",
            Self::PublishNow => "publish-now",
            Self::Cancel => "cancel",
            Self::Redrive => "redrive",
            Self::Drop => "drop",
            Self::RedriveMany => "redrive-many",
            Self::DropMany => "drop-many",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Trigger => "trigger",
            Self::PauseTopic => "pause-topic",
            Self::ResumeTopic => "resume-topic",
        }
    }

    pub const fn title(self) -> &'static str {
        match self {
            Self::Move => "Move this task",
            Self::PublishNow => "Publish this task now",
            Self::Cancel => "Cancel this task",
            Self::Redrive => "Redrive this dead letter",
            Self::Drop => "Drop this dead letter",
            Self::RedriveMany => "Redrive dead letters",
            Self::DropMany => "Drop dead letters",
            Self::Pause => "Pause this schedule",
            Self::Resume => "Resume this schedule",
            Self::Trigger => "Trigger a run of this schedule",
            Self::PauseTopic => "Pause this topic",
            Self::ResumeTopic => "Resume this topic",
        }
    }

    pub const fn consequence(self) -> &'static str {
        match self {
            Self::Move => {
                "It keeps its id, its name and its record. A task that is about to be published \
                 can no longer be moved."
            }
            Self::PublishNow => {
                "It becomes due now, and is published at once, unless its topic is paused or \
                 unavailable. A published record cannot be taken back."
            }
            Self::Cancel => {
                "Its record will never be published. A task that is about to be published can no \
                 longer be cancelled."
            }
            Self::Redrive => "It becomes a task that is due now, under its first id.",
            Self::Drop => "It is deleted, with its key, headers and payload.",
            Self::RedriveMany => "Each becomes a task that is due now, under its first id.",
            Self::DropMany => "They are deleted, with their keys, headers and payloads.",
            Self::Pause => "It makes no runs until it is resumed. Runs that wait are cancelled.",
            Self::Resume => {
                "It makes runs again. Its policy for missed runs decides about the instants of the \
                 pause. By default, the last of them gets its run at once."
            }
            Self::Trigger => "It makes one run that is due now, besides the regular ones.",
            Self::PauseTopic => {
                "Its tasks wait until it is resumed. Submits are accepted meanwhile. Tasks that \
                 are claimed already still go out."
            }
            Self::ResumeTopic => "Its overdue tasks go out at once. Other topics stay on time.",
        }
    }

    /// Returns the fields of an action that its call uses.
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Move => &["id", "due"],
            Self::PublishNow | Self::Cancel | Self::Drop => &["id"],
            Self::Redrive => &["id", "to_topic"],
            Self::RedriveMany => &["topic", "due_from", "due_to", "to_topic", "cursor"],
            Self::DropMany => &["topic", "due_from", "due_to", "cursor"],
            Self::Pause | Self::Resume | Self::Trigger => &["topic", "name"],
            Self::PauseTopic => &["topic", "reason"],
            Self::ResumeTopic => &["topic"],
        }
    }

    /// Returns the field that the reader may fill in beside the button.
    pub const fn asked_for(self) -> Option<&'static str> {
        match self {
            Self::Move => Some("due"),
            Self::Redrive => Some("to_topic"),
            Self::PauseTopic => Some("reason"),
            _ => None,
        }
    }

    pub const fn is_destructive(self) -> bool {
        matches!(self, Self::Cancel | Self::Drop | Self::DropMany)
    }

    pub const fn section(self) -> Section {
        match self {
            Self::Move | Self::PublishNow | Self::Cancel => Section::Tasks,
            Self::Redrive | Self::Drop | Self::RedriveMany | Self::DropMany => Section::Dead,
            Self::Pause | Self::Resume | Self::Trigger => Section::Schedules,
            Self::PauseTopic | Self::ResumeTopic => Section::Topics,
        }
    }
}
