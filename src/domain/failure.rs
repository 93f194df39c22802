//! Why a record was not acknowledged.

/// What is known of a record that was not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It never left the producer, for a reason that is not its topic's.
    NotSent,
    /// It may stand in the topic: no answer came.
    Unknown,
    /// The batch in which it travelled was refused, which says nothing of this record: it can be sent alone.
    BatchRefused,
    /// Too large or malformed: it will not pass when repeated as it is.
    RefusedForGood,
    /// Its topic or partition does not take records just now.
    Unavailable,
    /// This node may not write to its topic, just now.
    Forbidden,
}
