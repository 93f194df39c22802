//! A connection of one's own, opened when it is needed and opened again after it broke.

pub mod arrays;
pub mod error;
pub mod pool;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{ConnectOptions, Connection as _};
use tracing::log::LevelFilter;

use self::error::{Cause, Error};
use crate::clock;
use crate::domain::{Monotonic, Throttle};

/// Opening a connection may take no longer, whatever it is for: where that takes longer, another
/// attempt fares better.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A connection that was not used for so long is asked for a sign of life first: the server may
/// have closed it meanwhile (a restart, a fail-over), and a statement that finds that out has an
/// unknown outcome.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// How long it may take to give it.
const SIGN_OF_LIFE_MAX: Duration = Duration::from_secs(2);
/// A statement that takes longer (and a tenth of its deadline) is told of, ..
const SLOW: Duration = Duration::from_secs(1);
/// .. once in so long for each connection.
const SAY_SLOW_EVERY: Duration = Duration::from_secs(60);

/// The parameters of a URL that the driver knows.
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

/// Where Postgres is. The password is never printed.
#[derive(Clone)]
pub struct Settings {
    options: PgConnectOptions,
}

impl Settings {
    /// `url` is a `postgres://` URL; `?host=/folder` names the folder of a Unix socket.
    pub fn new(url: &str) -> Result<Self, String> {
        // The driver's own message may repeat parts of the URL, with the password in it.
        if let Some(reason) = unknown_parameter(url) {
            return Err(reason);
        }
        let options = PgConnectOptions::from_str(url).map_err(|_may_hold_the_password| reason_against(url).to_owned())?;
        // The driver takes them for one name, and asks for its address for ever.
        if options.get_socket().is_none() && options.get_host().contains(',') {
            return Err("it names several hosts: one is wanted, a name or an address that follows the primary".to_owned());
        }
        // Slow ones are told of here, without their text.
        let options = options.log_statements(LevelFilter::Off).log_slow_statements(LevelFilter::Off, Duration::MAX);
        Ok(Self { options })
    }

    /// Host (or socket folder), port and database, for messages.
    pub fn place(&self) -> String {
        let host =
            self.options.get_socket().map_or_else(|| self.options.get_host().to_owned(), |path| path.display().to_string());
        format!("{host}:{}/{}", self.options.get_port(), self.options.get_database().unwrap_or_default())
    }
}

/// The driver passes by what it does not know, and logs it with its value, a password whose name
/// was mistyped for example.
fn unknown_parameter(url: &str) -> Option<String> {
    let is_known = |name: &str| PARAMETERS.contains(&name) || name.starts_with("options[") || name.starts_with("options%5B");
    let is_unknown = parameters(url).any(|(name, _)| !is_known(name));
    is_unknown.then(|| format!("it has a parameter that is none of {}", PARAMETERS.join(", ")))
}

fn parameters(url: &str) -> impl Iterator<Item = (&str, &str)> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// What is wrong with a URL that the driver does not take, in words that hold no part of it.
fn reason_against(url: &str) -> &'static str {
    let wrong = parameters(url).find_map(|(name, value)| match name {
        "sslmode" | "ssl-mode" if value.parse::<PgSslMode>().is_err() => {
            Some("its sslmode is none of disable, allow, prefer, require, verify-ca and verify-full")
        }
        "port" if value.parse::<u16>().is_err() => Some("its port is no number up to 65535"),
        "hostaddr" if value.parse::<IpAddr>().is_err() => Some("its hostaddr is no IP address"),
        "statement-cache-capacity" if value.parse::<usize>().is_err() => Some("its statement-cache-capacity is no number"),
        _ => None,
    });
    wrong.unwrap_or(
        "not a URL of the form postgres://user:password@host:port/database (in a password, / ? # and @ are written %2F %3F %23 %40)",
    )
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())
    }
}

/// What a connection is for: its name in `pg_stat_activity`, its deadline, and the settings that
/// differ from the others'.
#[derive(Clone, Copy, Debug)]
pub struct Purpose {
    pub name: &'static str,
    /// For connecting and for each statement; Postgres itself gives up on a statement then, too.
    pub deadline: Duration,
    /// `-c` settings of the session, besides those that every connection pins.
    pub settings: &'static [(&'static str, &'static str)],
}

