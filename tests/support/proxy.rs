//! A way to a server that can be opened and closed.

use std::net::{Ipv4Addr, SocketAddr};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::stack::Stack;

/// Where connections are forwarded to.
#[derive(Clone, Debug)]
pub enum Target {
    Tcp(String),
    Unix(String),
}

/// A port that nobody listens on unless it is open.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    target: Target,
    /// To drop the guard closes the port and all connections.
    accepting: Option<(DropGuard, JoinHandle<()>)>,
}

impl Target {
    pub fn kafka(stack: &Stack) -> Self {
        Self::Tcp(stack.kafka.clone())
    }

    pub fn etcd(stack: &Stack) -> Self {
        Self::Tcp(stack.etcd.trim_start_matches("http://").trim_end_matches('/').to_owned())
    }

    pub fn postgres(stack: &Stack) -> Self {
        let options: PgConnectOptions = stack.database_url.parse().unwrap();
        match options.get_socket() {
            Some(folder) => Self::Unix(format!("{}/.s.PGSQL.{}", folder.display(), options.get_port())),
            None => Self::Tcp(format!("{}:{}", options.get_host(), options.get_port())),
        }
    }
}

impl Proxy {
    pub async fn closed(target: Target) -> Self {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
        Self { address, target, accepting: None }
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on connections come through.
    pub async fn open(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        let (target, closing) = (self.target.clone(), CancellationToken::new());
        let guard = closing.clone().drop_guard();
        let accepting = tokio::spawn(async move {
            while let Some(Ok((client, _))) = closing.run_until_cancelled(listener.accept()).await {
                tokio::spawn(closing.clone().run_until_cancelled_owned(forward(client, target.clone())));
            }
        });
        self.accepting = Some((guard, accepting));
    }

    /// From now on none do, and those that did are cut.
    pub async fn close(&mut self) {
        if let Some((guard, accepting)) = self.accepting.take() {
            drop(guard);
            accepting.await.unwrap();
        }
    }
}

async fn forward(client: TcpStream, target: Target) {
    match target {
        Target::Tcp(address) => join(client, TcpStream::connect(address).await).await,
        Target::Unix(path) => join(client, UnixStream::connect(path).await).await,
    }
}

async fn join(mut client: TcpStream, server: std::io::Result<impl AsyncRead + AsyncWrite + Unpin>) {
    match server {
        Ok(mut server) => {
            // However it ends, both sides see their connection closed.
            if let Err(error) = copy_bidirectional(&mut client, &mut server).await {
                eprintln!("forwarding ended: {error}");
            }
        }
        Err(error) => eprintln!("the server behind the proxy is away: {error}"),
    }
}
