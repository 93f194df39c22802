//! The address of Postgres, as its URL gives it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tracing::log::LevelFilter;

use super::primary::{Primary, PrimaryChanges, place_of};
use super::{link, url};
use crate::postgres::unsettled::SharedUnsettledFloor;
use crate::sealing::PayloadKeys;

/// The address of Postgres: one host, or several of which one is the primary. The password is never
/// printed. Clones share the credentials, which may be replaced: connections that are opened
/// afterwards use the new ones.
#[derive(Clone)]
pub struct PostgresSettings {
    /// One for each host, at least one. They differ only in host and port.
    hosts: Arc<RwLock<Vec<PgConnectOptions>>>,
    sessions: SessionCount,
    pub(super) primary: Primary,
    /// The keys for the records in this database. Empty when records are not encrypted.
    keys: PayloadKeys,
    unsettled: SharedUnsettledFloor,
}

/// Counts the sessions that were opened. With each new one, another server may be the primary, and
/// it may lack the last commits of the one before. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct SessionCount(Arc<AtomicU64>);

impl SessionCount {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl PostgresSettings {
    /// Parses a `postgres://` URL. `?host=/folder` names the folder of a Unix socket. A list of
    /// hosts names the servers of which one is the primary.
    pub fn new(url: &str) -> Result<Self, String> {
        let has_root = url::has_root(url);
        let hosts = url::per_host(url)?
            .iter()
            .map(|url| options_of(url, has_root))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            hosts: Arc::new(RwLock::new(hosts)),
            sessions: SessionCount::default(),
            primary: Primary::default(),
            keys: PayloadKeys::default(),
            unsettled: SharedUnsettledFloor::default(),
        })
    }

    /// Takes user and password, and the files of certificates, from another URL.
    ///
    /// # Errors
    /// When it is no URL, or its server, database, schema (`options`) or protection is another one:
    /// the tables would be those of another cluster.
    pub fn replace_credentials(&self, url: &str) -> Result<(), String> {
        let new = Self::new(url)?;
        let is_same = new.place() == self.place()
            && new.ssl_mode() == self.ssl_mode()
            && new.session_options() == self.session_options();
        if !is_same {
            return Err(
                "another server, database, sslmode or options need a restart; only user, password \
                 and certificates can change"
                    .to_owned(),
            );
        }
        *self.hosts.write() = new.current();
        Ok(())
    }

    /// Returns the keys for the records in this database.
    pub fn payload_keys(&self) -> &PayloadKeys {
        &self.keys
    }

    /// Returns the floor of the unsettled batches of this database.
    pub fn unsettled_floor(&self) -> &SharedUnsettledFloor {
        &self.unsettled
    }

    /// Returns the options of each host.
    pub(super) fn current(&self) -> Vec<PgConnectOptions> {
        self.hosts.read().clone()
    }

    /// Returns these settings with another setting of the session.
    #[must_use]
    pub fn with_session_setting(self, name: &str, value: &str) -> Self {
        let hosts = self.current().into_iter().map(|host| host.options([(name, value)]));
        Self { hosts: Arc::new(RwLock::new(hosts.collect())), ..self }
    }

    /// Returns the hosts of connections over TCP that others on the way could read or answer.
    pub fn unverified_hosts(&self) -> Vec<String> {
        let hosts = self.hosts.read();
        hosts.iter().filter_map(link::unverified_host).map(str::to_owned).collect()
    }

    /// Returns the count of the sessions of all connections with these settings.
    pub fn sessions(&self) -> SessionCount {
        self.sessions.clone()
    }

    /// Returns how often another of the hosts became the primary.
    pub fn primary_changes(&self) -> PrimaryChanges {
        self.primary.changes()
    }

    /// Returns hosts (or socket folders) with ports, and the database, for messages.
    pub fn place(&self) -> String {
        let hosts = self.hosts.read();
        let database = hosts.first().and_then(PgConnectOptions::get_database).unwrap_or_default();
        let places: Vec<String> = hosts.iter().map(place_of).collect();
        format!("{}/{database}", places.join(","))
    }

    fn session_options(&self) -> Option<String> {
        self.hosts.read().first().and_then(PgConnectOptions::get_options).map(str::to_owned)
    }

    fn ssl_mode(&self) -> Option<&'static str> {
        self.hosts.read().first().map(|host| ssl_mode_name(host.get_ssl_mode()))
    }
}

/// Parses the URL of one host.
fn options_of(url: &str, has_root: bool) -> Result<PgConnectOptions, String> {
    // The driver's own message may repeat parts of the URL, including the password.
    let options = PgConnectOptions::from_str(url)
        .map_err(|_may_hold_the_password| url::reason_against(url).to_owned())?;
    // The driver takes such a list for one host name, and would try to resolve it forever.
    if options.get_socket().is_none() && options.get_host().contains(',') {
        return Err(
            "the environment (PGHOST, PGHOSTADDR) names several hosts; name them in the URL"
                .to_owned(),
        );
    }
    if let Some(reason) = link::refusal(options.get_ssl_mode(), has_root) {
        return Err(reason.to_owned());
    }
    // The driver would resolve an address in brackets as a name, and find none.
    let address = options.get_host().strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let options = match address.map(str::to_owned) {
        Some(address) => options.host(&address),
        None => options,
    };
    // Slow statements are logged by the connection, without their text.
    Ok(options
        .log_statements(LevelFilter::Off)
        .log_slow_statements(LevelFilter::Off, Duration::MAX))
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

impl fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())
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
        ] {
            let said = PostgresSettings::new(url).unwrap_err();
            assert!(said.contains(reason) && !said.contains("hunter2"), "{url}: {said}");
        }
        let settings =
            PostgresSettings::new("postgres://me:hunter2@db/punctual?sslmode=Verify-Full").unwrap();
        assert_eq!(settings.place(), "db:5432/punctual");
    }

    #[test]
    fn an_address_of_ipv6_is_given_to_the_driver_without_its_brackets() {
        let url = "postgres://me@[2001:db8::1]:5433,db/punctual?target_session_attrs=primary";
        let settings = PostgresSettings::new(url).unwrap();
        let hosts = settings.current();
        assert_eq!((hosts[0].get_host(), hosts[0].get_port()), ("2001:db8::1", 5433));
        assert_eq!(settings.place(), "[2001:db8::1]:5433,db:5432/punctual");
    }

    #[test]
    fn credentials_are_replaced_and_neither_the_server_nor_its_protection_is() {
        let url = "postgres://me:hunter2@db/punctual?sslmode=verify-full";
        let settings = PostgresSettings::new(url).unwrap();
        let clone = settings.clone();
        settings.replace_credentials("postgres://you:new@db/punctual?sslmode=verify-full").unwrap();
        assert_eq!(clone.current()[0].get_username(), "you");
        for other in [
            "postgres://you:new@elsewhere/punctual?sslmode=verify-full",
            "postgres://you:new@db/other?sslmode=verify-full",
            "postgres://you:new@db:5433/punctual?sslmode=verify-full",
            "postgres://you:new@db/punctual?sslmode=require",
            "postgres://you:new@db/punctual",
            "postgres://you:new@db/punctual?sslmode=verify-full&options[search_path]=other",
            "nonsense",
        ] {
            assert!(settings.replace_credentials(other).is_err(), "{other}");
        }
        assert_eq!(clone.current()[0].get_username(), "you");
    }
}
