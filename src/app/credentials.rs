//! Reads the files with the credentials for Postgres, Kafka and etcd again while the node runs.
//!
//! Open connections keep what they have, and new ones use the new credentials. A server should
//! therefore accept the old ones for some seconds longer. A file that is gone or wrong changes
//! nothing.

use std::path::PathBuf;
use std::time::Duration;

use crate::clock;
use crate::config::{
    self, CheckedSettings, Command, CommandRefusal, Etcd, Identity, Login, SettingProblem, Settings,
};
use crate::domain::Throttle;
use crate::etcd::{Credentials as EtcdCredentials, EtcdSettings};
use crate::kafka::{self, KafkaProperties};
use crate::postgres::PostgresSettings;
use crate::shutdown::{TaskFailure, Tasks};
use crate::telemetry::{Counter, Registry};

use super::{exposure, kafka_settings};

/// Interval at which the files are read.
const INTERVAL: Duration = Duration::from_secs(2);
/// Interval of the log lines about files that stay wrong.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Properties of Kafka that may change while the node runs begin with one of these.
const CHANGEABLE: [&str; 3] = ["sasl.", "ssl.", "https."];

/// The settings of the servers, whose credentials are replaced.
pub struct ServerSettings {
    pub postgres: PostgresSettings,
    pub kafka: KafkaProperties,
    pub etcd: Option<EtcdSettings>,
}

/// Keeps the credentials that the files have.
pub struct CredentialKeeper {
    files: Vec<PathBuf>,
    servers: ServerSettings,
    /// The contents of the files when they were last read.
    seen: Vec<Content>,
    /// The same of the files that Kafka's properties name, such as certificates.
    seen_by_kafka: Vec<Content>,
    is_wrong: bool,
    failures: Counter,
    refusal_log: Throttle,
}

impl CredentialKeeper {
    pub fn new(settings: &Settings, servers: ServerSettings, registry: &mut Registry) -> Self {
        let failures = Counter::default();
        registry.register(
            "punctual_credentials_reload_failures",
            "Failed attempts to read the files with the credentials for servers",
            failures.clone(),
        );
        Self {
            seen: read(&settings.credential_files),
            seen_by_kafka: read(&named_files(&servers.kafka.pairs())),
            files: settings.credential_files.clone(),
            servers,
            is_wrong: false,
            failures,
            refusal_log: Throttle::new(LOG_EVERY),
        }
    }

    /// Reads the files every two seconds until the node stops.
    ///
    /// # Errors
    /// When the check itself panics. A file that is gone or wrong is no failure.
    pub async fn run(mut self, tasks: Tasks) -> Result<(), TaskFailure> {
        loop {
            tokio::select! {
                () = clock::sleep(INTERVAL) => {}
                () = tasks.stopping.cancelled() => return Ok(()),
            }
            // A network file system may take its time. A stop does not wait for it.
            let turn = tokio::task::spawn_blocking(move || {
                self.check(settings_again);
                self
            });
            tokio::select! {
                turned = turn => self = turned?,
                () = tasks.stopping.cancelled() => return Ok(()),
            }
        }
    }

    fn check(&mut self, settings: impl FnOnce() -> Result<config::Invocation, CommandRefusal>) {
        self.check_files_of_kafka();
        let found = read(&self.files);
        if found == self.seen && !self.is_wrong {
            return;
        }
        self.seen = found;
        let reason = match settings() {
            Ok(config::Invocation { command: Command::Serve(settings), .. }) => {
                self.take(&settings).err()
            }
            Ok(_) => Some("the command line is not that of a node".to_owned()),
            Err(CommandRefusal::Problems(problems)) => {
                let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
                Some(texts.join("; "))
            }
            Err(CommandRefusal::Usage(_)) => Some("the command line is wrong".to_owned()),
        };
        self.is_wrong = reason.is_some();
        match reason {
            None => {
                self.refusal_log.reset();
                tracing::info!("read the changed credentials for servers");
            }
            Some(reason) => self.refuse(&reason),
        }
    }

    /// Replaces the clients of Kafka when the files of their properties have changed. While no
    /// client can be made with the files, the clients stay.
    fn check_files_of_kafka(&mut self) {
        let pairs = self.servers.kafka.pairs();
        let by_kafka = read(&named_files(&pairs));
        let is_new = |(new, old): (&Content, &Content)| new.is_some() && new != old;
        if !by_kafka.iter().zip(&self.seen_by_kafka).any(is_new) {
            return;
        }
        match kafka::try_properties(&pairs) {
            Ok(()) => {
                tracing::info!("files of the login to Kafka have changed");
                // The clients that are made now read these files.
                self.seen_by_kafka = by_kafka;
                self.servers.kafka.replace(pairs.to_vec());
            }
            Err(reason) => self.refuse(&reason),
        }
    }

