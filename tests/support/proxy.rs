//! A proxy to a server that can be opened, muted and closed.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::stack::Stack;
use super::wait::{now_ms, until};

/// The target of connections.
#[derive(Clone, Debug)]
pub enum Target {
    Tcp(String),
    Unix(String),
}

/// A port without a listener unless the proxy is open.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    target: Target,
    is_muted: Arc<AtomicBool>,
    /// The delay of the server's answers, in milliseconds.
    way_back: i64,
    /// Dropping the guard closes the port and all connections.
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
            Some(folder) => {
                Self::Unix(format!("{}/.s.PGSQL.{}", folder.display(), options.get_port()))
            }
            None => Self::Tcp(format!("{}:{}", options.get_host(), options.get_port())),
        }
    }
}

impl Proxy {
    pub async fn closed(target: Target) -> Self {
        let address =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
        Self { address, target, is_muted: Arc::default(), way_back: 0, accepting: None }
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delays the server's answers by this long, once the proxy is opened.
    pub fn slow_answers(&mut self, way_back: Duration) {
        self.way_back = i64::try_from(way_back.as_millis()).unwrap();
    }

    /// Lets connections through from now on.
    pub async fn open(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.is_muted.store(false, Ordering::Relaxed);
        let (target, closing) = (self.target.clone(), CancellationToken::new());
        let back = Back { is_muted: Arc::clone(&self.is_muted), way: self.way_back };
        let guard = closing.clone().drop_guard();
        let accepting = tokio::spawn(async move {
            while let Some(Ok((client, _))) = closing.run_until_cancelled(listener.accept()).await {
                tokio::spawn(closing.clone().run_until_cancelled_owned(forward(
                    client,
                    target.clone(),
                    back.clone(),
                )));
            }
        });
        self.accepting = Some((guard, accepting));
    }

    /// Mutes the server: it still receives requests, but its answers are lost until the proxy is
    /// opened again.
    pub fn mute(&self) {
        self.is_muted.store(true, Ordering::Relaxed);
    }

    /// Refuses new connections and cuts the existing ones.
    pub async fn close(&mut self) {
        if let Some((guard, accepting)) = self.accepting.take() {
            drop(guard);
            accepting.await.unwrap();
        }
    }
}

/// The direction from the server to its clients.
#[derive(Clone, Debug, Default)]
struct Back {
    is_muted: Arc<AtomicBool>,
    way: i64,
}

async fn forward(client: TcpStream, target: Target, back: Back) {
    match target {
        Target::Tcp(address) => join(client, TcpStream::connect(address).await, &back).await,
        Target::Unix(path) => join(client, UnixStream::connect(path).await, &back).await,
    }
}

async fn join(
    client: TcpStream,
    server: std::io::Result<impl AsyncRead + AsyncWrite + Unpin>,
    back: &Back,
) {
    match server {
        Ok(server) => {
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = tokio::io::split(server);
            let there = Back::default();
            // However it ends, both sides see their connection closed.
            if let Err(error) = tokio::try_join!(
                pass(from_client, to_server, &there),
                pass(from_server, to_client, back)
            ) {
                eprintln!("forwarding ended: {error}");
            }
        }
        Err(error) => eprintln!("the server behind the proxy is away: {error}"),
    }
}

/// Forwards data until the end of the stream. Discards data while muted.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    way: &Back,
) -> Result<(), std::io::Error> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        if way.way > 0 {
            until(now_ms() + way.way).await;
        }
        if !way.is_muted.load(Ordering::Relaxed) {
            to.write_all(&buffer[..count]).await?;
        }
    }
}
