//! Points at which a test has the program die, to see that what it leaves behind is taken up again. Only debug builds know them: in a release build
//! [`reach`] is nothing at all, and neither the names nor the variable are in the program.
//!
//! `PUNCTUAL_KILL_AT=claim-committed` aborts the process at the first time it comes to that point, `PUNCTUAL_KILL_AT=record-handed-over:50` at the fiftieth.
//! Nothing is flushed, told or given back: it is a kill -9 at a chosen moment.

macro_rules! points {
    ($($(#[$what:meta])* $point:ident = $name:literal,)*) => {
        /// A moment between two steps that belong together.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Point {
            $($(#[$what])* $point,)*
        }

        impl Point {
            pub const ALL: &[Self] = &[$(Self::$point,)*];

            /// As the variable spells it.
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
    /// The group is stored, perhaps claimed as well; nobody was told.
    InsertCommitted = "insert-committed",
    /// The producer has one more record of the batch, others it does not have.
    RecordHandedOver = "record-handed-over",
    /// Kafka has all records of the batch and has said so.
    LastAcknowledged = "last-acknowledged",
    /// The settle is about to be sent.
    SettleReady = "settle-ready",
    /// The settle has its answer; its commit may not be on disk.
    SettleAnswered = "settle-answered",
    /// Batches of a dead node are this one's, and not loaded.
    BatchAdopted = "batch-adopted",
    /// The first of them is loaded, and not yet on the wheel.
    BatchLoaded = "batch-loaded",
    /// A past leaf is empty, and still attached.
    LeafTruncated = "leaf-truncated",
    /// A past leaf is detached, and not yet dropped.
    LeafDetached = "leaf-detached",
    /// Some far tasks are in their leaves, others are still to be moved.
    FarChunkMoved = "far-chunk-moved",
    /// A replacement holds the entry of its name.
    NameLocked = "name-locked",
    /// It has taken the former task out, and put nothing in its place.
    NameTakenOut = "name-taken-out",
    /// It is committed; nobody was told.
    NameReplaced = "name-replaced",
    /// A cancel has looked in the far table, and not yet in the leaves.
    FarCancelled = "far-cancelled",
    /// A cancel is committed; nobody was told.
    CancelCommitted = "cancel-committed",
}

/// The variable that names the point; read by debug builds alone.
pub const VARIABLE: &str = "PUNCTUAL_KILL_AT";

#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn reach(_point: Point) {}

/// Dies here if the test wants it so.
#[cfg(debug_assertions)]
pub fn reach(point: Point) {
    if let Some(armed) = armed::ARMED.as_ref()
        && armed.is_due(point)
    {
        tracing::error!(point = point.name(), "aborting, as a test wants it");
        std::process::abort();
    }
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::{Point, VARIABLE};

    pub(super) static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| given().as_deref().and_then(Armed::read));

    #[derive(Debug)]
    pub(super) struct Armed {
        point: Point,
        left: AtomicU32,
    }

    impl Armed {
        /// `name` or `name:times`; `None` for any other text.
        pub(super) fn read(text: &str) -> Option<Self> {
            let (name, times) = text.split_once(':').unwrap_or((text, "1"));
            let point = *Point::ALL.iter().find(|point| point.name() == name)?;
            Some(Self { point, left: AtomicU32::new(times.parse().ok().filter(|times| *times > 0)?) })
        }

        pub(super) fn is_due(&self, point: Point) -> bool {
            point == self.point && self.left.fetch_sub(1, Ordering::Relaxed) == 1
        }
    }

    #[expect(clippy::disallowed_methods, reason = "no setting: a program that is released does not know it")]
    fn given() -> Option<String> {
        std::env::var(VARIABLE).ok()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_point_is_due_at_the_time_that_was_asked_for_and_no_other_ever() {
            let armed = Armed::read("settle-ready:3").unwrap();
            let comings = [Point::SettleReady, Point::ClaimCommitted, Point::SettleReady, Point::SettleReady, Point::SettleReady];
            assert_eq!(comings.map(|point| armed.is_due(point)), [false, false, false, true, false]);
            assert!(["", "nowhere", "settle-ready:0", "settle-ready:x"].iter().all(|text| Armed::read(text).is_none()));
        }

        #[test]
        fn all_points_can_be_named() {
            assert!(Point::ALL.iter().all(|point| Armed::read(point.name()).is_some_and(|armed| armed.point == *point)));
        }
    }
}
