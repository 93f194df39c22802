//! A server that speaks as much of Kafka's protocol as a client needs to find a cluster of one
//! broker. It can list no brokers, as a starting broker does.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;
const UNSUPPORTED_VERSION: i16 = 35;
const LEADER_NOT_AVAILABLE: i16 = 5;
/// The highest version of each request that is answered.
const METADATA_MAX: i16 = 1;
const API_VERSIONS_MAX: i16 = 0;
const NODE: i32 = 1;

/// A broker with one topic of one partition, without records.
#[derive(Debug)]
pub struct StubBroker {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _closing: DropGuard,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    topic: String,
    lists_none: AtomicBool,
    /// The ids of the clients that the broker has listed itself to.
    told: Mutex<HashSet<String>>,
    /// Each change closes all connections.
    restarts: watch::Sender<u32>,
}

impl StubBroker {
    pub async fn start(topic: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (topic, lists_none) = (topic.to_owned(), AtomicBool::new(false));
        let (told, restarts) = (Mutex::default(), watch::Sender::new(0));
        let shared = Arc::new(Shared { address, topic, lists_none, told, restarts });
        let (closing, server) = (CancellationToken::new(), Arc::clone(&shared));
        let ending = closing.clone();
        tokio::spawn(async move {
            while let Some(Ok((client, _))) = ending.run_until_cancelled(listener.accept()).await {
                let (server, mut restarts) = (Arc::clone(&server), server.restarts.subscribe());
                restarts.mark_unchanged();
                tokio::spawn(ending.clone().run_until_cancelled_owned(async move {
                    tokio::select! {
                        // The client closes its connections.
                        _closed = server.serve(client) => {}
                        _restarted = restarts.changed() => {}
                    }
                }));
            }
        });
        Self { address, shared, _closing: closing.drop_guard() }
    }

    /// Closes all connections, and lists no broker to new ones.
    pub fn restart_without_brokers(&self) {
        self.shared.lists_none.store(true, Ordering::Relaxed);
        self.shared.restarts.send_modify(|count| *count += 1);
    }

    /// Returns true when the broker has listed itself to a client of this id.
    pub fn has_told(&self, client_id: &str) -> bool {
        self.shared.told.lock().unwrap().contains(client_id)
    }

    /// Lists itself again.
    pub fn list_itself(&self) {
        self.shared.lists_none.store(false, Ordering::Relaxed);
    }
}

impl Shared {
    async fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        loop {
            let size = client.read_i32().await?;
            let mut request = vec![0; usize::try_from(size).unwrap()];
            client.read_exact(&mut request).await?;
            let [key, version] =
                [0, 2].map(|at| i16::from_be_bytes([request[at], request[at + 1]]));
            // The header of the answer is the correlation id of the request.
            let mut answer = request[4..8].to_vec();
            match key {
                API_VERSIONS => api_versions(version, &mut answer),
                METADATA => self.metadata(&mut answer),
                other => panic!("a request that was not offered: {other}"),
            }
            client.write_i32(i32::try_from(answer.len()).unwrap()).await?;
            client.write_all(&answer).await?;
            if key == METADATA && !self.lists_none.load(Ordering::Relaxed) {
                let length = u16::from_be_bytes([request[8], request[9]]);
                let client_id = &request[10..10 + usize::from(length)];
                let client_id = String::from_utf8(client_id.to_vec()).unwrap();
                self.told.lock().unwrap().insert(client_id);
            }
        }
    }

    fn metadata(&self, answer: &mut Vec<u8>) {
        let lists_none = self.lists_none.load(Ordering::Relaxed);
        let leader = if lists_none { -1 } else { NODE };
        put_i32(answer, i32::from(!lists_none));
        if !lists_none {
            put_i32(answer, NODE);
            put_text(answer, &self.address.ip().to_string());
            put_i32(answer, i32::from(self.address.port()));
            let no_rack = -1;
            put_i16(answer, no_rack);
        }
        let controller = leader;
        put_i32(answer, controller);
        let topics = 1;
        put_i32(answer, topics);
        put_i16(answer, 0);
        put_text(answer, &self.topic);
        let is_internal = 0;
        answer.push(is_internal);
        let partitions = 1;
        put_i32(answer, partitions);
        put_i16(answer, if lists_none { LEADER_NOT_AVAILABLE } else { 0 });
        let partition = 0;
        put_i32(answer, partition);
        put_i32(answer, leader);
        for _replicas_and_those_in_sync in 0..2 {
            put_i32(answer, 1);
            put_i32(answer, NODE);
        }
    }
}

fn api_versions(version: i16, answer: &mut Vec<u8>) {
    put_i16(answer, if version > API_VERSIONS_MAX { UNSUPPORTED_VERSION } else { 0 });
    let all = [(METADATA, METADATA_MAX), (API_VERSIONS, API_VERSIONS_MAX)];
    put_i32(answer, i32::try_from(all.len()).unwrap());
    for (key, version_max) in all {
        [key, 0, version_max].into_iter().for_each(|number| put_i16(answer, number));
    }
}

fn put_i16(answer: &mut Vec<u8>, number: i16) {
    answer.extend(number.to_be_bytes());
}

fn put_i32(answer: &mut Vec<u8>, number: i32) {
    answer.extend(number.to_be_bytes());
}

fn put_text(answer: &mut Vec<u8>, text: &str) {
    put_i16(answer, i16::try_from(text.len()).unwrap());
    answer.extend(text.as_bytes());
}
