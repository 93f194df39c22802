//! The API at a real socket.

mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::api::serve;
use crate::shutdown::Tasks;

pub const PATIENCE: Duration = Duration::from_secs(10);
pub const LIVEZ: &[u8] = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n";

pub async fn served(settings: ApiSettings) -> (SocketAddr, Tasks, Api) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tasks, api) = (Tasks::default(), api_of(settings).0);
    tasks.spawn("api", serve(listener, api.clone(), None, tasks.clone()));
    (address, tasks, api)
}

/// Reads until the other side closes.
pub async fn rest_of(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A connection closed with unread bytes may be reset after the answer.
    match timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.unwrap() {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    // So a node that reads on need not wait.
    stream.shutdown().await.ok();
    String::from_utf8(bytes).unwrap()
}

pub async fn one_answer(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; 4096];
    let length = timeout(PATIENCE, stream.read(&mut bytes)).await.unwrap().unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

/// Waits until a line of `/metrics` has this value.
pub async fn wait_metric(api: &Api, line: &str, value: &str) {
    let found = timeout(PATIENCE, async {
        while metric(api, line).await.as_deref() != Some(value) {
            tokio::task::yield_now().await;
        }
    });
    if found.await.is_err() {
        panic!("{line} is {:?} and not {value}", metric(api, line).await);
    }
}
