//! The servers that the tests use.

use std::path::PathBuf;
use std::process::Command;

/// The addresses of Postgres, Kafka and etcd.
#[derive(Clone, Debug)]
pub struct Stack {
    pub database_url: String,
    pub kafka: String,
    pub etcd: String,
}

impl Stack {
    /// Returns the servers that all tests share. They must be up, or tests with servers fail.
    pub fn shared() -> Self {
        Self {
            database_url: setting("PUNCTUAL_TEST_POSTGRES", "PUNCTUAL_DATABASE_URL"),
            kafka: setting("PUNCTUAL_TEST_KAFKA", "PUNCTUAL_KAFKA"),
            etcd: setting("PUNCTUAL_TEST_ETCD", "PUNCTUAL_ETCD"),
        }
    }

    /// Returns the URL of another database of the same server.
    pub fn database(&self, name: &str) -> String {
        let mut url = reqwest::Url::parse(&self.database_url).unwrap();
        url.set_path(&format!("/{name}"));
        url.to_string()
    }
}

fn setting(first: &str, second: &str) -> String {
    let value = std::env::var(first).or_else(|_unset| std::env::var(second));
    value.unwrap_or_else(|_unset| {
        panic!(
            "no servers to test against ({second} is not set): run `scripts/stack up`, then `eval \
             \"$(scripts/stack env)\"`"
        )
    })
}

/// A separate stack for a test that stops servers. A drop deletes the stack with all data.
#[derive(Debug)]
pub struct OwnStack {
    name: String,
    pub stack: Stack,
    /// The extras of a breakable stack.
    pub extras: Option<Extras>,
    /// The additional parts of a stack with TLS.
    pub secure: Option<Secure>,
}

/// The encrypted ways to the servers of a stack with TLS.
#[derive(Clone, Debug)]
pub struct Secure {
    /// Files in PEM: the authority, and a certificate for 127.0.0.1 with its key.
    pub ca: String,
    pub certificate: String,
    pub key: String,
    /// The TCP address of the server's first database, with `sslmode=verify-full`.
    pub database_url: String,
    pub kafka_sasl_ssl: String,
    /// The listener of Kafka that wants tokens.
    pub kafka_oauth: String,
}

/// The additional parts of a breakable stack.
#[derive(Clone, Debug)]
pub struct Extras {
    /// The address of toxiproxy's API.
    pub toxiproxy: String,
    /// The folder of Postgres's small disk.
    pub disk: String,
    /// The file that moves Postgres's clock.
    pub clock: String,
    /// The URL of the database server of an application.
    pub shop: String,
    /// There are three brokers, and a synchronous standby of Postgres.
    pub is_replicated: bool,
}

impl OwnStack {
    pub async fn start(name: &str) -> Self {
        Self::up(name, &[]).await
    }

    /// Starts a stack with proxies to its servers, which can be cut, and a disk that can be filled
    /// up.
    pub async fn start_breakable(name: &str) -> Self {
        Self::up(name, &["--breakable"]).await
    }

    /// Starts a breakable stack with three brokers and a synchronous standby of Postgres. Its
    /// `database_url` leads to the primary, also after a failover.
    pub async fn start_replicated(name: &str) -> Self {
        Self::up(name, &["--replicated"]).await
    }

    /// Starts a stack whose servers have certificates.
    pub async fn start_secure(name: &str) -> Self {
        Self::up(name, &["--tls"]).await
    }

    /// Starts a stack with three brokers: `kafka`, `kafka2` and `kafka3`.
    pub async fn start_three_brokers(name: &str) -> Self {
        Self::up(name, &["--three-brokers"]).await
    }

    async fn up(name: &str, options: &[&str]) -> Self {
        let name = format!("test-{name}-{}", std::process::id());
        run(&[&["up", "--name", &name], options].concat()).await;
        let settings = run(&["env", "--name", &name]).await;
        let find = |key: &str| {
            let line = settings.lines().find_map(|line| {
                line.strip_prefix("export ")?.strip_prefix(key)?.strip_prefix('=')
            });
            line.map(|value| value.trim_matches('\'').to_owned())
        };
        let value = |key: &str| {
            find(key).unwrap_or_else(|| panic!("`scripts/stack env` does not give {key}"))
        };
        let stack = Stack {
            database_url: value("PUNCTUAL_DATABASE_URL"),
            kafka: value("PUNCTUAL_KAFKA"),
            etcd: value("PUNCTUAL_ETCD"),
        };
        let extras = find("PUNCTUAL_TEST_TOXIPROXY").map(|toxiproxy| Extras {
            toxiproxy,
            disk: value("PUNCTUAL_TEST_DISK"),
            clock: value("PUNCTUAL_TEST_CLOCK"),
            shop: value("PUNCTUAL_TEST_SHOP"),
            is_replicated: find("PUNCTUAL_TEST_STANDBY").is_some(),
        });
        let secure = find("PUNCTUAL_TEST_CA").map(|ca| Secure {
            ca,
            certificate: value("PUNCTUAL_TEST_CERTIFICATE"),
            key: value("PUNCTUAL_TEST_KEY"),
            database_url: value("PUNCTUAL_TEST_DATABASE_TLS_URL"),
            kafka_sasl_ssl: value("PUNCTUAL_TEST_KAFKA_SASL_SSL"),
            kafka_oauth: value("PUNCTUAL_TEST_KAFKA_OAUTH"),
        });
        Self { name, stack, extras, secure }
    }

