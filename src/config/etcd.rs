//! The addresses of etcd, and the credentials of a node.

use std::path::Path;

use super::args::EtcdArgs;
use super::host::Host;
use super::reader::SettingsReader;
use super::secret::Secret;
use super::units::{has_port, printable};

const CA: &str = "--etcd-ca-file";
const CERTIFICATE: &str = "--etcd-certificate-file";
const KEY: &str = "--etcd-key-file";
const CERTIFICATE_MARK: &str = "BEGIN CERTIFICATE-----";

/// The settings of etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Etcd {
    /// At least one endpoint: `host:port`, or a URL without a slash at its end.
    pub endpoints: Vec<String>,
    pub login: Option<Login>,
    /// The trusted authorities, in PEM, in place of the machine's. With them, all endpoints are
    /// `https://`.
    pub ca: Option<Secret>,
    /// The client certificate. With it, all endpoints are `https://`.
    pub identity: Option<Identity>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Login {
    pub user: String,
    pub password: Secret,
}

/// The certificate of the node with its chain, and its key, both in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub certificate: Secret,
    pub key: Secret,
}

/// Reads the settings of etcd. Returns `None` when the node is the only one.
pub(super) fn read(args: &EtcdArgs, host: &Host<'_>, reader: &mut SettingsReader) -> Option<Etcd> {
    let endpoints = endpoints(args.endpoints.as_deref(), reader);
    let (login, identity) = (login(args, host, reader), identity(args, host, reader));
    let ca = args.ca_file.as_deref().and_then(|path| pem(CA, path, CERTIFICATE_MARK, host, reader));
    let Some(endpoints) = endpoints else {
        for (flag, is_given) in [
            ("--etcd-user", login.is_some()),
            (CERTIFICATE, identity.is_some()),
            (CA, ca.is_some()),
        ] {
            if is_given {
                reader.problem(
                    flag,
                    "has no effect without the endpoints of etcd: give --etcd, or leave this out",
                );
            }
        }
        return None;
    };
    let is_secure = endpoints.iter().all(|endpoint| endpoint.starts_with("https://"));
    for (flag, is_given) in [(CERTIFICATE, identity.is_some()), (CA, ca.is_some())] {
        if is_given && !is_secure {
            reader.problem(
                flag,
                "certificates need TLS: each endpoint of --etcd must be an https:// URL",
            );
        }
    }
    Some(Etcd { endpoints, login, ca, identity })
}

fn endpoints(text: Option<&str>, reader: &mut SettingsReader) -> Option<Vec<String>> {
    let text = text.map(str::trim).filter(|text| !text.is_empty())?;
    let endpoints: Vec<String> =
        text.split(',').map(|endpoint| endpoint.trim().trim_end_matches('/').to_owned()).collect();
    for endpoint in &endpoints {
        let place = endpoint
            .strip_prefix("http://")
            .or_else(|| endpoint.strip_prefix("https://"))
            .unwrap_or(endpoint);
        if !has_port(place) {
            let endpoint = printable(endpoint);
            reader.problem(
                "--etcd",
                format!(
                    "{endpoint} is not an endpoint; write it like 127.0.0.1:2379 or \
                     https://etcd:2379"
                ),
            );
        }
    }
    Some(endpoints)
}

fn login(args: &EtcdArgs, host: &Host<'_>, reader: &mut SettingsReader) -> Option<Login> {
    let (given, path) = (args.password.as_ref(), args.password_file.as_deref());
    let password =
        host.secret(["--etcd-password", "--etcd-password-file"], given, path, reader).ok()?;
    match (args.user.as_deref().map(str::trim).filter(|user| !user.is_empty()), password) {
        (None, None) => None,
        (Some(user), Some(password)) => Some(Login { user: user.to_owned(), password }),
        (Some(_), None) => {
            reader.problem(
                "--etcd-user",
                "needs a password: give --etcd-password-file (or PUNCTUAL_ETCD_PASSWORD)",
            );
            None
        }
        (None, Some(_)) => {
            reader.problem("--etcd-user", "required with a password for etcd");
            None
        }
    }
}

fn identity(args: &EtcdArgs, host: &Host<'_>, reader: &mut SettingsReader) -> Option<Identity> {
    let [certificate, key] = [&args.certificate_file, &args.key_file]
        .map(|path| path.as_deref().filter(|path| !path.as_os_str().is_empty()));
    let (certificate, key) = match (certificate, key) {
        (None, None) => return None,
        (Some(certificate), Some(key)) => (certificate, key),
        (Some(_), None) => {
            reader.problem(KEY, "required beside --etcd-certificate-file");
            return None;
        }
        (None, Some(_)) => {
            reader.problem(CERTIFICATE, "required beside --etcd-key-file");
            return None;
        }
    };
    let certificate = pem(CERTIFICATE, certificate, CERTIFICATE_MARK, host, reader);
    let key = pem(KEY, key, "PRIVATE KEY-----", host, reader);
    certificate.zip(key).map(|(certificate, key)| Identity { certificate, key })
}

/// Reads a file in PEM with a line ending with `mark`.
fn pem(
    flag: &'static str,
    path: &Path,
    mark: &str,
    host: &Host<'_>,
    reader: &mut SettingsReader,
) -> Option<Secret> {
    let text = host.read_secret(flag, path, reader)?;
    if !text.expose().contains(mark) {
        reader.problem(flag, format!("not PEM: no line ends with `{mark}`"));
    }
    Some(text)
}
