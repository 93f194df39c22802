//! The current policy, and the background task that reads a changed auth file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::document::NodeRules;
use super::file::{self, Content, FileError, Loaded, Stamp};
use super::limits::Quotas;
use super::metrics::Metrics;
use super::policy::Policy;
use crate::clock;
use crate::domain::{Monotonic, Throttle, Timestamp};
use crate::shutdown::{TaskFailure, Tasks};

/// Interval at which the file's metadata is read.
const INTERVAL: Duration = Duration::from_secs(1);

/// Interval of the log lines about a file that stays wrong.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The policy that holds now. Cheap to clone, and to read without a lock.
#[derive(Clone, Debug)]
pub struct PolicyHandle {
    policy: Arc<ArcSwap<Policy>>,
    /// The quotas stay when the policy is replaced.
    quotas: Arc<Quotas>,
}

impl PolicyHandle {
    pub fn new(policy: Policy) -> Self {
        let policy = Arc::new(ArcSwap::from_pointee(policy));
        Self { policy, quotas: Arc::default() }
    }

    /// Returns the policy that holds now. A request asks once, so it is judged by one policy.
    pub fn current(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Replaces the policy. Requests in progress keep theirs, but waiting ones end.
    pub fn replace(&self, policy: Policy) {
        let former = self.policy.swap(Arc::new(policy));
        former.replaced().cancel();
    }

    /// Returns the use of the limits of principals.
    pub fn quotas(&self) -> &Arc<Quotas> {
        &self.quotas
    }
}

/// Keeps the policy of the auth file. A missing or wrong file changes nothing: the rights from
/// before hold until the file is right again.
#[derive(Debug)]
pub struct Reloader {
    path: PathBuf,
    rules: NodeRules,
    policy: PolicyHandle,
    metrics: Metrics,
    content: Content,
    /// The files with keys that the auth file names.
    key_files: Vec<PathBuf>,
    /// When the tokens of the policy expire, the first one first.
    expiries: Vec<Timestamp>,
    /// The stamps of all files before the last read, and whether there was a second read. A write
    /// within the resolution of a file's times leaves the stamp unchanged.
    seen: Option<Vec<Stamp>>,
    is_settled: bool,
    failure: Option<String>,
    failure_log: Throttle,
}

impl Reloader {
    /// Reads the file at `path` for the first time. It blocks.
    ///
    /// # Errors
    /// When the file cannot be read or has problems.
    pub fn start(path: PathBuf, rules: NodeRules, metrics: Metrics) -> Result<Self, FileError> {
        let loaded = file::load(&path, rules)?;
        let (content, key_files) = (loaded.content, loaded.key_files.clone());
        let mut reloader = Self {
            path,
            rules,
            policy: PolicyHandle::new(Policy::open()),
            metrics,
            content,
            key_files,
            expiries: Vec::new(),
            seen: None,
            is_settled: false,
            failure: None,
            failure_log: Throttle::new(LOG_EVERY),
        };
        reloader.take(loaded);
        Ok(reloader)
    }

    pub fn policy(&self) -> PolicyHandle {
        self.policy.clone()
    }

