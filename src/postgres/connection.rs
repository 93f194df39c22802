//! A connection with one owner. Opened on demand, and opened again after it broke.

pub mod arrays;
pub mod error;
pub mod holder;
mod link;
mod login;
pub mod pool;
mod primary;
mod settings;
pub mod turns;
mod url;

use std::future::Future;
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use self::error::{Cause, PostgresError};
pub use self::primary::PrimaryChanges;
use self::primary::Timeline;
pub use self::settings::{PostgresSettings, SessionCount};
use crate::clock;
use crate::domain::{Monotonic, Throttle};

/// Maximum time to open a connection, for every purpose. When opening takes longer, a new
/// attempt is more likely to succeed.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A connection that was idle for longer is pinged before use. The server may have closed the
/// session meanwhile (a restart, a failover), and a statement that finds out has an unknown
/// outcome.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Maximum time of that ping.
const SIGN_OF_LIFE_MAX: Duration = Duration::from_secs(2);
/// A statement is logged as slow after this time, and after a tenth of the deadline.
const SLOW: Duration = Duration::from_secs(1);
/// Minimum time between two such log lines of one connection.
const LOG_SLOW_EVERY: Duration = Duration::from_secs(60);

/// The schemas of all tables and functions, unless the URL names others. A default of the role or
/// the database could name a schema with tables of the same names, or with another clock.
const SEARCH_PATH: &str = "\"$user\",public,pg_temp";

/// Settings for statements that name their rows by key. A generic plan would lock every leaf. For
/// hundreds of rows, the default settings would scan whole leaves, and start parallel workers.
pub const ROWS_BY_KEY: &[(&str, &str)] = &[
    ("plan_cache_mode", "force_custom_plan"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("max_parallel_workers_per_gather", "0"),
];

/// The purpose of a connection: the name in `pg_stat_activity`, the deadline, and additional
/// settings.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionPurpose {
    pub name: &'static str,
    /// Limits the statements of each call of `run`, which may be a whole transaction. Connecting
    /// takes at most this, and at most 5 s. Postgres itself cancels a single statement at the same
    /// deadline.
    pub deadline: Duration,
    /// `-c` settings of the session, in addition to those that every connection pins.
    pub settings: &'static [(&'static str, &'static str)],
}

/// A connection with a purpose. Its owner is one background task, so a dropped future never
/// interrupts a statement, except at the end of the node. Connections of a [`pool::Pool`] are
/// another exception.
#[derive(Debug)]
pub struct Connection {
    purpose: ConnectionPurpose,
    settings: PostgresSettings,
    /// First statement of each session.
    beginning: Option<&'static str>,
    /// True for sessions without settings, as a pooler in transaction mode gives them.
    is_plain: bool,
    open: Option<PgConnection>,
    /// The timeline of the server of the open session.
    timeline: Timeline,
    /// Time of the last use: when a statement began, or when the connection was returned.
    used_at: Monotonic,
    slow_log: Throttle,
}

/// A custom setting that marks a pinned session. A session without it has lost the other settings
/// as well.
pub(super) const PINNED: &str = "punctual.pinned";

impl Connection {
    pub fn new(settings: &PostgresSettings, purpose: ConnectionPurpose) -> Self {
        Self {
            purpose,
            settings: settings.clone(),
            beginning: None,
            is_plain: false,
            open: None,
            timeline: Timeline::default(),
            used_at: Monotonic::default(),
            slow_log: Throttle::new(LOG_SLOW_EVERY),
        }
    }

    /// Returns this connection with a statement that begins each session.
    pub fn beginning_with(self, statement: &'static str) -> Self {
        Self { beginning: Some(statement), ..self }
    }

    /// Returns this connection without settings of sessions. A pooler on the way may give each
    /// transaction another session: prepare nothing, and set everything in the transaction.
    #[must_use]
    pub fn plain(self) -> Self {
        Self { is_plain: true, ..self }
    }

    /// Returns the open connection, and opens it first if necessary.
    pub async fn open(&mut self) -> Result<&mut PgConnection, PostgresError> {
        let connection = match self.living(IDLE_MAX).await {
            Some(open) => open,
            None => self.new_session().await?,
        };
        Ok(self.open.insert(connection))
    }

    /// Opens the connection when closed, or when silently dead. The check is made after any idle
    /// time.
    pub async fn keep_open(&mut self) -> Result<(), PostgresError> {
        let connection = match self.living(Duration::ZERO).await {
            Some(open) => open,
            None => self.new_session().await?,
        };
        self.open = Some(connection);
        Ok(())
    }

