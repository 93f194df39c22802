//! A way to a server that can be opened, muted and closed.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
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
    is_muted: Arc<AtomicBool>,
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
        Self { address, target, is_muted: Arc::default(), accepting: None }
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on connections come through.
    pub async fn open(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.is_muted.store(false, Ordering::Relaxed);
        let (target, is_muted, closing) = (self.target.clone(), Arc::clone(&self.is_muted), CancellationToken::new());
        let guard = closing.clone().drop_guard();
        let accepting = tokio::spawn(async move {
            while let Some(Ok((client, _))) = closing.run_until_cancelled(listener.accept()).await {
                tokio::spawn(closing.clone().run_until_cancelled_owned(forward(client, target.clone(), Arc::clone(&is_muted))));
            }
        });
        self.accepting = Some((guard, accepting));
    }

    /// From now on the server still hears its clients, and nobody hears the server; until the way is opened anew.
    pub fn mute(&self) {
        self.is_muted.store(true, Ordering::Relaxed);
    }

    /// From now on none do, and those that did are cut.
    pub async fn close(&mut self) {
        if let Some((guard, accepting)) = self.accepting.take() {
            drop(guard);
            accepting.await.unwrap();
        }
    }
}

async fn forward(client: TcpStream, target: Target, is_muted: Arc<AtomicBool>) {
    match target {
        Target::Tcp(address) => join(client, TcpStream::connect(address).await, &is_muted).await,
        Target::Unix(path) => join(client, UnixStream::connect(path).await, &is_muted).await,
    }
}

async fn join(client: TcpStream, server: std::io::Result<impl AsyncRead + AsyncWrite + Unpin>, is_muted: &AtomicBool) {
    match server {
        Ok(server) => {
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = tokio::io::split(server);
            let never = AtomicBool::new(false);
            // However it ends, both sides see their connection closed.
            if let Err(error) = tokio::try_join!(pass(from_client, to_server, &never), pass(from_server, to_client, is_muted)) {
                eprintln!("forwarding ended: {error}");
            }
        }
        Err(error) => eprintln!("the server behind the proxy is away: {error}"),
    }
}

/// Passes on what comes, until there is no more; while it is muted, what comes is lost.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    is_muted: &AtomicBool,
) -> Result<(), std::io::Error> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        if !is_muted.load(Ordering::Relaxed) {
            to.write_all(&buffer[..count]).await?;
        }
    }
}