/// A connection with a purpose. Its owner is one task, so a statement is never cut off by a dropped
/// future; but for those of a [`pool::Pool`].
#[derive(Debug)]
pub struct Connection {
    purpose: Purpose,
    options: PgConnectOptions,
    /// The first statement of each session.
    beginning: Option<&'static str>,
    open: Option<PgConnection>,
    /// When it was last taken up for a statement, or given back.
    used_at: Monotonic,
    slow_said: Throttle,
}

/// A setting of our own: a session that does not know it has lost the others as well.
pub(super) const PINNED: &str = "punctual.pinned";

impl Connection {
    pub fn new(settings: &Settings, purpose: Purpose) -> Self {
        // What a role or a database has as its defaults must not break a promise: each connection
        // pins what it relies on.
        let deadline = purpose.deadline.as_millis().to_string();
        let options = settings
            .options
            .clone()
            .application_name(&format!("punctual {}", purpose.name))
            .statement_cache_capacity(64)
            .options([
                ("synchronous_commit", "on"),
                ("default_transaction_isolation", "read committed"),
                ("default_transaction_read_only", "off"),
                ("lock_timeout", "1s"),
                ("idle_in_transaction_session_timeout", "5s"),
                ("idle_session_timeout", "0"),
                // A claim answers before it commits. Whoever does not read that (a frozen node, a
                // machine that is gone) must not keep its rows locked; over a Unix socket the end
                // of the process does it.
                ("tcp_user_timeout", "5s"),
                ("statement_timeout", deadline.as_str()),
                ("jit", "off"),
                (PINNED, "on"),
            ])
            .options(purpose.settings.iter().copied());
        Self {
            purpose,
            options,
            beginning: None,
            open: None,
            used_at: Monotonic::default(),
            slow_said: Throttle::new(SAY_SLOW_EVERY),
        }
    }

    /// A connection each session of which begins with this statement.
    pub fn beginning_with(self, statement: &'static str) -> Self {
        Self { beginning: Some(statement), ..self }
    }

    /// The open connection, after opening it when need be.
    pub async fn open(&mut self) -> Result<&mut PgConnection, Error> {
        let connection = match self.living().await {
            Some(open) => open,
            None => {
                let what = format!("connect for {}", self.purpose.name);
                within(self.connect_deadline(), self.connect())
                    .await
                    // Whatever the reason, callers wait and try again.
                    .map_err(|source| Error::Unreachable { what, source })?
            }
        };
        self.used_at = clock::monotonic();
        Ok(self.open.insert(connection))
    }

