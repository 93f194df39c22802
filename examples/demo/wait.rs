//! The time, and waiting for conditions.

use std::time::{Duration, SystemTime};

use az::SaturatingAs as _;

use crate::Failure;

const POLL: Duration = Duration::from_millis(10);

/// Returns milliseconds since the epoch by the machine's clock, which Postgres and Kafka share.
pub fn now_ms() -> i64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since_epoch.as_millis().saturating_as::<i64>()
}

pub async fn until_ms(moment: i64) {
    tokio::time::sleep(Duration::from_millis(u64::try_from(moment - now_ms()).unwrap_or(0))).await;
}

/// Polls until `find` returns a value. Fails after `deadline`.
pub async fn until<T>(
    what: &str,
    deadline: Duration,
    mut find: impl AsyncFnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let looking = async {
        loop {
            if let Some(found) = find().await? {
                return Ok(found);
            }
            tokio::time::sleep(POLL).await;
        }
    };
    match tokio::time::timeout(deadline, looking).await {
        Ok(found) => found,
        Err(_elapsed) => Err(format!("not within {} s: {what}", deadline.as_secs()).into()),
    }
}
