//! Keeps the certificate of a running node: looks at the files, and loads them when they have
//! changed.
//!
//! Only new connections get the new certificate. After a change of the authorities or of the
//! revocation lists, connections with a client certificate end, because the certificate may be
//! revoked: the next handshake decides. Files that cannot be used leave the old ones in place, with
//! a log line and a metric, and are tried again. A certificate and its key cannot be replaced at
//! the same instant, so a change is loaded only after two looks have seen the same contents.

use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::certificates::{Error, Files, Loaded, Settings, Validity};
use crate::clock;
use crate::domain::time::duration::spelled;
use crate::domain::{Monotonic, Throttle, Timestamp};
use crate::shutdown::{TaskFailure, Tasks};
use crate::telemetry::{Counter, Family, Gauge, Registry, Unit};

/// A certificate is warned about when less than this is left of its validity.
const EXPIRES_SOON: Duration = Duration::from_hours(14 * 24);
/// The interval of that warning.
const WARN_EVERY: Duration = Duration::from_hours(24);

#[derive(Clone, Debug, Default)]
pub struct Metrics {
    expires: Gauge,
    loads: Family<[(&'static str, &'static str); 1], Counter>,
    is_refused: Gauge,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_with_unit(
            "punctual_tls_certificate_expires",
            "Expiry of the certificate of the API, in seconds since 1970",
            Unit::Seconds,
            metrics.expires.clone(),
        );
        registry.register(
            "punctual_tls_certificate_loads",
            "Reloads of the certificate files, by result; refused files leave the old certificate \
             in use",
            metrics.loads.clone(),
        );
        registry.register(
            "punctual_tls_certificate_refused",
            "1 while the certificate files are refused and an older certificate is in use; else 0",
            metrics.is_refused.clone(),
        );
        for outcome in ["loaded", "refused"] {
            drop(metrics.loads.get_or_create(&[("outcome", outcome)]));
        }
        metrics
    }

    fn loaded(&self, expires_at: Timestamp) {
        self.expires.set(expires_at.as_millis() / 1000);
        self.loads.get_or_create(&[("outcome", "loaded")]).inc();
        self.is_refused.set(0);
    }

    fn refused(&self) {
        self.loads.get_or_create(&[("outcome", "refused")]).inc();
        self.is_refused.set(1);
    }
}

/// Gives each new connection of a port its configuration.
#[derive(Clone, Debug)]
pub struct Acceptor {
    current: watch::Receiver<Loaded>,
    is_operator: bool,
}

impl Acceptor {
    /// Returns the configuration, and the token that is cancelled when client certificates are
    /// verified by other authorities or lists.
    pub fn config(&self) -> (Arc<ServerConfig>, CancellationToken) {
        let current = self.current.borrow();
        let config = if self.is_operator { &current.operator } else { &current.public };
        (Arc::clone(config), current.is_replaced.clone())
    }

    /// Returns the acceptor of the operator port.
    pub fn of_operators(self) -> Self {
        Self { is_operator: true, ..self }
    }
}

/// The contents that the last look has found.
#[derive(Debug)]
struct Seen {
    files: Files,
    is_loaded: bool,
}

/// Owns the certificate.
#[derive(Debug)]
pub struct CertificateKeeper {
    settings: Settings,
    current: watch::Sender<Loaded>,
    seen: Option<Seen>,
    /// The reason that was logged last, while the files cannot be used.
    said: Option<Error>,
    soon_log: Throttle,
    /// Apart from `soon_log`: that the certificate has expired is said at once.
    invalid_log: Throttle,
    metrics: Metrics,
}

