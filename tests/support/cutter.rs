//! A proxy to a server that cuts each connection after a random number of bytes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Cuts every connection sooner or later, in the middle of a request or of an answer.
#[derive(Debug)]
pub struct Cutter {
    pub address: SocketAddr,
    cut_count: Arc<AtomicU64>,
    _closing: DropGuard,
}

impl Cutter {
    /// Forwards to `target`, at most `bytes_max` in each direction of a connection. The same seed
    /// gives the same lengths, in the order of the connections.
    pub async fn start(target: SocketAddr, seed: u64, bytes_max: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (closing, cut_count) = (CancellationToken::new(), Arc::<AtomicU64>::default());
        let (ending, cuts) = (closing.clone(), cut_count.clone());
        let mut chance = StdRng::seed_from_u64(seed);
        tokio::spawn(async move {
            while let Some(Ok((client, _))) = ending.run_until_cancelled(listener.accept()).await {
                let (up, down) =
                    (chance.random_range(0..bytes_max), chance.random_range(0..bytes_max));
                let cuts = cuts.clone();
                tokio::spawn(ending.clone().run_until_cancelled_owned(async move {
                    if forward(client, target, up, down).await {
                        cuts.fetch_add(1, Ordering::Relaxed);
                    }
                }));
            }
        });
        Self { address, cut_count, _closing: closing.drop_guard() }
    }

    /// Returns the number of connections cut so far.
    pub fn cut_count(&self) -> u64 {
        self.cut_count.load(Ordering::Relaxed)
    }
}

/// Returns true when the connection was cut, and not closed by one of its ends.
async fn forward(mut client: TcpStream, target: SocketAddr, up_max: u64, down_max: u64) -> bool {
    let Ok(mut server) = TcpStream::connect(target).await else { return false };
    let (client_reads, mut client_writes) = client.split();
    let (server_reads, mut server_writes) = server.split();
    let (mut up, mut down) = (client_reads.take(up_max), server_reads.take(down_max));
    // The first direction that ends closes both.
    tokio::select! {
        sent = copy(&mut up, &mut server_writes) => sent.is_ok_and(|sent| sent == up_max),
        sent = copy(&mut down, &mut client_writes) => sent.is_ok_and(|sent| sent == down_max),
    }
}
