//! A connection with one owner. Opened on demand, and opened again after it broke.

pub mod arrays;
pub mod error;
mod link;
pub mod pool;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{ConnectOptions, Connection as _};
use tracing::log::LevelFilter;

use self::error::{Cause, PostgresError};
use crate::clock;
use crate::domain::{Monotonic, Throttle};

/// Maximum time to open a connection, for every purpose. When opening takes longer, a new
/// attempt is more likely to succeed.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A connection that was idle for longer is pinged before it is used. The server may have closed it
/// meanwhile (a restart, a failover), and a statement that finds out has an unknown outcome.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Maximum time of that ping.
const SIGN_OF_LIFE_MAX: Duration = Duration::from_secs(2);
/// A statement is logged as slow when it takes longer than this and longer than a tenth of its
/// deadline.
const SLOW: Duration = Duration::from_secs(1);
/// Minimum time between two such log lines of one connection.
const SAY_SLOW_EVERY: Duration = Duration::from_secs(60);

/// The schemas of all tables and functions, unless the URL names others. A default of the role or
/// the database could name a schema with tables of the same names, or with another clock.
const SEARCH_PATH: &str = "\"$user\",public,pg_temp";

/// The URL parameters that the driver knows.
const PARAMETERS: [&str; 18] = [
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
];

/// The parameters that name an authority.
const ROOTS: [&str; 3] = ["sslrootcert", "ssl-root-cert", "ssl-ca"];

/// The address of Postgres. The password is never printed. Clones share the credentials, which may
/// be replaced: connections that are opened afterwards use the new ones.
#[derive(Clone)]
pub struct PostgresSettings {
    options: Arc<RwLock<PgConnectOptions>>,
    sessions: SessionCount,
}

/// Counts the sessions that were opened. With each new one, another server may be the primary, and
/// it may lack the last commits of the one before. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct SessionCount(Arc<AtomicU64>);

impl SessionCount {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn add_one(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl PostgresSettings {
    /// Parses a `postgres://` URL. `?host=/folder` names the folder of a Unix socket.
    pub fn new(url: &str) -> Result<Self, String> {
        // The driver's own message may repeat parts of the URL, including the password.
        if let Some(reason) = unknown_parameter(url) {
            return Err(reason);
        }
        let options = PgConnectOptions::from_str(url)
            .map_err(|_may_hold_the_password| reason_against(url).to_owned())?;
        // The driver takes such a list for one host name, and would try to resolve it forever.
        if options.get_socket().is_none() && options.get_host().contains(',') {
            return Err(
                "the URL names several hosts; give one name or address that follows the primary"
                    .to_owned(),
            );
        }
        let has_root = parameters(url).any(|(name, _)| ROOTS.contains(&name));
        if let Some(reason) = link::refusal(options.get_ssl_mode(), has_root) {
            return Err(reason.to_owned());
        }
        // Slow statements are logged by this module, without their text.
        let options = options
            .log_statements(LevelFilter::Off)
            .log_slow_statements(LevelFilter::Off, Duration::MAX);
        Ok(Self { options: Arc::new(RwLock::new(options)), sessions: SessionCount::default() })
    }

    /// Takes user and password, and the files of certificates, from another URL.
    ///
    /// # Errors
    /// When it is no URL, or the URL of another server or database, or of a less protected
    /// connection: the tables would be those of another cluster.
    pub fn replace_credentials(&self, url: &str) -> Result<(), String> {
        let new = Self::new(url)?;
        let ssl_mode = |settings: &Self| ssl_mode_name(settings.options.read().get_ssl_mode());
        if new.place() != self.place() || ssl_mode(&new) != ssl_mode(self) {
            return Err(
                "another server, database or sslmode needs a restart; only user, password and \
                 certificates can change"
                    .to_owned(),
            );
        }
        *self.options.write() = new.current();
        Ok(())
    }

    fn current(&self) -> PgConnectOptions {
        self.options.read().clone()
    }

    /// Returns these settings with another setting of the session.
    #[must_use]
    pub fn with_session_setting(self, name: &str, value: &str) -> Self {
        let options = self.current().options([(name, value)]);
        Self { options: Arc::new(RwLock::new(options)), ..self }
    }

    /// Returns the host of a connection over TCP that others on the way could read or answer.
    pub fn unverified_host(&self) -> Option<String> {
        link::unverified_host(&self.options.read()).map(str::to_owned)
    }

    /// Returns the count of the sessions of all connections with these settings.
    pub fn sessions(&self) -> SessionCount {
        self.sessions.clone()
    }

    /// Returns the host (or socket folder), port and database, for messages.
    pub fn place(&self) -> String {
        let options = self.options.read();
        let host = options
            .get_socket()
            .map_or_else(|| options.get_host().to_owned(), |path| path.display().to_string());
        format!("{host}:{}/{}", options.get_port(), options.get_database().unwrap_or_default())
    }
}

/// Finds a URL parameter that the driver does not know. The driver would ignore it, and would log
/// it with its value, which is a password when its name was mistyped.
fn unknown_parameter(url: &str) -> Option<String> {
    let is_known = |name: &str| {
        PARAMETERS.contains(&name) || name.starts_with("options[") || name.starts_with("options%5B")
    };
    let is_unknown = parameters(url).any(|(name, _)| !is_known(name));
    is_unknown.then(|| {
        format!("the URL has an unknown parameter; the valid ones are {}", PARAMETERS.join(", "))
    })
}

fn parameters(url: &str) -> impl Iterator<Item = (&str, &str)> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// `PgSslMode` cannot be compared.
const fn ssl_mode_name(mode: PgSslMode) -> &'static str {
    match mode {
        PgSslMode::Disable => "disable",
        PgSslMode::Allow => "allow",
        PgSslMode::Prefer => "prefer",
        PgSslMode::Require => "require",
        PgSslMode::VerifyCa => "verify-ca",
        PgSslMode::VerifyFull => "verify-full",
    }
}

/// Explains why the driver does not accept a URL, without repeating any part of it.
fn reason_against(url: &str) -> &'static str {
    let wrong = parameters(url).find_map(|(name, value)| match name {
        "sslmode" | "ssl-mode" if value.parse::<PgSslMode>().is_err() => {
            Some("its sslmode must be disable, allow, prefer, require, verify-ca or verify-full")
        }
        "port" if value.parse::<u16>().is_err() => Some("its port must be a number up to 65535"),
        "hostaddr" if value.parse::<IpAddr>().is_err() => {
            Some("its hostaddr must be an IP address")
        }
        "statement-cache-capacity" if value.parse::<usize>().is_err() => {
            Some("its statement-cache-capacity must be a number")
        }
        _ => None,
    });
    wrong.unwrap_or(
        "not a URL of the form postgres://user:password@host:port/database (in a password, write / \
         ? # and @ as %2F %3F %23 and %40)",
    )
}