    async fn new_session(&mut self) -> Result<PgConnection, PostgresError> {
        let what = format!("connect for {}", self.purpose.name);
        // The future is large and rarely needed, so it is on the heap.
        let (opened, timeline) = within(self.connect_deadline(), Box::pin(self.connect()))
            .await
            // Callers wait and retry, whatever the reason is.
            .map_err(|source| PostgresError::Unreachable { what, source })?;
        self.settings.sessions().add_one();
        self.timeline = timeline;
        self.used_at = clock::monotonic();
        Ok(opened)
    }

    /// Returns the options of a new session on one of the hosts.
    fn options(&self, host: PgConnectOptions) -> PgConnectOptions {
        // Defaults of a role or a database must not break a guarantee. So each connection pins
        // every setting that it relies on.
        let (purpose, options) = (self.purpose, host);
        // The server gives up before the client does: then the statement certainly has no effect.
        let statement_timeout = (purpose.deadline / 10 * 9).as_millis().to_string();
        if self.is_plain {
            // A pooler refuses parameters that it does not know.
            return options
                .application_name(&format!("punctual {}", purpose.name))
                .statement_cache_capacity(0)
                .extra_float_digits(None);
        }
        let names_a_path = |options: &str| options.contains("search_path");
        let path = (!options.get_options().is_some_and(names_a_path)).then_some(SEARCH_PATH);
        options
            .options(path.map(|path| ("search_path", path)))
            .application_name(&format!("punctual {}", purpose.name))
            .statement_cache_capacity(64)
            .options([
                ("synchronous_commit", "on"),
                ("default_transaction_isolation", "read committed"),
                ("default_transaction_read_only", "off"),
                ("lock_timeout", "1s"),
                ("idle_in_transaction_session_timeout", "5s"),
                ("idle_session_timeout", "0"),
                // A claim answers before the commit. A client that never reads the answer (a frozen
                // node, a lost machine) must not keep rows locked. Over a Unix socket the end of
                // the process unlocks the rows.
                ("tcp_user_timeout", "5s"),
                ("statement_timeout", statement_timeout.as_str()),
                ("jit", "off"),
                (PINNED, "on"),
            ])
            .options(purpose.settings.iter().copied())
    }

    async fn connect(&self) -> Result<(PgConnection, Timeline), Cause> {
        let hosts = self.settings.current().into_iter().map(|host| self.options(host));
        let mut hosts: Vec<PgConnectOptions> = hosts.collect();
        let (mut open, timeline) = match (hosts.pop(), hosts.is_empty()) {
            // A single host is not asked for its timeline: its name or address follows the
            // primary.
            (Some(only), true) => (login::log_in(&only).await?, Timeline::default()),
            (last, _) => {
                hosts.extend(last);
                // The hosts get less time than the whole attempt, so that the error has the reason
                // of each host.
                self.settings.primary.connect(hosts, self.connect_deadline() * 3 / 4).await?
            }
        };
        if let Some(statement) = self.beginning {
            sqlx::query(statement).execute(&mut open).await?;
        }
        Ok((open, timeline))
    }

    /// Returns the open connection, unless it leads to a former primary, or died. A connection that
    /// was used within `trusted` is not asked.
    async fn living(&mut self, trusted: Duration) -> Option<PgConnection> {
        let mut open = self.open.take()?;
        if self.settings.primary.is_past(self.timeline) {
            tracing::debug!(
                purpose = self.purpose.name,
                "leaving a connection to a former primary of Postgres"
            );
            return None;
        }
        let asked_at = clock::monotonic();
        if asked_at.since(self.used_at) < trusted {
            return Some(open);
        }
        match within(SIGN_OF_LIFE_MAX, open.ping()).await {
            Ok(()) => {
                self.used_at = asked_at;
                Some(open)
            }
            Err(cause) => {
                tracing::debug!(
                    purpose = self.purpose.name, %cause,
                    "an idle connection to Postgres has ended; opening another one"
                );
                None
            }
        }
    }