impl CertificateKeeper {
    /// Loads the files for the first time.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub fn new(settings: Settings, metrics: Metrics) -> Result<Self, Error> {
        let (files, loaded) = Self::check(&settings)?;
        metrics.loaded(loaded.validity.expires_at);
        Ok(Self {
            settings,
            current: watch::Sender::new(loaded),
            seen: Some(Seen { files, is_loaded: true }),
            said: None,
            soon_log: Throttle::new(WARN_EVERY),
            invalid_log: Throttle::new(WARN_EVERY),
            metrics,
        })
    }

    /// Reads and checks the files. The certificate may have expired.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub fn check(settings: &Settings) -> Result<(Files, Loaded), Error> {
        let files = Files::read(settings)?;
        let loaded = Loaded::at_start(&files)?;
        Ok((files, loaded))
    }

    pub fn acceptor(&self) -> Acceptor {
        Acceptor { current: self.current.subscribe(), is_operator: false }
    }

    /// Looks at the files until the node stops.
    pub async fn run(mut self, tasks: Tasks) -> Result<(), TaskFailure> {
        loop {
            self.log_expiry(clock::wall(), clock::monotonic());
            tokio::select! {
                () = clock::sleep(self.settings.read_every) => {}
                () = tasks.stopping.cancelled() => return Ok(()),
            }
            let settings = self.settings.clone();
            let reading = tokio::task::spawn_blocking(move || Files::read(&settings));
            match tasks.stopping.run_until_cancelled(reading).await {
                Some(read) => self.compare(read?, clock::wall()),
                None => return Ok(()),
            }
        }
    }

    /// Looks at the files at once.
    #[cfg(test)]
    pub fn compare_now(&mut self) {
        self.compare(Files::read(&self.settings), clock::wall());
    }

    /// Compares the files with the last look, and loads settled files.
    fn compare(&mut self, read: Result<Files, Error>, now: Timestamp) {
        let files = match read {
            Ok(files) => files,
            Err(error) => {
                self.seen = None;
                return self.refuse(error);
            }
        };
        let is_loaded = match self.seen.take() {
            Some(seen) if seen.files != files => false,
            None => false,
            Some(Seen { is_loaded: true, .. }) => true,
            // Refused files are tried again, because a certificate that is not valid yet will be.
            Some(Seen { is_loaded: false, .. }) => match Loaded::new(&files, now) {
                Ok(loaded) => {
                    self.replace(loaded, now);
                    true
                }
                Err(error) => {
                    self.refuse(error);
                    false
                }
            },
        };
        self.seen = Some(Seen { files, is_loaded });
    }

    fn replace(&mut self, mut loaded: Loaded, now: Timestamp) {
        let expires_in = left(loaded.validity.expires_at, now);
        tracing::info!(expires_in, "loaded the certificate of the API; new connections use it");
        self.metrics.loaded(loaded.validity.expires_at);
        let takes_over = loaded.takes_over(&self.current.borrow());
        let before = self.current.send_replace(loaded);
        if !takes_over {
            tracing::info!(
                "the authorities or the revocation lists have changed; connections with a client \
                 certificate end after their requests"
            );
            before.is_replaced.cancel();
        }
        self.said = None;
        self.soon_log.reset();
        self.invalid_log.reset();
    }

    fn refuse(&mut self, error: Error) {
        if self.said.as_ref() == Some(&error) {
            return;
        }
        tracing::error!(
            %error,
            "the certificate files are refused; the old certificate stays in use, and the files \
             are read again later"
        );
        self.metrics.refused();
        self.said = Some(error);
    }

    fn log_expiry(&mut self, now: Timestamp, at: Monotonic) {
        let Validity { begins_at, expires_at } = self.current.borrow().validity;
        let is_valid = begins_at <= now && now < expires_at;
        let is_far = is_valid && now.plus(EXPIRES_SOON) <= expires_at;
        let log = if is_valid { &mut self.soon_log } else { &mut self.invalid_log };
        if is_far || !log.lets_through(at) {
            return;
        }
        if is_valid {
            let expires_in = left(expires_at, now);
            tracing::warn!(expires_in, "the certificate of the API expires within 14 days");
        } else {
            tracing::error!(
                %begins_at,
                %expires_at,
                "the certificate of the API is not valid now: callers refuse this node, which only \
                 publishes; replace the files of --tls-certificate-file and --tls-key-file"
            );
        }
    }
}