impl fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())
    }
}

/// The purpose of a connection: its name in `pg_stat_activity`, its deadline, and its additional
/// settings.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionPurpose {
    pub name: &'static str,
    /// Deadline for connecting and for each statement. Postgres itself cancels a statement at the
    /// same deadline.
    pub deadline: Duration,
    /// `-c` settings of the session, in addition to those that every connection pins.
    pub settings: &'static [(&'static str, &'static str)],
}

/// A connection with a purpose. Its owner is one background task, so a dropped future never
/// interrupts a statement. Connections of a [`pool::Pool`] are the exception.
#[derive(Debug)]
pub struct Connection {
    purpose: ConnectionPurpose,
    settings: PostgresSettings,
    /// First statement of each session.
    beginning: Option<&'static str>,
    /// True for sessions without settings, as a pooler in transaction mode gives them.
    is_plain: bool,
    open: Option<PgConnection>,
    /// Time of the last use: when a statement began, or when the connection was returned.
    used_at: Monotonic,
    slow_said: Throttle,
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
            used_at: Monotonic::default(),
            slow_said: Throttle::new(SAY_SLOW_EVERY),
        }
    }

    /// Returns this connection with a statement that begins each session.
    pub fn beginning_with(self, statement: &'static str) -> Self {
        Self { beginning: Some(statement), ..self }
    }

    /// Returns this connection without settings of its sessions. It may lead through a pooler that
    /// gives each transaction another session: prepare nothing, and set everything in the
    /// transaction.
    #[must_use]
    pub fn plain(self) -> Self {
        Self { is_plain: true, ..self }
    }

    /// Returns the open connection, and opens it first if necessary.
    pub async fn open(&mut self) -> Result<&mut PgConnection, PostgresError> {
        let connection = match self.living().await {
            Some(open) => open,
            None => {
                let what = format!("connect for {}", self.purpose.name);
                // The future is large and rarely needed, so it is on the heap.
                let opened = within(self.connect_deadline(), Box::pin(self.connect()))
                    .await
                    // Callers wait and retry, whatever the reason is.
                    .map_err(|source| PostgresError::Unreachable { what, source })?;
                self.settings.sessions.add_one();
                opened
            }
        };
        self.used_at = clock::monotonic();
        Ok(self.open.insert(connection))
    }

    /// Opens the connection when it is closed, or when it has died silently.
    pub async fn keep_open(&mut self) -> Result<(), PostgresError> {
        self.open().await.map(drop)
    }

    /// Returns the options of a new session.
    fn options(&self) -> PgConnectOptions {
        // Defaults of a role or a database must not break a guarantee. So each connection pins
        // every setting that it relies on.
        let purpose = self.purpose;
        let deadline = purpose.deadline.as_millis().to_string();
        let options = self.settings.current();
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
                // A claim answers before it commits. A client that never reads the answer (a frozen
                // node, a lost machine) must not keep its rows locked. Over a Unix socket the end
                // of the process unlocks them.
                ("tcp_user_timeout", "5s"),
                ("statement_timeout", deadline.as_str()),
                ("jit", "off"),
                (PINNED, "on"),
            ])
            .options(purpose.settings.iter().copied())
    }

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let mut open = self.options().connect().await?;
        if let Some(statement) = self.beginning {
            sqlx::query(statement).execute(&mut open).await?;
        }
        Ok(open)
    }

    /// Returns the open connection, unless it died while it was idle.
    async fn living(&mut self) -> Option<PgConnection> {
        let mut open = self.open.take()?;
        if clock::monotonic().since(self.used_at) < IDLE_MAX {
            return Some(open);
        }
        match within(SIGN_OF_LIFE_MAX, open.ping()).await {
            Ok(()) => Some(open),
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
        // The cause of a refusal may be this server (it has become a standby) or this connection. A
        // new connection may succeed.
        if matches!(outcome, Err(PostgresError::Unanswered { .. } | PostgresError::Refused { .. }))
        {
            self.close();
        }
        outcome
    }

    /// Logs a slow statement, without its text and its values, at most once a minute.
    fn took(&mut self, what: &str, deadline: Duration) {
        let now = clock::monotonic();
        let took = now.since(self.used_at);
        if took >= SLOW.max(deadline / 10) && self.slow_said.lets_through(now) {
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
async fn within<T>(
    deadline: Duration,
    future: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Cause> {
    match tokio::time::timeout(deadline, future).await {
        Ok(answer) => Ok(answer?),
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
    fn a_wrong_url_is_refused_with_the_reason_and_without_the_password() {
        for (url, reason) in [
            ("postgres://me:hunter2@db/punctual?sslmode=nope", "verify-full"),
            ("postgres://me:hunter2@db/punctual?application_name=a&sslmode=hunter2", "verify-full"),
            ("postgres://me:hunter2@db/punctual?port=65536", "port"),
            ("postgres://me:hunter2@db/punctual?hostaddr=db", "hostaddr"),
            (
                "postgres://me:hunter2@db/punctual?statement-cache-capacity=much",
                "statement-cache-capacity",
            ),
            ("postgres://me:hunter2/3@db/punctual", "%2F"),
            ("postgres://me:hunter2?sslmode=require@db/punctual", "verify-full"),
            (
                "postgres://me@db/punctual?pasword=hunter2",
                "the valid ones are host, hostaddr, port, dbname, user, password",
            ),
            ("postgres://me@db/punctual?hunter2", "an unknown parameter"),
            ("postgres://me:hunter2@one,two/punctual", "several hosts"),
            ("postgres:///punctual?host=127.0.0.1,127.0.0.2&password=hunter2", "several hosts"),
        ] {
            let said = PostgresSettings::new(url).unwrap_err();
            assert!(said.contains(reason) && !said.contains("hunter2"), "{url}: {said}");
        }
        let settings =
            PostgresSettings::new("postgres://me:hunter2@db/punctual?sslmode=Verify-Full").unwrap();
        assert_eq!(settings.place(), "db:5432/punctual");
    }

    #[test]
    fn credentials_are_replaced_and_neither_the_server_nor_its_protection_is() {
        let url = "postgres://me:hunter2@db/punctual?sslmode=verify-full";
        let settings = PostgresSettings::new(url).unwrap();
        let clone = settings.clone();
        settings.replace_credentials("postgres://you:new@db/punctual?sslmode=verify-full").unwrap();
        assert_eq!(clone.current().get_username(), "you");
        for other in [
            "postgres://you:new@elsewhere/punctual?sslmode=verify-full",
            "postgres://you:new@db/other?sslmode=verify-full",
            "postgres://you:new@db:5433/punctual?sslmode=verify-full",
            "postgres://you:new@db/punctual?sslmode=require",
            "postgres://you:new@db/punctual",
            "nonsense",
        ] {
            assert!(settings.replace_credentials(other).is_err(), "{other}");
        }
        assert_eq!(clone.current().get_username(), "you");
    }

    #[test]
    fn the_url_alone_names_another_schema() {
        let options = |url: &str| {
            let purpose =
                ConnectionPurpose { name: "test", deadline: Duration::from_secs(1), settings: &[] };
            let connection = Connection::new(&PostgresSettings::new(url).unwrap(), purpose);
            connection.options().get_options().unwrap().to_owned()
        };
        assert!(options("postgres://db/p").contains(r#"-c search_path="$user",public,pg_temp "#));
        let other = options("postgres://db/p?options[search_path]=other");
        assert!(other.contains("-c search_path=other ") && !other.contains("public"), "{other}");
    }
}
