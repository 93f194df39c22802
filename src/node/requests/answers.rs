//! Takes the answers of consumers about tracked tasks.

use crate::node::messages::Unavailable;
use crate::node::messages::answers::{ConsumerCall, Heard, Target};

/// Takes answers.
#[derive(Debug)]
pub struct Answers {}

impl Answers {
    /// Takes answers. The results are in their order.
    pub async fn take(
        &self,
        calls: Vec<(Target, ConsumerCall)>,
    ) -> Vec<Result<Heard, Unavailable>> {
        vec![Err(Unavailable::Busy { limit: "answers" }); calls.len()]
    }
}
