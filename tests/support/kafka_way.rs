//! A slow proxy to Kafka. It delays each answer, and it can be held and released, as if the broker
//! were suspended.
//!
//! The proxy puts its own address in place of the broker's advertised address in the broker's
//! answers, so clients keep using the proxy.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

const FRAME_BYTES_MAX: usize = 64 << 20;
const FRAMES_MAX: usize = 10_000;

/// A proxy that is open until dropped.
#[derive(Debug)]
pub struct KafkaWay {
    address: SocketAddr,
    is_held: watch::Sender<bool>,
    _open: DropGuard,
}

#[derive(Clone, Debug)]
struct Way {
    server: SocketAddr,
    own: SocketAddr,
    /// The time from the broker's answer to its arrival.
    delay: Duration,
    is_held: watch::Receiver<bool>,
}

impl KafkaWay {
    /// Opens a proxy to the broker at `kafka`, which must be an address. Each of its answers
    /// arrives `delay` later.
    pub async fn open(kafka: &str, delay: Duration) -> Self {
        let server = kafka.parse().unwrap_or_else(|error| panic!("{kafka}: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (address, closing) = (listener.local_addr().unwrap(), CancellationToken::new());
        let (is_held, held) = watch::channel(false);
        let way = Way { server, own: address, delay, is_held: held };
        let accepting = closing.clone();
        tokio::spawn(async move {
            while let Some(Ok((client, _))) = accepting.run_until_cancelled(listener.accept()).await
            {
                tokio::spawn(
                    accepting.clone().run_until_cancelled_owned(forward(client, way.clone())),
                );
            }
        });
        Self { address, is_held, _open: closing.drop_guard() }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Stops traffic in both directions from now on. No connection is closed.
    pub fn hold(&self) {
        self.is_held.send_replace(true);
    }

    /// Lets held and later traffic pass.
    pub fn let_go(&self) {
        self.is_held.send_replace(false);
    }
}

async fn forward(client: TcpStream, way: Way) {
    let Ok(server) = TcpStream::connect(way.server).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (frames, arriving) = mpsc::channel(FRAMES_MAX);
    // However it ends, both sides see their connection closed.
    let ended = tokio::select! {
        ended = ask(from_client, to_server, way.clone()) => ended,
        ended = hear(from_server, frames, way.clone()) => ended,
        ended = answer(arriving, to_client, way) => ended,
    };
    if let Err(error) = ended {
        eprintln!("a way to Kafka ended: {error}");
    }
}

async fn ask(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    mut way: Way,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = client.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        way.passes().await;
        server.write_all(&buffer[..count]).await?;
    }
}

async fn hear(
    mut server: OwnedReadHalf,
    frames: mpsc::Sender<(Instant, Vec<u8>)>,
    way: Way,
) -> std::io::Result<()> {
    loop {
        let length = usize::try_from(server.read_i32().await?).unwrap_or(usize::MAX);
        assert!(length <= FRAME_BYTES_MAX, "an answer of {length} bytes");
        let mut frame = vec![0; length];
        server.read_exact(&mut frame).await?;
        way.put_own_address(&mut frame);
        if frames.send((Instant::now() + way.delay, frame)).await.is_err() {
            return Ok(());
        }
    }
}

async fn answer(
    mut frames: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut client: OwnedWriteHalf,
    mut way: Way,
) -> std::io::Result<()> {
    while let Some((arrives_at, frame)) = frames.recv().await {
        tokio::time::sleep_until(arrives_at).await;
        way.passes().await;
        client.write_i32(i32::try_from(frame.len()).unwrap()).await?;
        client.write_all(&frame).await?;
    }
    Ok(())
}

impl Way {
    async fn passes(&mut self) {
        // Otherwise only the end of the proxy ends the wait.
        if self.is_held.wait_for(|is_held| !is_held).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Replaces the broker's address. Host and port are next to each other in an answer, as text
    /// and as four bytes.
    fn put_own_address(&self, frame: &mut [u8]) {
        let bytes = |address: SocketAddr| {
            [
                address.ip().to_string().as_bytes(),
                i32::from(address.port()).to_be_bytes().as_slice(),
            ]
            .concat()
        };
        let (theirs, own) = (bytes(self.server), bytes(self.own));
        let mut from = 0;
        while let Some(at) = frame[from..].windows(theirs.len()).position(|window| window == theirs)
        {
            frame[from + at..from + at + own.len()].copy_from_slice(&own);
            from += at + own.len();
        }
    }
}
