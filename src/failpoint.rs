//! Failpoints: moments at which a test makes the program die, to see other nodes take up the work.
//! Failpoints exist in debug builds only. In a release build [`reach`] does nothing, and the
//! program contains neither the names nor the variable.
//!
//! `PUNCTUAL_KILL_AT=claim-committed` aborts the process at the first arrival at this point,
//! `PUNCTUAL_KILL_AT=record-handed-over:50` at the fiftieth. Nothing is flushed, reported or
//! released, as after a kill -9 at a chosen moment.

macro_rules! points {
    ($($(#[$what:meta])* $point:ident = $name:literal,)*) => {
        /// A moment between two steps that belong together.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Failpoint {
            $($(#[$what])* $point,)*
        }

        impl Failpoint {
            pub const ALL: &[Self] = &[$(Self::$point,)*];

            /// Returns the spelling in the variable.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)*
                }
            }
        }
    };
}

points! {
    /// The batch is in Postgres, and nowhere else.
    ClaimCommitted = "claim-committed",
    /// The group is stored, perhaps claimed as well. No caller has been answered.
    InsertCommitted = "insert-committed",
    /// The producer has one more record of the batch; other records are still to come.
    RecordHandedOver = "record-handed-over",
    /// Kafka has acknowledged all records of the batch.
    LastAcknowledged = "last-acknowledged",
    /// The settle is about to be sent.
    SettleReady = "settle-ready",
    /// The settle has been answered. Its commit may not be on disk.
    SettleAnswered = "settle-answered",
    /// Batches of a dead node belong to this one, and are not loaded yet.
    BatchAdopted = "batch-adopted",
    /// The first adopted batch is loaded, and not yet on the wheel.
    BatchLoaded = "batch-loaded",
    /// A past leaf is empty, and still attached.
    LeafTruncated = "leaf-truncated",
    /// A past leaf is detached, and not yet dropped.
    LeafDetached = "leaf-detached",
    /// Some far tasks are in their leaves; others are still to be moved.
    FarChunkMoved = "far-chunk-moved",
    /// A replacement has locked the entry of its name.
    NameLocked = "name-locked",
    /// A replacement has deleted the former task, and has not stored the new one.
    NameTakenOut = "name-taken-out",
    /// A replacement is committed. No caller has been answered.
    NameReplaced = "name-replaced",
    /// A move has entered the new row of its task into `task_follow`, and both rows are as before.
    MoveFollowed = "move-followed",
    /// A move is committed. No caller has been answered.
    TaskMoved = "task-moved",
    /// A cancel has looked in the far table, and not yet in the leaves.
    FarCancelled = "far-cancelled",
    /// A cancel is committed. No caller has been answered.
    CancelCommitted = "cancel-committed",
    /// The answers of consumers about tasks that are followed are taken, and the marks are not.
    AnswersFollowed = "answers-followed",
    /// Answers of consumers are committed.
    AnswersCommitted = "answers-committed",
    /// Rows of an outbox are read, and nothing of them is stored.
    OutboxRead = "outbox-read",
    /// A wave of an outbox is stored, and its rows are still there.
    OutboxStored = "outbox-stored",
    /// The rows of an outbox are gone, and their entries in `outbox_seen` are not.
    OutboxDeleted = "outbox-deleted",
    /// Records of an intake topic are read, and nothing of them is stored.
    IntakeRead = "intake-read",
    /// Rejected records are in their topic, and their rejections are not deleted.
    IntakeRejected = "intake-rejected",
    /// Tasks of an intake topic are stored with the offset. The node does not know it.
    IntakeStored = "intake-stored",
    /// The runs of schedules are planned, and not made.
    RunsPlanned = "runs-planned",
    /// The runs of schedules are made. The node does not know it.
    RunsMade = "runs-made",
    /// A change of a schedule has withdrawn its runs, and is not committed.
    RunsWithdrawn = "runs-withdrawn",
}

/// The variable that names the failpoint. Only debug builds read it.
pub const VARIABLE: &str = "PUNCTUAL_KILL_AT";

#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn reach(_point: Failpoint) {}

/// Aborts the process if the test asked for this point.
#[cfg(debug_assertions)]
pub fn reach(point: Failpoint) {
    if let Some(armed) = armed::ARMED.as_ref()
        && armed.is_due(point)
    {
        tracing::error!(point = point.name(), "aborting at a failpoint of a test");
        std::process::abort();
    }
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::{Failpoint, VARIABLE};

    pub(super) static ARMED: LazyLock<Option<Armed>> =
        LazyLock::new(|| given().as_deref().and_then(Armed::read));

    #[derive(Debug)]
    pub(super) struct Armed {
        point: Failpoint,
        left: AtomicU32,
    }

    impl Armed {
        /// Parses `name` or `name:times`. Returns `None` for any other text.
        pub(super) fn read(text: &str) -> Option<Self> {
            let (name, times) = text.split_once(':').unwrap_or((text, "1"));
            let point = *Failpoint::ALL.iter().find(|point| point.name() == name)?;
            Some(Self {
                point,
                left: AtomicU32::new(times.parse().ok().filter(|times| *times > 0)?),
            })
        }

        pub(super) fn is_due(&self, point: Failpoint) -> bool {
            point == self.point && self.left.fetch_sub(1, Ordering::Relaxed) == 1
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "no setting: a program that is released does not know it"
    )]
    fn given() -> Option<String> {
        std::env::var(VARIABLE).ok()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_point_is_due_at_the_time_that_was_asked_for_and_no_other_ever() {
            let armed = Armed::read("settle-ready:3").unwrap();
            let comings = [
                Failpoint::SettleReady,
                Failpoint::ClaimCommitted,
                Failpoint::SettleReady,
                Failpoint::SettleReady,
                Failpoint::SettleReady,
            ];
            assert_eq!(
                comings.map(|point| armed.is_due(point)),
                [false, false, false, true, false]
            );
            assert!(
                ["", "nowhere", "settle-ready:0", "settle-ready:x"]
                    .iter()
                    .all(|text| Armed::read(text).is_none())
            );
        }

        #[test]
        fn all_points_can_be_named() {
            assert!(
                Failpoint::ALL
                    .iter()
                    .all(|point| Armed::read(point.name())
                        .is_some_and(|armed| armed.point == *point))
            );
        }
    }
}
