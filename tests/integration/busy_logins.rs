//! A node without idle CPU logs in to Postgres in time. If it did not, it would stay without
//! connections after a restart of Postgres.

use std::time::Duration;

use punctual::postgres::PostgresSettings;
use punctual::postgres::connection::{Connection, ConnectionPurpose};
use sqlx::postgres::PgConnectOptions;
use tokio::time::Instant;

use crate::support::{Database, Stack};

const PURPOSE: ConnectionPurpose =
    ConnectionPurpose { name: "busy", deadline: Duration::from_secs(5), settings: &[] };
/// Together one turn of all tasks takes 20 ms. The driver alone would need over 800 turns.
const OTHER_TASKS: usize = 20;
const TURN: Duration = Duration::from_millis(1);

#[tokio::test]
async fn a_busy_node_logs_in_to_postgres_in_time() {
    let stack = Stack::shared();
    let database = Database::create(&stack, "busy-logins").await;
    let options: PgConnectOptions = stack.database_url.parse().unwrap();
    // Over TCP, where the server asks for the password.
    let url = format!(
        "postgres://punctual:punctual@127.0.0.1:{}/{}?sslmode=disable",
        options.get_port(),
        database.name
    );
    let settings = PostgresSettings::new(&url).unwrap();
    let busy: Vec<_> = (0..OTHER_TASKS)
        .map(|_| {
            tokio::spawn(async {
                loop {
                    let until = Instant::now() + TURN;
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let opened = Connection::new(&settings, PURPOSE).keep_open().await;
    busy.iter().for_each(tokio::task::JoinHandle::abort);
    opened.expect("it logs in within five seconds");
}
