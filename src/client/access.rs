//! The credential of a client, and its destinations. [`profile`] has those of named nodes.

pub mod profile;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::header::HeaderValue;

use super::args::Credentials;

/// A token, as the value of the header `Authorization`. Clones share it.
#[derive(Clone, Debug)]
pub struct Credential {
    header: Arc<Mutex<HeaderValue>>,
    /// The file that the token came from.
    file: Option<PathBuf>,
}

impl Credential {
    /// Returns the credential that the flags and variables give, if they give one.
    ///
    /// # Errors
    /// When two are given, the file cannot be read, or its text cannot be a token.
    pub fn read(given: &Credentials) -> Result<Option<Self>, String> {
        let token = given.token.as_ref().filter(|token| !token.expose().is_empty());
        let file = given.token_file.as_deref().filter(|path| !path.as_os_str().is_empty());
        let (header, file) = match (token, file) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err("the token is given twice, by PUNCTUAL_TOKEN and by --token-file \
                            (PUNCTUAL_TOKEN_FILE); leave one out"
                    .to_owned());
            }
            (Some(token), None) => {
                let header = bearer(token.expose())
                    .ok_or("PUNCTUAL_TOKEN: a token has no spaces or control characters")?;
                (header, None)
            }
            (None, Some(path)) => (from_file(path)?, Some(path.to_owned())),
        };
        Ok(Some(Self { header: Arc::new(Mutex::new(header)), file }))
    }

    pub fn header(&self) -> HeaderValue {
        self.header.lock().clone()
    }

    /// Reads the file again after `refused` was refused. Returns true when there is another token
    /// now: tokens in files are replaced while a command runs.
    pub fn renew(&self, refused: &HeaderValue) -> bool {
        if *self.header.lock() != *refused {
            return true;
        }
        let read = self.file.as_deref().and_then(|path| from_file(path).ok());
        let Some(renewed) = read.filter(|header| header != refused) else { return false };
        *self.header.lock() = renewed;
        true
    }
}

fn from_file(path: &Path) -> Result<HeaderValue, String> {
    let shown = path.display();
    let text =
        fs::read_to_string(path).map_err(|error| format!("--token-file {shown}: {error}"))?;
    bearer(text.trim())
        .ok_or_else(|| format!("--token-file {shown}: the file must have exactly one token"))
}

fn bearer(token: &str) -> Option<HeaderValue> {
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let mut header = HeaderValue::from_str(&format!("Bearer {token}")).ok().filter(|_| is_token)?;
    // Kept out of `Debug` and of the compression of HTTP/2.
    header.set_sensitive(true);
    Some(header)
}

/// Refuses to send a token where everybody on the way can read it. `host` is that of an http://
/// URL.
///
/// # Errors
/// When the host is beyond the machine.
pub fn check_plaintext(host: &str, given: &Credentials) -> Result<(), String> {
    if given.plaintext || is_loopback(host) {
        return Ok(());
    }
    Err("over http://, others on the network can read the token; use https:// (--ca-file for a \
         private CA), or accept that with --plaintext"
        .to_owned())
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns the URL without the text before the last `@`. The text is not parsed for this, because
/// an invalid URL may hold a password, too.
pub fn without_user(url: &str) -> String {
    let scheme_end = url.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(scheme_end);
    format!("{scheme}{}", rest.rsplit_once('@').map_or(rest, |(_user, place)| place))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(token: &str, file: Option<&Path>) -> Credentials {
        let token = (!token.is_empty()).then(|| token.parse().unwrap());
        Credentials { token, token_file: file.map(Path::to_owned), ..Credentials::default() }
    }

    #[test]
    fn only_names_and_addresses_of_this_machine_are_loopback() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8", "[::1]", "::1"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["node", "10.0.0.1", "localhost.example", "127.0.0.1.example", "0.0.0.0", ""] {
            assert!(!is_loopback(host), "{host}");
            assert!(check_plaintext(host, &given("t", None)).is_err());
            assert!(
                check_plaintext(host, &Credentials { plaintext: true, ..given("t", None) }).is_ok()
            );
        }
    }

    #[test]
    fn a_token_is_given_once_and_is_one_word() {
        assert!(Credential::read(&given("", None)).unwrap().is_none());
        let credential = Credential::read(&given("pt_x", None)).unwrap().unwrap();
        assert_eq!(credential.header(), "Bearer pt_x");
        assert!(!credential.renew(&credential.header()));
        assert!(!format!("{credential:?} {:?}", given("pt_x", None)).contains("pt_x"));
        for wrong in
            [given("a b", None), given("pt_x", Some(Path::new("f"))), given("a\u{1}", None)]
        {
            assert!(Credential::read(&wrong).is_err(), "{wrong:?}");
        }
        let error = Credential::read(&given("", Some(Path::new("/nowhere")))).unwrap_err();
        assert!(error.starts_with("--token-file /nowhere: "), "{error}");
    }

    #[test]
    fn a_replaced_file_is_read_once_for_each_refused_token() {
        let path =
            std::env::temp_dir().join(format!("punctual-token-{:032x}", rand::random::<u128>()));
        fs::write(&path, "pt_1\n").unwrap();
        let credential = Credential::read(&given("", Some(&path))).unwrap().unwrap();
        let (other, first) = (credential.clone(), credential.header());
        assert!(!credential.renew(&first));
        fs::write(&path, "pt_2\n").unwrap();
        assert!(credential.renew(&first));
        assert_eq!(other.header(), "Bearer pt_2");
        assert!(other.renew(&first), "a clone has renewed it in the meantime");
        assert!(!other.renew(&credential.header()));
        fs::remove_file(&path).unwrap();
        assert!(!credential.renew(&credential.header()));
    }
}
