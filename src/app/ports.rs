//! The ports of a node: the one of its REST API, and the one for operators.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};

use crate::api::tls::{self, CertificateKeeper, ClientAuth};
use crate::api::{self, Api, ApiSettings, Cursors, Port};
use crate::config::Settings;
use crate::shutdown::{TaskFailure, Tasks};
use crate::telemetry::Registry;

/// Connections of the operator port, which has few callers.
pub const OPERATORS_MAX: usize = 64;
/// Connections of one address: half of them, so that idle ones leave room for other addresses.
const OPERATORS_OF_ONE_MAX: usize = OPERATORS_MAX / 2;
/// The interval at which the files of the certificate are read again. A change takes two reads.
const READ_EVERY: Duration = Duration::from_secs(5);

/// Returns the settings of TLS as the API takes them.
pub fn tls_settings(settings: &Settings) -> Option<tls::Settings> {
    let tls = settings.tls.as_ref()?;
    let clients = tls.clients.as_ref().map(|clients| {
        let auth = if clients.is_required { ClientAuth::Required } else { ClientAuth::Optional };
        let (ca_file, crl_file) = (clients.ca_file.clone(), clients.crl_file.clone());
        tls::Clients { ca_file, crl_file, auth }
    });
    Some(tls::Settings {
        certificate_file: tls.certificate_file.clone(),
        key_file: tls.key_file.clone(),
        clients,
        read_every: READ_EVERY,
    })
}

/// The ports, open but not served yet.
#[derive(Debug)]
pub struct Ports {
    public: TcpListener,
    operators: Option<TcpListener>,
    certificate: Option<CertificateKeeper>,
}

impl Ports {
    pub fn open(settings: &Settings, registry: &mut Registry) -> Result<Self, TaskFailure> {
        let certificate = tls_settings(settings)
            .map(|tls| CertificateKeeper::new(tls, tls::Metrics::register(registry)))
            .transpose()?;
        let public = listen("--listen", settings.listen)?;
        let operators = settings
            .operator_listen
            .map(|address| listen("--operator-listen", address))
            .transpose()?;
        Ok(Self { public, operators, certificate })
    }

    /// Returns the address of the REST API.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.public.local_addr()
    }

    /// Serves all ports in the background. `settings` are those of the public one, and `api` makes
    /// the API of a port. Returns the seal of cursors, which waits for the secret of the cluster.
    pub fn serve(
        self,
        settings: ApiSettings,
        api: impl Fn(ApiSettings) -> Api,
        tasks: &Tasks,
    ) -> Result<Arc<Cursors>, TaskFailure> {
        let acceptor = self.certificate.as_ref().map(CertificateKeeper::acceptor);
        if let Some(keeper) = self.certificate {
            tasks.spawn("certificate", keeper.run(tasks.clone()));
        }
        if let Some(listener) = self.operators {
            let settings = ApiSettings {
                port: Port::Operator,
                has_console: false,
                connections_max: OPERATORS_MAX,
                caller_connections_max: OPERATORS_OF_ONE_MAX,
                ..settings.clone()
            };
            let acceptor = acceptor.clone().map(tls::Acceptor::of_operators);
            let address = listener.local_addr()?;
            let settings =
                ApiSettings { hosts: settings.hosts.clone().and(address.ip()), ..settings };
            tasks.spawn(
                "operator api",
                api::serve(listener, api(settings), acceptor, tasks.clone()),
            );
            tracing::info!(%address, "listening on the operator port");
        }
        let public = api(settings);
        // The operator port has no lists, and so no cursors.
        let cursors = public.cursors();
        tasks.spawn("api", api::serve(self.public, public, acceptor, tasks.clone()));
        Ok(cursors)
    }
}

/// Maximum number of connections waiting to be accepted, as far as the kernel allows. A refused
/// client waits a second before it retries, and after a restart all clients connect at once.
const BACKLOG: u32 = 4096;

fn listen(flag: &str, address: SocketAddr) -> Result<TcpListener, TaskFailure> {
    Ok(try_listen(address).map_err(|error| {
        format!("listen on {address} ({flag}): {error}{}", advice_on(error.kind()))
    })?)
}

fn try_listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Returns advice for an address that cannot be listened on.
const fn advice_on(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::AddrInUse => "; another node may be running there",
        ErrorKind::AddrNotAvailable => {
            "; give an address of this machine, or 0.0.0.0 for all of them"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use crate::config::{self, CommandRefusal};

    #[test]
    fn a_certificate_that_cannot_be_used_is_a_problem_of_the_settings() {
        for (certificate, reason) in [
            ("/no/such/file.pem", "--tls-certificate-file: cannot read /no/such/file.pem"),
            ("/dev/null", "--tls-certificate-file: the file has no certificate"),
        ] {
            let words = ["punctual", "serve", "--database-url", "postgres://localhost/punctual"];
            let more = ["--kafka", "localhost:1", "--tls-certificate-file", certificate];
            let key = ["--tls-key-file", "/dev/null"];
            let words = words.iter().chain(&more).chain(&key).map(OsString::from);
            match config::read(words, crate::app::problems) {
                Err(CommandRefusal::Problems(problems)) => {
                    assert_eq!(problems.len(), 1, "{problems:?}");
                    assert!(problems[0].to_string().starts_with(reason), "{problems:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