    fn refuse(&mut self, reason: &str) {
        self.failures.inc();
        if self.refusal_log.lets_through(clock::monotonic()) {
            tracing::error!(
                reason,
                "changed credentials for servers are refused; the previous ones stay"
            );
        }
    }

    /// Replaces all credentials, or none.
    fn take(&mut self, settings: &Settings) -> Result<(), String> {
        let (old, new) =
            (self.servers.kafka.pairs(), config::Property::pairs(&settings.kafka.properties));
        if fixed(&old) != fixed(&new) {
            return Err(format!(
                "only Kafka properties that begin with {} can change without a restart",
                CHANGEABLE.join(", ")
            ));
        }
        let is_new = *old != *new;
        if is_new {
            kafka::try_properties(&new)?;
        }
        self.servers.postgres.replace_credentials(settings.database_url.expose())?;
        if is_new {
            self.seen_by_kafka = read(&named_files(&new));
            self.servers.kafka.replace(new);
        }
        if let Some((etcd, wanted)) = self.servers.etcd.as_ref().zip(settings.etcd.as_ref()) {
            etcd.replace_credentials(etcd_credentials(wanted));
        }
        Ok(())
    }
}

/// Returns the credentials for etcd of a node's settings.
pub fn etcd_credentials(wanted: &Etcd) -> EtcdCredentials {
    let login = |Login { user, password }: &Login| (user.clone(), password.expose().to_owned());
    let identity = |Identity { certificate, key }: &Identity| {
        (certificate.expose().to_owned(), key.expose().to_owned())
    };
    EtcdCredentials {
        login: wanted.login.as_ref().map(login),
        ca: wanted.ca.as_ref().map(|ca| ca.expose().to_owned()),
        identity: wanted.identity.as_ref().map(identity),
    }
}

/// Returns the properties that cannot change, in order.
fn fixed(pairs: &[(String, String)]) -> Vec<&(String, String)> {
    let is_fixed = |(name, _): &&(String, String)| {
        !CHANGEABLE.iter().any(|beginning| name.starts_with(beginning))
    };
    let mut fixed: Vec<_> = pairs.iter().filter(is_fixed).collect();
    fixed.sort_unstable();
    fixed
}

/// The bytes of a file, if it can be read.
type Content = Option<Vec<u8>>;

/// Returns the files that properties of Kafka name.
fn named_files(pairs: &[(String, String)]) -> Vec<PathBuf> {
    let named = pairs.iter().filter(|(name, _)| {
        name.starts_with("ssl.") && name.ends_with(".location")
            || name == "https.ca.location"
            || name.starts_with("sasl.oauthbearer.") && name.ends_with(".file")
    });
    named.map(|(_, path)| PathBuf::from(path)).collect()
}

fn read(files: &[PathBuf]) -> Vec<Content> {
    files.iter().map(|file| std::fs::read(file).ok()).collect()
}

/// Returns the problems of the settings for servers.
pub fn problems(settings: &Settings) -> Vec<SettingProblem> {
    // Required TLS wins over the consent to do without.
    let may_be_plain = settings.postgres_plaintext && !settings.require_tls;
    let mut problems =
        exposure::of_postgres("--database-url", &settings.database_url, may_be_plain);
    for outbox in &settings.outboxes {
        let of_outbox = exposure::of_postgres("--outbox", &outbox.database_url, may_be_plain);
        problems.extend(of_outbox);
    }
    problems.extend(kafka_settings::problems(&settings.kafka.properties));
    if settings.require_tls {
        problems.extend(exposure::of_other_servers(settings));
    }
    problems
}