    /// Opens the connection when it is not open, or is gone without a word.
    pub async fn keep_open(&mut self) -> Result<(), Error> {
        self.open().await.map(drop)
    }

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let mut open = self.options.connect().await?;
        if let Some(statement) = self.beginning {
            sqlx::query(statement).execute(&mut open).await?;
        }
        Ok(open)
    }

    /// The connection that is open, unless it has died of idleness.
    async fn living(&mut self) -> Option<PgConnection> {
        let mut open = self.open.take()?;
        if clock::monotonic().since(self.used_at) < IDLE_MAX {
            return Some(open);
        }
        match within(SIGN_OF_LIFE_MAX, open.ping()).await {
            Ok(()) => Some(open),
            Err(cause) => {
                tracing::debug!(purpose = self.purpose.name, %cause, "an idle connection to Postgres is gone; opening another one");
                None
            }
        }
    }

    /// Runs a statement on the open connection within the deadline. After a failure that leaves the
    /// connection in doubt it is closed.
    pub async fn run<T, F>(&mut self, what: &str, statement: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        self.open().await?;
        self.run_in_session(what, statement).await
    }

    /// Like `run`, but never on a new connection: what the session holds, such as a lock, is still
    /// held.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when the session has ended.
    pub async fn run_in_session<T, F>(&mut self, what: &str, statement: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        let deadline = self.purpose.deadline;
        let Some(connection) = self.open.as_mut() else {
            return Err(Error::Unreachable { what: what.to_owned(), source: Cause::Fact("the session has ended") });
        };
        self.used_at = clock::monotonic();
        let outcome = within(deadline, statement(connection)).await.map_err(|cause| Error::new(what, cause));
        self.took(what, deadline);
        // A refusal may be the server's (it has become a standby) or the connection's: another one
        // may fare better.
        if matches!(outcome, Err(Error::Unanswered { .. } | Error::Refused { .. })) {
            self.close();
        }
        outcome
    }

    /// A statement that was slow is told of, without its text and its values; at most once a
    /// minute.
    fn took(&mut self, what: &str, deadline: Duration) {
        let now = clock::monotonic();
        let took = now.since(self.used_at);
        if took >= SLOW.max(deadline / 10) && self.slow_said.lets_through(now) {
            tracing::warn!(purpose = self.purpose.name, took_ms = took.as_millis(), "Postgres was slow to {what}");
        }
        self.used_at = now;
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Drops the connection without a word: what it was doing is in doubt.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Closes the connection once the server has ended what it was asked for, at the deadline at
    /// the latest: for a statement whose caller has been dropped.
    pub async fn wind_up(mut self) {
        let Some(mut open) = self.open.take() else { return };
        // What comes before the answer to this is the answer to that. Its session may be amid a
        // transaction: nobody goes on with it.
        if let Err(cause) = within(self.purpose.deadline, open.ping()).await {
            tracing::debug!(purpose = self.purpose.name, %cause, "the end of a statement that nobody waits for was not awaited");
        }
    }

    fn connect_deadline(&self) -> Duration {
        self.purpose.deadline.min(CONNECT_MAX)
    }
}

/// Bounds `future` by `deadline`.
async fn within<T>(deadline: Duration, future: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Cause> {
    match tokio::time::timeout(deadline, future).await {
        Ok(answer) => Ok(answer?),
        Err(_elapsed) => Err(Cause::Deadline(deadline)),
    }
}

/// It is the time between two statements that has no bound.
const OLD_SNAPSHOT: Purpose =
    Purpose { name: "old snapshot", deadline: Duration::from_secs(5), settings: &[("idle_in_transaction_session_timeout", "0")] };

/// A session that somebody forgot: its snapshot keeps Postgres from cleaning up. `bench` holds one,
/// to show that tasks are on time all the same. Held until it is dropped.
#[derive(Debug)]
pub struct OldSnapshot {
    _connection: Connection,
}

impl OldSnapshot {
    /// Begins a repeatable-read transaction and takes its snapshot.
    ///
    /// # Errors
    /// When Postgres cannot be reached.
    pub async fn hold(settings: &Settings) -> Result<Self, Error> {
        let mut connection = Connection::new(settings, OLD_SNAPSHOT);
        connection
            .run("hold an old snapshot", async |open| {
                sqlx::query("-- begin to hold\nbegin isolation level repeatable read").execute(&mut *open).await?;
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
            ("postgres://me:hunter2@db/punctual?statement-cache-capacity=much", "statement-cache-capacity"),
            ("postgres://me:hunter2/3@db/punctual", "%2F"),
            ("postgres://me:hunter2?sslmode=require@db/punctual", "verify-full"),
            (
                "postgres://me@db/punctual?pasword=hunter2",
                "a parameter that is none of host, hostaddr, port, dbname, user, password",
            ),
            ("postgres://me@db/punctual?hunter2", "a parameter that is none of"),
            ("postgres://me:hunter2@one,two/punctual", "several hosts"),
            ("postgres:///punctual?host=127.0.0.1,127.0.0.2&password=hunter2", "several hosts"),
        ] {
            let said = Settings::new(url).unwrap_err();
            assert!(said.contains(reason) && !said.contains("hunter2"), "{url}: {said}");
        }
        let settings = Settings::new("postgres://me:hunter2@db/punctual?sslmode=Verify-CA").unwrap();
        assert_eq!(settings.place(), "db:5432/punctual");
    }
}