    /// Runs a statement on the open connection within the deadline. Closes the connection after a
    /// failure that leaves its state uncertain.
    pub async fn run<T, F>(&mut self, what: &str, statement: F) -> Result<T, PostgresError>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        self.open().await?;
        self.run_in_session(what, statement).await
    }

    /// Like `run`, for a statement that changes nothing. When the session ends, the statement is
    /// repeated once on a new connection: often only use reveals a session closed by the server.
    pub async fn read<T, F>(
        &mut self,
        what: &str,
        statement: impl Fn() -> F,
    ) -> Result<T, PostgresError>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        match self.run(what, statement()).await {
            Err(error) if error.is_end_of_session() => self.run(what, statement()).await,
            outcome => outcome,
        }
    }

    /// Like `run`, but never on a new connection. So everything that the session holds, such as a
    /// lock, is still held.
    ///
    /// # Errors
    /// [`PostgresError::Unreachable`] when the session has ended.
    pub async fn run_in_session<T, F>(
        &mut self,
        what: &str,
        statement: F,
    ) -> Result<T, PostgresError>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        let deadline = self.purpose.deadline;
        let Some(connection) = self.open.as_mut() else {
            return Err(PostgresError::Unreachable {
                what: what.to_owned(),
                source: Cause::Fact("the session has ended"),
            });
        };
        self.used_at = clock::monotonic();
        let outcome = within(deadline, statement(connection))
            .await
            .map_err(|cause| PostgresError::new(what, cause));
        self.took(what, deadline);
        // The cause may be this server (a standby) or this connection. A new connection may
        // succeed.
        if matches!(
            outcome,
            Err(PostgresError::Unanswered { .. }
                | PostgresError::Unreachable { .. }
                | PostgresError::Refused { .. })
        ) {
            self.close();
        }
        outcome
    }

    /// Logs a slow statement, without its text and its values, at most once a minute.
    fn took(&mut self, what: &str, deadline: Duration) {
        let now = clock::monotonic();
        let took = now.since(self.used_at);
        if took >= SLOW.max(deadline / 10) && self.slow_log.lets_through(now) {
            tracing::warn!(
                purpose = self.purpose.name,
                took_ms = took.as_millis(),
                "Postgres was slow to {what}"
            );
        }
        self.used_at = now;
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Drops the connection without a goodbye, because the outcome of its last statement is
    /// unknown.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Closes the connection after the server has ended its last statement, or at the deadline. For
    /// a statement whose caller was dropped.
    pub async fn wind_up(mut self) {
        let Some(mut open) = self.open.take() else { return };
        // The answer to this ping comes after the answer to that statement. The session may be
        // inside a transaction, so the connection is not used again.
        if let Err(cause) = within(self.purpose.deadline, open.ping()).await {
            tracing::debug!(
                purpose = self.purpose.name, %cause,
                "did not wait for the end of a statement whose caller is gone"
            );
        }
    }

    fn connect_deadline(&self) -> Duration {
        self.purpose.deadline.min(CONNECT_MAX)
    }
}

/// Limits `future` to `deadline`.
async fn within<T, E: Into<Cause>>(
    deadline: Duration,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, Cause> {
    match tokio::time::timeout(deadline, future).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_elapsed) => Err(Cause::Deadline(deadline)),
    }
}

/// The time between two statements of the session has no limit.
const OLD_SNAPSHOT: ConnectionPurpose = ConnectionPurpose {
    name: "old snapshot",
    deadline: Duration::from_secs(5),
    settings: &[("idle_in_transaction_session_timeout", "0")],
};

/// A forgotten session, whose snapshot keeps Postgres from cleaning up. `bench` holds one to show
/// that tasks are still on time. The session lasts until it is dropped.
#[derive(Debug)]
pub struct OldSnapshot {
    _connection: Connection,
}

impl OldSnapshot {
    /// Begins a repeatable-read transaction and takes its snapshot.
    ///
    /// # Errors
    /// When Postgres cannot be reached.
    pub async fn hold(settings: &PostgresSettings) -> Result<Self, PostgresError> {
        let mut connection = Connection::new(settings, OLD_SNAPSHOT);
        connection
            .run("hold an old snapshot", async |open| {
                sqlx::query("-- begin to hold\nbegin isolation level repeatable read")
                    .execute(&mut *open)
                    .await?;
                sqlx::query("-- hold\nselect txid_current_snapshot()").execute(open).await
            })
            .await?;
        Ok(Self { _connection: connection })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_alone_names_another_schema() {
        let options = |url: &str| {
            let purpose =
                ConnectionPurpose { name: "test", deadline: Duration::from_secs(1), settings: &[] };
            let connection = Connection::new(&PostgresSettings::new(url).unwrap(), purpose);
            let host = connection.settings.current().remove(0);
            connection.options(host).get_options().unwrap().to_owned()
        };
        assert!(options("postgres://db/p").contains(r#"-c search_path="$user",public,pg_temp "#));
        let other = options("postgres://db/p?options[search_path]=other");
        assert!(other.contains("-c search_path=other ") && !other.contains("public"), "{other}");
    }
}