    /// Checks the file each second until the node stops.
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
                self.check(clock::monotonic());
                self
            });
            tokio::select! {
                turned = turn => self = turned?,
                () = tasks.stopping.cancelled() => return Ok(()),
            }
        }
    }

    /// Reads the file if it may have changed.
    fn check(&mut self, now: Monotonic) {
        self.show_expiry(clock::wall());
        let files = std::iter::once(&self.path).chain(&self.key_files);
        let stamp: Option<Vec<Stamp>> = files.map(|path| Stamp::of(path).ok()).collect();
        // The fault of a refused file may be in a file that it names, and that is not watched yet.
        let is_valid = self.failure.is_none();
        if is_valid && stamp.is_some() && stamp == self.seen && self.is_settled {
            return;
        }
        self.is_settled = stamp.is_some() && stamp == self.seen;
        self.seen = stamp;
        match file::load(&self.path, self.rules) {
            Ok(loaded) => {
                if self.failure.take().is_some() {
                    tracing::info!(file = %self.path.display(), "the auth file is valid again");
                }
                if loaded.content != self.content {
                    self.content = loaded.content;
                    self.key_files.clone_from(&loaded.key_files);
                    self.take(loaded);
                }
            }
            Err(error) => {
                let told = error.to_string();
                if self.failure.as_ref() != Some(&told) {
                    self.failure_log.reset();
                    self.failure = Some(told);
                }
                self.failed_still(now);
            }
        }
    }

    /// Shows when the next token expires, by the clock of this machine.
    fn show_expiry(&self, now: Timestamp) {
        let next = self.expiries.get(self.expiries.partition_point(|expires| *expires <= now));
        self.metrics.token_expires.set(next.map_or(0, |at| at.as_millis().div_euclid(1000)));
    }

    /// Counts a failure that lasts, and logs it now and then.
    fn failed_still(&mut self, now: Monotonic) {
        let Some(failure) = &self.failure else { return };
        self.metrics.reload_failures.inc();
        if self.failure_log.lets_through(now) {
            tracing::error!(
                error = failure,
                "the auth file is refused; the previous rights stay in force"
            );
        }
    }

    fn take(&mut self, loaded: Loaded) {
        let Loaded { mut policy, warnings, .. } = loaded;
        policy.adopt_keys(&self.policy.current());
        policy.count_with(&self.metrics);
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let (principals, tokens) = (policy.principals().len(), policy.tokens());
        let amount = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.principals.set(amount(principals));
        self.metrics.tokens.set(amount(tokens));
        self.metrics.loaded_at.set(clock::wall().as_millis().div_euclid(1000));
        self.expiries = policy.expiries(None).into_iter().map(|(at, _id)| at).collect();
        self.show_expiry(clock::wall());
        self.policy.replace(policy);
        tracing::info!(file = %self.path.display(), principals, tokens, "read the auth file");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::credential::jwt::keys::tests::ec_jwk;
    use super::super::credential::jwt::keys::{Algorithm, Found};
    use super::super::credential::token::Token;
    use super::super::file::tests::{OPERATOR, Temporary};
    use super::super::policy::Unidentified;
    use super::*;

    struct Bench {
        file: Temporary,
        reloader: Reloader,
        seconds: u64,
    }

    impl Bench {
        fn new(text: &str) -> Self {
            let file = Temporary::new(text);
            let reloader =
                Reloader::start(file.0.clone(), NodeRules::NONE, Metrics::default()).unwrap();
            Self { file, reloader, seconds: 0 }
        }

        fn check(&mut self) {
            self.seconds += 1;
            self.reloader.check(Monotonic::from_start(Duration::from_secs(self.seconds)));
        }

        fn names(&self) -> Vec<String> {
            let policy = self.reloader.policy().current();
            policy.principals().iter().map(|principal| principal.name.to_string()).collect()
        }

        fn failures(&self) -> u64 {
            self.reloader.metrics.reload_failures.get()
        }
    }

    fn with_token(token: &Token) -> String {
        format!(
            "{OPERATOR}tokens = [ {{ id = \"{}\", sha256 = \"{}\" }} ]\n",
            token.id(),
            token.hash()
        )
    }

    #[test]
    fn a_file_with_which_the_node_would_not_start_changes_nothing() {
        let mut bench = Bench::new(OPERATOR);
        bench.reloader.rules.takes_certificates = false;
        let certified = "[[certificate]]\nuri = \"spiffe://shop/*\"\noperate = true\n";
        bench.file.write(&format!("{OPERATOR}{certified}"));
        bench.check();
        assert_eq!(bench.failures(), 1);
        assert!(bench.reloader.policy().current().certificates().is_empty());
        bench.reloader.rules.takes_certificates = true;
        bench.check();
        assert_eq!(bench.reloader.policy().current().certificates().len(), 1);
    }

    #[test]
    fn the_next_token_that_expires_is_shown() {
        let entry = |expires: &str| {
            let token = Token::generate().unwrap();
            format!("{{ id = \"{}\", sha256 = \"{}\"{expires} }}", token.id(), token.hash())
        };
        let tokens = ["", ", expires = 2030-01-01T00:00:00Z", ", expires = 2029-01-01T00:00:00Z"];
        let bench =
            Bench::new(&format!("{OPERATOR}tokens = [ {} ]\n", tokens.map(entry).join(", ")));
        let shown = |seconds: i64| {
            bench.reloader.show_expiry(Timestamp::from_millis(seconds * 1000));
            bench.reloader.metrics.token_expires.get()
        };
        let (first, second) = (1_861_920_000, 1_893_456_000);
        assert_eq!([first - 1, first, second].map(shown), [first, second, 0]);
    }

    #[test]
    fn a_token_that_was_taken_out_of_the_file_is_no_credential_any_more() {
        let token = Token::generate().unwrap();
        let mut bench = Bench::new(&with_token(&token));
        let handle = bench.reloader.policy();
        let header = format!("Bearer {}", token.expose());
        let ask = || handle.current().identify(&header, Timestamp::EPOCH).map(drop);
        assert_eq!(ask(), Ok(()));
        bench.file.write(OPERATOR);
        assert_eq!(ask(), Ok(()));
        bench.check();
        assert_eq!(ask(), Err(Unidentified::Unknown));
        assert_eq!(bench.failures(), 0);
    }

    #[test]
    fn a_reload_keeps_the_counts_of_names_that_stay_and_removes_the_series_of_the_others() {
        let jwt = "[[jwt]]\nname = 'i'\nissuer = 'https://i'\naudience = 'p'\n\
                   jwks_url = 'https://i/keys'\n";
        let mut bench = Bench::new(&format!("{OPERATOR}[principals.bob]\noperate = true\n{jwt}"));
        let counts = |bench: &Bench, place: usize| {
            bench.reloader.policy().current().principals()[place].counts.clone()
        };
        let shown = |bench: &Bench, label: &str| {
            let name = "punctual_principal_tasks_submitted_total";
            let start = format!("{name}{{principal=\"{label}\"}} ");
            let series = bench.reloader.metrics.of_principals.series();
            series.iter().find_map(|line| line.strip_prefix(&start)?.parse::<u64>().ok())
        };
        let bob = counts(&bench, 1);
        counts(&bench, 0).submitted(2);
        bob.submitted(1);
        let labels = ["ann", "bob", "jwt:i", "anonymous"];
        let before = [Some(2), Some(1), Some(0), None];
        assert_eq!(labels.map(|label| shown(&bench, label)), before);
        bench.file.write("version = 3\n");
        bench.check();
        assert_eq!(labels.map(|label| shown(&bench, label)), before, "a file that is refused");
        bench.file.write(&format!("{OPERATOR}[anonymous]\noperate = true\n"));
        bench.check();
        counts(&bench, 0).submitted(3);
        bob.submitted(1);
        let after = [Some(5), None, None, Some(0)];
        assert_eq!(labels.map(|label| shown(&bench, label)), after);
    }

    #[test]
    fn a_file_that_is_wrong_gone_or_writable_changes_no_rights_and_is_counted() {
        let mut bench = Bench::new(OPERATOR);
        let whole = "version = 1\n[principals.bob]\noperate = true\n";
        type Break<'a> = (&'a str, &'a dyn Fn(&Temporary));
        let breaks: [Break<'_>; 5] = [
            ("half", &|file| file.write(&whole[..whole.len() - 8])),
            ("wrong", &|file| file.write("version = 3\n")),
            ("gone", &|file| fs::remove_file(&file.0).unwrap()),
            ("empty", &|file| file.write("")),
            ("writable", &|file| {
                file.write(whole);
                file.chmod(0o666);
            }),
        ];
        for (broken, (what, break_it)) in breaks.iter().enumerate() {
            break_it(&bench.file);
            bench.check();
            bench.check();
            bench.check();
            assert_eq!(bench.names(), ["ann"], "{what}");
            assert_eq!(bench.failures(), 3 * (u64::try_from(broken).unwrap() + 1), "{what}");
        }
        bench.file.chmod(0o600);
        bench.check();
        assert_eq!(bench.names(), ["bob"]);
        bench.check();
        assert_eq!(bench.failures(), 15);
    }

    #[test]
    fn a_file_behind_a_link_is_read_when_the_link_is_swapped() {
        let (one, other) = (
            Temporary::new(OPERATOR),
            Temporary::new("version = 1\n[principals.bob]\noperate = true\n"),
        );
        let link = Temporary::new("");
        let swap = |target: &Temporary| {
            fs::remove_file(&link.0).unwrap();
            std::os::unix::fs::symlink(&target.0, &link.0).unwrap();
        };
        swap(&one);
        let mut reloader =
            Reloader::start(link.0.clone(), NodeRules::NONE, Metrics::default()).unwrap();
        swap(&other);
        reloader.check(Monotonic::from_start(Duration::from_secs(1)));
        assert_eq!(reloader.policy().current().principals()[0].name.as_str(), "bob");
    }

    #[test]
    fn a_write_right_after_the_last_read_is_seen_although_the_times_are_equal() {
        let mut bench = Bench::new(OPERATOR);
        bench.check();
        assert!(!bench.reloader.is_settled);
        // What a write within the resolution of the file's times looks like.
        bench.file.write(&OPERATOR.replace("ann", "bob"));
        bench.reloader.seen = Some(vec![Stamp::of(&bench.file.0).unwrap()]);
        bench.check();
        assert_eq!(bench.names(), ["bob"]);
    }

    #[test]
    fn a_key_file_that_comes_after_the_file_that_names_it_is_found() {
        let (key_file, mut bench) = (Temporary::new(""), Bench::new(OPERATOR));
        fs::remove_file(&key_file.0).unwrap();
        let auth = format!(
            "{OPERATOR}[[jwt]]\nname = 'i'\nissuer = 'https://i'\naudience = 'p'\n\
             jwks_file = '{}'\n",
            key_file.0.display()
        );
        bench.file.write(&auth);
        (0..5).for_each(|_second| bench.check());
        assert!(bench.reloader.failure.is_some());
        key_file.write(&json!({ "keys": [ec_jwk("a").1] }).to_string());
        bench.check();
        assert_eq!(bench.reloader.failure, None);
    }

    #[test]
    fn a_key_file_is_read_again_like_the_auth_file_itself() {
        let keys = |kid| json!({ "keys": [ec_jwk(kid).1] }).to_string();
        let (key_file, mut bench) = (Temporary::new(&keys("a")), Bench::new(OPERATOR));
        let auth = format!(
            "{OPERATOR}[[jwt]]\nname = 'i'\nissuer = 'https://i'\naudience = 'p'\n\
             jwks_file = '{}'\n",
            key_file.0.display()
        );
        bench.file.write(&auth);
        bench.check();
        let found = |bench: &Bench, kid| {
            let policy = bench.reloader.policy().current();
            let set = policy.issuers().all()[0].keys.current().unwrap();
            matches!(set.find(Some(kid), Algorithm::Es256), Found::Key(_))
        };
        assert!(found(&bench, "a") && bench.failures() == 0);
        key_file.write("{}");
        bench.check();
        assert!(found(&bench, "a") && bench.failures() == 1, "the keys from before hold");
        key_file.write(&keys("b"));
        bench.check();
        assert!(found(&bench, "b") && !found(&bench, "a"));
        key_file.chmod(0o666);
        bench.check();
        assert!(found(&bench, "b") && bench.failures() == 2);
    }

    #[test]
    fn keys_by_url_outlive_a_reload_and_verified_tokens_do_not() {
        let auth = format!(
            "{OPERATOR}[[jwt]]\nname = 'i'\nissuer = 'https://i'\naudience = 'p'\n\
             jwks_url = 'https://i/keys'\n"
        );
        let mut bench = Bench::new(&auth);
        let slot =
            |bench: &Bench| bench.reloader.policy().current().issuers().all()[0].keys.clone();
        let first = slot(&bench);
        bench.file.write(&auth.replace("'p'", "'q'"));
        bench.check();
        assert!(Arc::ptr_eq(&first, &slot(&bench)));
        bench.file.write(&auth.replace("i/keys", "j/keys"));
        bench.check();
        assert!(!Arc::ptr_eq(&first, &slot(&bench)), "keys of another URL");
    }

    #[tokio::test]
    async fn the_task_ends_with_the_node() {
        let bench = Bench::new(OPERATOR);
        let tasks = Tasks::default();
        tasks.spawn("auth file", bench.reloader.run(tasks.clone()));
        assert!(tasks.stop(Duration::from_secs(5)).await);
        assert_eq!(tasks.failure(), None);
    }
}
