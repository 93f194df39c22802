//! Background tasks, and how the process ends. Every task has a name and is tracked; its failure
//! ends the node.

use std::collections::BTreeSet;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::error_chain::chain;

/// The error type of background tasks.
pub type TaskFailure = Box<dyn Error + Send + Sync>;

/// The background tasks of a node. The policy for a failure or a panic: log it, drain, exit
/// non-zero, and let the platform restart the node. An outage of a server is never a failure: tasks
/// retry.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    /// Cancelled first: take no new work, finish what is in flight.
    pub draining: CancellationToken,
    /// Cancelled when nothing is in flight any more, or the drain timeout has passed: end.
    pub stopping: CancellationToken,
    failed: Arc<Mutex<FailedTask>>,
}

#[derive(Debug, Default)]
struct FailedTask {
    /// The first failure, as text.
    first: Option<String>,
    /// The names of the tasks that have failed.
    names: BTreeSet<&'static str>,
}

impl Tasks {
    /// Runs `future` in the background until it ends. It should end soon after `stopping` is
    /// cancelled.
    pub fn spawn<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = Result<(), TaskFailure>> + Send + 'static,
    {
        let inner = self.tracker.spawn(future);
        let tasks = self.clone();
        self.tracker.spawn(async move {
            match inner.await {
                Ok(Ok(())) => tracing::debug!(task = name, "ended"),
                Ok(Err(error)) => tasks.fail(name, &chain(error.as_ref())),
                Err(panic) => tasks.fail(name, &panic.to_string()),
            }
        });
    }

    /// Records a failure, which ends the node.
    pub fn fail(&self, name: &'static str, reason: &str) {
        let mut failed = self.failed();
        failed.first.get_or_insert_with(|| format!("{name}: {reason}"));
        failed.names.insert(name);
        drop(failed);
        self.draining.cancel();
        tracing::error!(task = name, reason, "failed; the node drains and exits");
    }

    /// Returns the first failure, if there was one.
    pub fn failure(&self) -> Option<String> {
        self.failed().first.clone()
    }

    /// Returns true when one of these tasks has failed.
    pub fn has_failed(&self, names: &[&str]) -> bool {
        let failed = self.failed();
        names.iter().any(|name| failed.names.contains(name))
    }

    fn failed(&self) -> MutexGuard<'_, FailedTask> {
        self.failed.lock()
    }

    /// Ends all tasks. Returns true when all have ended within `deadline`.
    pub async fn stop(&self, deadline: Duration) -> bool {
        self.draining.cancel();
        self.stopping.cancel();
        self.tracker.close();
        tokio::select! {
            () = self.tracker.wait() => true,
            () = clock::sleep(deadline) => false,
        }
    }
}

/// How long blocking calls may go on after the end of a command.
const BLOCKED_MAX: Duration = Duration::from_secs(1);

/// Runs a command on a runtime of its own. Blocking calls that do not end, such as the end of a
/// Kafka client that hangs, are left behind, because they would keep the process for good.
///
/// # Errors
/// Returns the command's error, or that of a runtime that cannot be made.
pub fn run_to_end<T>(
    command: impl Future<Output = Result<T, TaskFailure>>,
) -> Result<T, TaskFailure> {
    let runtime = tokio::runtime::Runtime::new()?;
    let ended = runtime.block_on(command);
    runtime.shutdown_timeout(BLOCKED_MAX);
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_fails_is_named_and_the_first_one_is_told() {
        let tasks = Tasks::default();
        tasks.spawn("wheel", async { Err("tried".into()) });
        tasks.draining.cancelled().await;
        tasks.fail("settle", "tried as well");
        assert_eq!(tasks.failure().as_deref(), Some("wheel: tried"));
        assert!(
            tasks.has_failed(&["topics", "settle"])
                && tasks.has_failed(&["wheel"])
                && !tasks.has_failed(&["api"])
        );
    }
}
