//! The terms of Punctual as types: task, shard, batch, outcome and others. Pure: no I/O and no
//! clock.

pub mod batch;
pub mod cluster;
pub mod ids;
pub mod leaves;
pub mod outcome;
pub mod principal;
pub mod schedule;
pub mod selection;
pub mod shard;
pub mod task;
pub mod time;
pub mod topic;

pub use batch::width_class::{Reach, WidthClass};
pub use batch::{Batch, BatchBuilder, BatchTask};
pub use cluster::{ClusterSettings, ClusterWishes};
pub use ids::{BatchId, IdRange, NodeId, TaskId};
pub use outcome::{Failure, Outcome, Receipt};
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
pub use time::throttle::Throttle;
pub use time::timestamp::Timestamp;
pub use topic::TopicName;
