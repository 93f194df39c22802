//! Waits for conditions. Only this file sleeps: a test that waits names the condition.

use std::time::{Duration, Instant, SystemTime};

/// The first interval between two checks of a condition.
const POLL: Duration = Duration::from_millis(15);
/// The longest interval. A condition that stays false is checked less and less often, because a
/// check may count thousands of rows beside other tests that run meanwhile.
const POLL_PATIENT: Duration = Duration::from_millis(120);
const PATIENT_AFTER: Duration = Duration::from_millis(500);

/// Waits until `holds`. After `deadline` the test fails, with a message that `what` did not come
/// true.
pub async fn eventually(what: &str, deadline: Duration, mut holds: impl AsyncFnMut() -> bool) {
    eventually_some(what, deadline, async || holds().await.then_some(())).await;
}

/// Waits until there is a value to return.
pub async fn eventually_some<T>(
    what: &str,
    deadline: Duration,
    find: impl AsyncFnMut() -> Option<T>,
) -> T {
    let found = look_for(deadline, find).await;
    found.unwrap_or_else(|| panic!("not within {deadline:?}: {what}"))
}

/// Repeats a look-up until there is a value or `deadline` has passed.
pub async fn look_for<T>(
    deadline: Duration,
    mut find: impl AsyncFnMut() -> Option<T>,
) -> Option<T> {
    let began = Instant::now();
    let mut poll = POLL;
    loop {
        let found = find().await;
        let waited = began.elapsed();
        if found.is_some() || waited >= deadline {
            return found;
        }
        tokio::time::sleep(poll).await;
        if waited >= PATIENT_AFTER {
            poll = poll.mul_f64(1.5).min(POLL_PATIENT);
        }
    }
}

/// Checks for a time span that `holds` never stops being true.
pub async fn throughout(what: &str, span: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert!(holds().await, "should hold for {span:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Waits until the machine's wall clock shows `millis`. For planned actions of a test, never for
/// conditions.
pub async fn until(millis: i64) {
    let wait = u64::try_from(millis - now_ms()).unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(wait)).await;
}

/// Returns the milliseconds since the epoch by the machine's wall clock, the clock of Postgres and
/// Kafka in these tests.
pub fn now_ms() -> i64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since_epoch.as_millis()).unwrap()
}
