//! The encryption of the node's ports, and the rules for ports without it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::reader::SettingsReader;

#[derive(Args, Debug)]
#[command(next_help_heading = "TLS and the operator port")]
pub(super) struct TlsWords {
    /// The certificate of the REST API, in PEM, followed by its intermediate certificates. With a
    /// certificate, the API speaks only https://.
    ///
    /// The node checks the files for changes every five seconds. New connections use the new pair;
    /// a pair that does not match or has expired is refused, and the old one stays in use.
    #[arg(long, env = "PUNCTUAL_TLS_CERTIFICATE_FILE", value_name = "FILE")]
    pub tls_certificate_file: Option<PathBuf>,
    /// The private key of the certificate, in PEM, without a passphrase.
    #[arg(long, env = "PUNCTUAL_TLS_KEY_FILE", value_name = "FILE")]
    pub tls_key_file: Option<PathBuf>,
    /// The authorities that sign the client certificates of callers, in PEM.
    #[arg(long, env = "PUNCTUAL_TLS_CLIENT_CA_FILE", value_name = "FILE")]
    pub tls_client_ca_file: Option<PathBuf>,
    /// Lists of revoked certificates of callers (CRLs), in PEM. A certificate is refused when its
    /// authority has no list in the file.
    #[arg(long, env = "PUNCTUAL_TLS_CLIENT_CRL_FILE", value_name = "FILE")]
    pub tls_client_crl_file: Option<PathBuf>,
    /// Whether callers need a client certificate: optional or required. [default: required, with
    /// --tls-client-ca-file]
    ///
    /// The operator port never requires one, because the probes of a platform have none.
    #[arg(long, env = "PUNCTUAL_TLS_CLIENT_AUTH", value_name = "optional|required")]
    pub tls_client_auth: Option<String>,
    /// Refuses to start if a connection to Postgres, Kafka or etcd on another machine is not
    /// encrypted and verified. Without this flag, the node warns of Kafka and etcd, and wants
    /// --postgres-plaintext for Postgres. true or false; the flag alone means true.
    #[arg(long, env = "PUNCTUAL_REQUIRE_TLS", value_name = "BOOL")]
    pub require_tls: String,
    /// The address of a second port, for operators: /livez, /readyz with its reasons, /metrics and
    /// /v1/cluster. The first port then has no metrics, no cluster and no reasons.
    #[arg(long, env = "PUNCTUAL_OPERATOR_LISTEN", value_name = "ADDRESS")]
    pub operator_listen: Option<String>,
    /// Allows the operator port beyond loopback, answering everyone. true or false; the flag alone
    /// means true.
    #[arg(long, env = "PUNCTUAL_OPERATOR_ANONYMOUS", value_name = "BOOL")]
    pub operator_anonymous: String,
}

/// The certificate of the API, by the paths of its files. The files are read by the API itself,
/// again and again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
    pub clients: Option<Clients>,
}

/// Which client certificates are accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Clients {
    pub ca_file: PathBuf,
    /// Lists of revoked certificates.
    pub crl_file: Option<PathBuf>,
    /// False when a caller may come without a certificate.
    pub is_required: bool,
}

const CERTIFICATE: &str = "--tls-certificate-file";
const KEY: &str = "--tls-key-file";
const CLIENT_CA: &str = "--tls-client-ca-file";
const CLIENT_CRL: &str = "--tls-client-crl-file";
const CLIENT_AUTH: &str = "--tls-client-auth";

/// Reads the settings of TLS. Returns `None` for an API without TLS.
pub(super) fn read(args: &TlsWords, reader: &mut SettingsReader) -> Option<Tls> {
    let path = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
    let clients = clients(args, reader);
    match (path(&args.tls_certificate_file), path(&args.tls_key_file)) {
        (Some(certificate_file), Some(key_file)) => {
            Some(Tls { certificate_file, key_file, clients })
        }
        (Some(_), None) => {
            reader.problem(KEY, format!("required with {CERTIFICATE}"));
            None
        }
        (None, Some(_)) => {
            reader.problem(CERTIFICATE, format!("required with {KEY}"));
            None
        }
        (None, None) => {
            if clients.is_some() {
                reader.problem(
                    CLIENT_CA,
                    format!("client certificates need TLS: give {CERTIFICATE} and {KEY}"),
                );
            }
            None
        }
    }
}