    /// Returns the folder of the servers' logs.
    pub fn logs(&self) -> PathBuf {
        self.folder().join("logs")
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".stack").join(&self.name)
    }

    pub fn is_replicated(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.is_replicated)
    }

    /// Returns the service that is the primary of Postgres: `postgres`, or after a failover
    /// `standby`.
    pub fn primary(&self) -> String {
        let written = std::fs::read_to_string(self.folder().join("primary"));
        written.map_or_else(|_none_yet| "postgres".to_owned(), |name| name.trim().to_owned())
    }

    /// Waits until the standby follows the primary synchronously. Makes a new standby in the place
    /// of a former primary.
    pub async fn follow_primary(&self) {
        run(&["standby", "--name", &self.name]).await;
    }

    /// Starts a synchronous standby of Postgres. Returns the TCP addresses of the primary and of
    /// the standby.
    pub async fn start_standby(&self) -> [String; 2] {
        self.follow_primary().await;
        let settings = run(&["env", "--name", &self.name]).await;
        let value = |key: &str| {
            let line = settings.lines().find_map(|line| line.split_once(key)).unwrap();
            line.1.trim_matches(['=', '\'']).to_owned()
        };
        let url = reqwest::Url::parse(&value("PUNCTUAL_TEST_DATABASE_TCP_URL")).unwrap();
        let primary = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
        [primary, value("PUNCTUAL_TEST_STANDBY")]
    }

    /// Kills all processes of Postgres's primary at once with SIGKILL.
    pub async fn lose_primary(&self) {
        run(&["lose-primary", "--name", &self.name]).await;
    }

    /// Makes the standby the primary. Returns when it takes writes.
    pub async fn promote(&self) {
        run(&["promote", "--name", &self.name]).await;
    }

    /// Registers a second broker with Kafka that is down, for topics with a replica there. No topic
    /// may be created meanwhile.
    pub async fn know_second_broker(&self) {
        run(&["second-broker", "--name", &self.name]).await;
    }

    /// Gives Kafka's user of a stack with TLS another password.
    pub async fn kafka_password(&self, password: &str) {
        run(&["kafka-password", password, "--name", &self.name]).await;
    }

    /// Fills Postgres's disk, or frees its space again.
    pub async fn disk(&self, fullness: &str) {
        run(&["disk", fullness, "--name", &self.name]).await;
    }

    /// Suspends all processes of the application's database, until [`Self::thaw_shop`].
    pub async fn freeze_shop(&self) {
        run(&["freeze", "shop", "--name", &self.name]).await;
    }

    pub async fn thaw_shop(&self) {
        run(&["thaw", "shop", "--name", &self.name]).await;
    }

    /// Shuts `postgres`, `etcd` or a broker down gracefully. Returns when it is gone.
    pub async fn stop(&self, service: &str) {
        run(&["stop", service, "--name", &self.name]).await;
    }

    /// Crashes a server.
    pub async fn kill(&self, service: &str) {
        run(&["kill", service, "--name", &self.name]).await;
    }

    /// Starts a server again, on the same port and data. Returns when it answers.
    pub async fn start_again(&self, service: &str) {
        run(&["start", service, "--name", &self.name]).await;
    }
}

impl Drop for OwnStack {
    fn drop(&mut self) {
        let status = command(&["down", "--purge", "--name", &self.name])
            .output()
            .map(|output| output.status);
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            eprintln!(
                "stack {} was not taken down ({status:?}): scripts/stack down --purge --name {}",
                self.name, self.name
            );
        }
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/stack"));
    command.args(arguments);
    command
}

async fn run(arguments: &[&str]) -> String {
    let output = tokio::process::Command::from(command(arguments)).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/stack {}: {said}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}
