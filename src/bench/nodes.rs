//! Nodes that a person stops and starts: prints each request, and waits until fulfilled.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;

use super::load::http::{Http, Trust};
use super::run::print_line;
use super::scenarios::drain::Publishers;
use crate::clock;

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time for a person or a script to fulfil a request.
const PATIENCE: Duration = Duration::from_secs(600);

/// The lines by which a script recognises a request.
pub const STOP: &str = "drain: now STOP all nodes";
pub const START: &str = "drain: now START the nodes";

#[derive(Clone, Debug)]
pub struct ByHand {
    pub urls: Vec<String>,
    pub trust: Trust,
}

impl ByHand {
    /// Waits until all nodes are up, or all are down.
    async fn wait(&self, is_there: bool) -> Result<(), String> {
        let begun_at = clock::monotonic();
        loop {
            let mut there_count = 0;
            for url in &self.urls {
                there_count += usize::from(
                    Http::new(url, &self.trust)?
                        .call(Method::GET, "/livez", Bytes::new())
                        .await
                        .is_ok(),
                );
            }
            if there_count == if is_there { self.urls.len() } else { 0 } {
                return Ok(());
            }
            if clock::monotonic().since(begun_at) > PATIENCE {
                return Err(format!(
                    "waited {PATIENCE:?} for the nodes to be {}",
                    if is_there { "started" } else { "stopped" }
                ));
            }
            clock::sleep(POLL_INTERVAL).await;
        }
    }
}

impl Publishers for ByHand {
    async fn stop(&mut self) -> Result<(), String> {
        print_line(STOP);
        self.wait(false).await
    }

    async fn start(&mut self) -> Result<(), String> {
        print_line(START);
        self.wait(true).await
    }
}
