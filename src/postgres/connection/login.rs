//! Logins to Postgres that end in time on a busy node.
//!
//! For a password of the default kind (SCRAM-SHA-256) the driver computes 4,096 rounds of a hash,
//! and yields after each five of them. Each yield lasts as long as all other ready tasks of the
//! thread take for one turn. With ten milliseconds per turn, a login needs eight seconds and misses
//! its deadline, and the repeated logins keep the node busy. In the fault runner, nodes on a
//! machine without idle CPU were without connections for 45 to 107 s after a restart of Postgres.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

/// Maximum number of polls of a login in one turn of its task: 13 turns for the hash instead of
/// 819. A login that waits for the server is polled as often, for nothing.
const POLLS_PER_TURN: usize = 64;

/// Opens a session.
pub(super) async fn log_in(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    in_few_turns(options.connect()).await
}

async fn in_few_turns<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        for _poll in 0..POLLS_PER_TURN {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                return Poll::Ready(value);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_future_that_yields_often_needs_few_turns() {
        let mut turns = 0;
        let other = async {
            loop {
                turns += 1;
                tokio::task::yield_now().await;
            }
        };
        let often = in_few_turns(async {
            for _round in 0..640 {
                tokio::task::yield_now().await;
            }
        });
        tokio::select! {
            () = other => {}
            () = often => {}
        }
        assert!((9..=30).contains(&turns), "the other future had {turns} turns");
    }
}