/// Reads the settings again. Other files, such as the auth file, are not checked: they must not
/// keep the credentials from changing.
fn settings_again() -> Result<config::Invocation, CommandRefusal> {
    config::read(std::env::args_os(), |wanted| match wanted {
        CheckedSettings::Node(settings) => problems(settings),
        CheckedSettings::Migration(_)
        | CheckedSettings::Outbox(_)
        | CheckedSettings::Reseal(_)
        | CheckedSettings::Consumer(_) => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::OsString;
    use std::fs;

    use super::*;
    use crate::audit::Folder;

    struct Bench {
        folder: Folder,
        keeper: CredentialKeeper,
    }

    impl Bench {
        fn new(properties: &str) -> Self {
            let folder = Folder::temporary();
            fs::write(folder.path("kafka"), properties).unwrap();
            fs::write(folder.path("url"), "postgres://me:first@localhost/p").unwrap();
            let invocation = Self::read(&folder).unwrap();
            let Command::Serve(settings) = invocation.command else { panic!() };
            let servers = ServerSettings {
                postgres: PostgresSettings::new(settings.database_url.expose()).unwrap(),
                kafka: config::Property::pairs(&settings.kafka.properties).into(),
                etcd: None,
            };
            let keeper = CredentialKeeper::new(&settings, servers, &mut Registry::default());
            Self { folder, keeper }
        }

        fn read(folder: &Folder) -> Result<config::Invocation, CommandRefusal> {
            let [kafka, url] = ["kafka", "url"].map(|name| folder.path(name).into_os_string());
            let words = ["punctual", "serve", "--kafka", "localhost:1", "--database-url", ""];
            let words = words.map(OsString::from);
            let files =
                ["--kafka-properties-file".into(), kafka, "--database-url-file".into(), url];
            config::read(words.into_iter().chain(files), |_| Vec::new())
        }

        /// Returns whether the settings were read, and the failures so far.
        fn check(&mut self) -> (bool, u64) {
            let is_read = Cell::new(false);
            let folder = self.folder.clone();
            self.keeper.check(|| {
                is_read.set(true);
                Self::read(&folder)
            });
            (is_read.get(), self.keeper.failures.get())
        }

        fn version(&self) -> u64 {
            self.keeper.servers.kafka.version()
        }
    }

    #[test]
    fn changed_files_are_taken_and_wrong_ones_leave_what_was_there() {
        let mut bench = Bench::new("acks=all\nsasl.password=first");
        assert_eq!((bench.check(), bench.version()), ((false, 0), 0));
        fs::write(bench.folder.path("kafka"), "acks=all\nsasl.password=second").unwrap();
        assert_eq!((bench.check(), bench.version()), ((true, 0), 1));
        assert_eq!(bench.keeper.servers.kafka.pairs()[1].1, "second");
        assert_eq!(bench.check(), (false, 0));
        // Other properties are not those of a login, and wrong files are tried again.
        for (wrong, failures) in
            [("acks=-1\nsasl.password=second", 1), ("acks", 2), ("acks=all\nacks=all", 3)]
        {
            fs::write(bench.folder.path("kafka"), wrong).unwrap();
            assert_eq!((bench.check(), bench.version()), ((true, failures), 1), "{wrong}");
        }
        assert_eq!(bench.check(), (true, 4));
        fs::write(bench.folder.path("kafka"), "acks=all\nsasl.password=second").unwrap();
        assert_eq!((bench.check(), bench.version()), ((true, 4), 1));
        fs::write(bench.folder.path("url"), "postgres://me:second@elsewhere/p").unwrap();
        assert_eq!(bench.check(), (true, 5));
        fs::write(bench.folder.path("url"), "postgres://you:second@localhost/p").unwrap();
        assert_eq!((bench.check(), bench.version()), ((true, 5), 1));
    }

    #[test]
    fn a_certificate_that_a_property_names_is_read_again_and_a_lost_one_is_not() {
        let folder = Folder::temporary();
        let file = folder.path("ca.pem");
        fs::write(&file, "one").unwrap();
        let mut bench = Bench::new(&format!("ssl.ca.location={}", file.display()));
        assert_eq!((bench.check(), bench.version()), ((false, 0), 0));
        fs::remove_file(&file).unwrap();
        assert_eq!((bench.check(), bench.version()), ((false, 0), 0));
        fs::write(&file, "two").unwrap();
        assert_eq!((bench.check(), bench.version()), ((false, 0), 1));
        assert_eq!((bench.check(), bench.version()), ((false, 0), 1));
    }

    #[test]
    fn no_client_is_made_anew_with_a_certificate_that_is_none() {
        let folder = Folder::temporary();
        let file = folder.path("ca.pem");
        let certified =
            || rcgen::generate_simple_self_signed(vec!["kafka".to_owned()]).unwrap().cert.pem();
        fs::write(&file, certified()).unwrap();
        let properties = format!("security.protocol=SSL\nssl.ca.location={}", file.display());
        let mut bench = Bench::new(&properties);
        assert_eq!((bench.check(), bench.version()), ((false, 0), 0));
        for failures in 1..=2 {
            fs::write(&file, "half of a certificate").unwrap();
            assert_eq!((bench.check(), bench.version()), ((false, failures), 0));
        }
        fs::write(&file, certified()).unwrap();
        assert_eq!((bench.check(), bench.version()), ((false, 2), 1));
    }
}