fn clients(args: &TlsWords, reader: &mut SettingsReader) -> Option<Clients> {
    let path = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
    let (ca_file, crl_file) = (path(&args.tls_client_ca_file), path(&args.tls_client_crl_file));
    let auth = args.tls_client_auth.as_deref().map(str::trim).filter(|auth| !auth.is_empty());
    let is_required = match auth {
        None | Some("required") => true,
        Some("optional") => false,
        Some(other) => {
            reader.problem(CLIENT_AUTH, format!("`{other}` is neither optional nor required"));
            true
        }
    };
    if auth.is_some() && ca_file.is_none() {
        reader.problem(CLIENT_AUTH, format!("needs the authorities of the clients: {CLIENT_CA}"));
    }
    if crl_file.is_some() && ca_file.is_none() {
        reader.problem(CLIENT_CRL, format!("it takes the authorities of the clients: {CLIENT_CA}"));
    }
    ca_file.map(|ca_file| Clients { ca_file, crl_file, is_required })
}

/// The callers that the operator port would answer beyond loopback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operators {
    /// Everyone, by `--operator-anonymous`.
    Everyone,
    /// Everyone, without a flag that accepts it: there is no auth file.
    Unasked,
    /// Callers with a token, which others on the network can read.
    InClear,
    /// Callers with a token, by TLS here or in a proxy.
    Protected,
}

/// Reads the address of the operator port.
pub(super) fn operator_listen(
    args: &TlsWords,
    operators: Operators,
    reader: &mut SettingsReader,
) -> Option<SocketAddr> {
    const FLAG: &str = "--operator-listen";
    let text = args.operator_listen.as_deref().map(str::trim).filter(|text| !text.is_empty())?;
    let Ok(listen) = text.parse() else {
        reader.problem(
            FLAG,
            format!("`{text}` is not an address with a port; write it like 127.0.0.1:7071"),
        );
        return None;
    };
    if let Some(problem) = operator_port_problem(listen, operators) {
        reader.problem(FLAG, problem);
    }
    Some(listen)
}

/// Returns why the operator port may not listen.
fn operator_port_problem(listen: SocketAddr, operators: Operators) -> Option<&'static str> {
    match operators {
        _ if listen.ip().is_loopback() => None,
        Operators::Everyone | Operators::Protected => None,
        Operators::Unasked => Some(
            "beyond loopback, anyone who reaches this port sees the metrics and the state of the \
             cluster: keep it on 127.0.0.1, or accept that with --operator-anonymous \
             (docs/operate/tls.md)",
        ),
        Operators::InClear => Some(
            "beyond loopback, and without TLS others on the network can read the tokens: give \
             --tls-certificate-file and --tls-key-file, or, behind a proxy with TLS on a trusted \
             network, --plaintext-behind-proxy, or answer everyone with --operator-anonymous \
             (docs/operate/tls.md)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_served_beyond_loopback_only_when_that_is_accepted() {
        use Operators::{Everyone, InClear, Protected, Unasked};
        for (listen, operators, may_start) in [
            ("127.0.0.1:1", Unasked, true),
            ("127.0.0.1:1", InClear, true),
            ("[::1]:1", Unasked, true),
            ("0.0.0.0:1", Unasked, false),
            ("0.0.0.0:1", InClear, false),
            ("0.0.0.0:1", Everyone, true),
            ("0.0.0.0:1", Protected, true),
        ] {
            let problem = operator_port_problem(listen.parse().unwrap(), operators);
            assert_eq!(problem.is_none(), may_start, "{listen} {operators:?}");
        }
    }
}
