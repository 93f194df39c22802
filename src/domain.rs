//! The terms of Punctual as types that are always valid. Pure: no I/O and no clock.
//!
//! - `task`: a task, its record and its terms: expiry, spread, retries. `task/feedback` decides
//!   about the answers of consumers.
//! - `batch`: the tasks of one claim, and the outcome of each.
//! - `ids`, `shard`, `leaves`: ids that hold due time and shard; the partitions they fall into.
//! - `schedule`, `topic`, `principal`: recurring schedules; topics and their policies; callers.
//! - `selection`: which tasks a list or a bulk change selects, and the position in a list.
//! - `cluster`: the settings that all nodes share.
//! - `text`: numbers and foreign text, as people read them.
//! - `time`: times, durations, the pauses between retries, and the throttle of log lines.

pub mod batch;
pub mod cluster;
pub mod ids;
pub mod leaves;
pub mod principal;
pub mod schedule;
pub mod selection;
pub mod shard;
pub mod task;
pub mod text;
pub mod time;
pub mod topic;

pub use batch::outcome::{Failure, Outcome, Receipt};
pub use batch::width_class::{Reach, WidthClass};
pub use batch::{Batch, BatchBuilder, BatchTask};
pub use cluster::{ClusterSettings, ClusterWishes};
pub use ids::{BatchId, IdRange, NodeId, TaskId};
pub use principal::{PrincipalId, PrincipalName};
pub use schedule::name::ScheduleName;
pub use selection::{Choice, Cursor, List, Page, PendingState, Selection};
pub use shard::{Shard, ShardCount};
pub use task::expiry::{Expiry, ExpiryTime};
pub use task::headers::Headers;
pub use task::name::TaskName;
pub use task::precondition::{Precondition, TaskSet, When};
pub use task::retry_policy::{RetryPolicy, Ttr};
pub use task::seal_mark::{SealMark, SealedParts, Unopened};
pub use task::submit_order::{Position, SubmitOrder};
pub use task::tracking::{RecordPlace, Sent, TrackedRow, Tracking};
pub use task::{
    Actors, AttemptEvent, AttemptLine, Backlog, Dropped, Finished, Kept, NewTask, Record,
    Submitted, TaskState, TaskView, TrackedView,
};
pub use time::Monotonic;
pub use time::backoff::Backoff;
pub use time::throttle::Throttle;
pub use time::timestamp::Timestamp;
pub use topic::TopicName;
