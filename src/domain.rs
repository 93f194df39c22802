//! The words of Punctual: what a task, a shard, a batch and an outcome are. Pure: no input, no output, no clock.

pub mod backlog;
pub mod batch;
pub mod cluster;
pub mod duration;
pub mod failure;
pub mod headers;
pub mod ids;
pub mod leaves;
pub mod monotonic;
pub mod name;
pub mod outcome;
pub mod record;
pub mod seldom;
pub mod selection;
pub mod shard;
pub mod span;
pub mod task;
pub mod timestamp;
pub mod topic;

pub use backlog::Backlog;
pub use batch::{Batch, BatchBuilder, BatchTask};
pub use cluster::{ClusterSettings, ClusterWishes};
pub use failure::Failure;
pub use headers::Headers;
pub use ids::{BatchId, IdRange, NodeId, TaskId};
pub use monotonic::Monotonic;
pub use name::TaskName;
pub use outcome::{Outcome, Receipt};
pub use record::Record;
pub use seldom::Seldom;
pub use selection::{Cursor, List, Page, Selection};
pub use shard::{Shard, ShardCount};
pub use span::{Reach, Span};
pub use task::{Kept, NewTask, TaskState, TaskView};
pub use timestamp::Timestamp;
pub use topic::TopicName;
