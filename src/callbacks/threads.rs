//! The threads that make the requests to services.
//!
//! A service decides how its answer looks. An answer of endless interim heads (`103 Early Hints`)
//! keeps a thread busy. While callbacks shared the threads of the node, eight such connections
//! delayed submits by up to 1.5 s (2 cores, 2026-11-28).

use std::io;
use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

/// The threads of all callbacks of a node. They end with the last clone.
#[derive(Clone, Debug)]
pub struct CallbackThreads {
    handle: Handle,
    _runtime: Arc<OwnRuntime>,
}

/// Always `Some`, until it is dropped.
#[derive(Debug)]
struct OwnRuntime(Option<Runtime>);

impl CallbackThreads {
    /// # Errors
    /// When no thread can be started.
    pub fn start() -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("callbacks").enable_all().build()?;
        let handle = runtime.handle().clone();
        Ok(Self { handle, _runtime: Arc::new(OwnRuntime(Some(runtime))) })
    }

    /// Runs a future on these threads. It is cancelled when the returned value is dropped. `Tasks`
    /// has no part in it: the caller gets a panic as an error, like no answer of the service.
    pub fn run<F>(&self, future: F) -> AbortOnDropHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        AbortOnDropHandle::new(self.handle.spawn(future))
    }
}

impl Drop for OwnRuntime {
    /// A runtime must not wait for its threads on a thread for async work.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_future_runs_on_another_thread_and_a_panic_is_told() {
        let threads = CallbackThreads::start().unwrap();
        let name = async || {
            let name = async { std::thread::current().name().map(str::to_owned) };
            threads.run(name).await.unwrap()
        };
        assert_eq!(name().await.as_deref(), Some("callbacks"));
        let panicking = threads.run(async { panic!("tried") });
        assert!(panicking.await.is_err());
        assert_eq!(name().await.as_deref(), Some("callbacks"), "the thread goes on");
    }
}
