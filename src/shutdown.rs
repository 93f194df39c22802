//! Background tasks, and how the process ends. Every task has a name and is tracked; its failure
//! ends the node.

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
    /// True when a task has failed without which nothing can be published or settled.
    is_hopeless: bool,
}

impl Tasks {
    /// Runs `future` in the background until it ends. It should end soon after `stopping` is
    /// cancelled.
    pub fn spawn<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = Result<(), TaskFailure>> + Send + 'static,
    {
        self.spawn_as(name, false, future);
    }

    /// As [`Self::spawn`], for a task without which no task in flight can be published or settled.
    /// After its failure, a drain does not wait for them.
    pub fn spawn_vital<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = Result<(), TaskFailure>> + Send + 'static,
    {
        self.spawn_as(name, true, future);
    }

    fn spawn_as<F>(&self, name: &'static str, is_vital: bool, future: F)
    where
        F: Future<Output = Result<(), TaskFailure>> + Send + 'static,
    {
        let inner = self.tracker.spawn(future);
        let tasks = self.clone();
        self.tracker.spawn(async move {
            let reason = match inner.await {
                Ok(Ok(())) => {
                    tracing::debug!(task = name, "ended");
                    return;
                }
                Ok(Err(error)) => chain(error.as_ref()).to_string(),
                Err(panic) => panic.to_string(),
            };
            if is_vital {
                tasks.failed().is_hopeless = true;
            }
            tasks.fail(name, &reason);
        });
    }

    /// Records a failure, which ends the node.
    pub fn fail(&self, name: &'static str, reason: &str) {
        self.failed().first.get_or_insert_with(|| format!("{name}: {reason}"));
        self.draining.cancel();
        tracing::error!(task = name, reason, "failed; the node drains and exits");
    }

    /// Returns the first failure, if there was one.
    pub fn failure(&self) -> Option<String> {
        self.failed().first.clone()
    }

    /// Returns true when a vital task has failed.
    pub fn are_hopeless(&self) -> bool {
        self.failed().is_hopeless
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

/// Ends the process with `code`, without the exit handlers of libraries. A Kafka client that hangs
/// still has threads, and the handler of OpenSSL would free the memory that they use: some nodes
/// ended with `free(): invalid pointer`. Buffers of the standard output are not written.
pub fn exit_at_once(code: i32) -> ! {
    signal_hook::low_level::exit(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_fails_is_named_and_the_first_one_is_told() {
        let tasks = Tasks::default();
        tasks.spawn("api", async { Err("tried".into()) });
        tasks.draining.cancelled().await;
        tasks.fail("settle", "tried as well");
        assert_eq!(tasks.failure().as_deref(), Some("api: tried"));
        assert!(!tasks.are_hopeless());
    }

    #[tokio::test]
    async fn a_node_without_a_vital_task_is_hopeless() {
        let tasks = Tasks::default();
        tasks.spawn_vital("wheel", async { Err("tried".into()) });
        tasks.draining.cancelled().await;
        assert!(tasks.are_hopeless());
    }
}