/// Returns the time until `expires_at`, in whole hours.
fn left(expires_at: Timestamp, now: Timestamp) -> String {
    spelled(Duration::from_hours(expires_at.since(now).as_secs() / 3600))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// The files of a test, deleted when it ends.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("punctual-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.0.join(name), text).unwrap();
        }

        fn settings(&self) -> Settings {
            let [certificate_file, key_file] = ["c.pem", "k.pem"].map(|name| self.0.join(name));
            let read_every = Duration::from_millis(1);
            Settings { certificate_file, key_file, clients: None, read_every }
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn pair(year: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    /// Looks once, and returns the end of the current certificate and the metrics: the loads, the
    /// refusals, and whether the files are refused.
    fn turn(keeper: &mut CertificateKeeper) -> (Timestamp, u64, u64, i64) {
        keeper.compare(Files::read(&keeper.settings), clock::wall());
        let count = |outcome| keeper.metrics.loads.get_or_create(&[("outcome", outcome)]).get();
        let expires_at = keeper.current.borrow().validity.expires_at;
        assert_eq!(keeper.metrics.expires.get(), expires_at.as_millis() / 1000);
        (expires_at, count("loaded"), count("refused"), keeper.metrics.is_refused.get())
    }

    #[test]
    fn a_changed_pair_is_loaded_and_a_half_written_one_is_tried_again() {
        let place = Place::new("keeper");
        let ((first, first_key), (second, second_key)) = (pair(2090), pair(2091));
        place.write("c.pem", &first);
        place.write("k.pem", &first_key);
        let mut keeper = CertificateKeeper::new(place.settings(), Metrics::default()).unwrap();
        let (old, is_replaced) = keeper.acceptor().config();
        let (at_first, ..) = turn(&mut keeper);

        place.write("c.pem", &second);
        assert_eq!(turn(&mut keeper), (at_first, 1, 0, 0), "it may still be written");
        assert_eq!(turn(&mut keeper), (at_first, 1, 1, 1), "the key is not there yet");
        assert_eq!(turn(&mut keeper), (at_first, 1, 1, 1), "said and counted once");
        place.write("k.pem", &second_key);
        assert_eq!(turn(&mut keeper), (at_first, 1, 1, 1));
        let (at_last, loads, refusals, is_refused) = turn(&mut keeper);
        assert_eq!((loads, refusals, is_refused), (2, 1, 0));
        assert!(at_last > at_first);
        let (new, _is_replaced) = keeper.acceptor().config();
        assert!(!Arc::ptr_eq(&old, &new) && !is_replaced.is_cancelled());
        assert!(
            !Arc::ptr_eq(&old.session_storage, &new.session_storage),
            "no session goes from one certificate to the next"
        );

        std::fs::remove_file(place.0.join("k.pem")).unwrap();
        assert_eq!(turn(&mut keeper), (at_last, 2, 2, 1));
        place.write("k.pem", &second_key);
        turn(&mut keeper);
        assert_eq!(turn(&mut keeper), (at_last, 3, 2, 0));
    }

    #[test]
    fn a_certificate_near_its_end_is_said_once_a_day() {
        let place = Place::new("expiry");
        let (certificate, key) = pair(2090);
        place.write("c.pem", &certificate);
        place.write("k.pem", &key);
        let mut keeper = CertificateKeeper::new(place.settings(), Metrics::default()).unwrap();
        let expires_at = keeper.current.borrow().validity.expires_at;
        let at = Monotonic::from_start(Duration::from_secs(1));
        keeper.log_expiry(expires_at.minus(EXPIRES_SOON + Duration::from_secs(1)), at);
        assert!(!keeper.soon_log.reset(), "there is more time left");
        keeper.log_expiry(expires_at.minus(EXPIRES_SOON - Duration::from_secs(1)), at);
        assert!(!keeper.invalid_log.reset());
        keeper.log_expiry(expires_at, at);
        assert!(keeper.invalid_log.reset(), "it has expired");
        assert!(keeper.soon_log.reset());
    }

    #[test]
    fn an_expired_certificate_is_taken_at_the_start_only() {
        let place = Place::new("expired");
        let (certificate, key) = pair(2001);
        place.write("c.pem", &certificate);
        place.write("k.pem", &key);
        let mut keeper = CertificateKeeper::new(place.settings(), Metrics::default()).unwrap();
        let (at_start, ..) = turn(&mut keeper);
        let (certificate, key) = pair(2002);
        place.write("c.pem", &certificate);
        place.write("k.pem", &key);
        assert_eq!(turn(&mut keeper), (at_start, 1, 0, 0));
        assert_eq!(turn(&mut keeper), (at_start, 1, 1, 1));
        let (certificate, key) = pair(2090);
        place.write("c.pem", &certificate);
        place.write("k.pem", &key);
        turn(&mut keeper);
        let (at_last, loads, ..) = turn(&mut keeper);
        assert!(at_last > at_start && loads == 2);
    }
}
