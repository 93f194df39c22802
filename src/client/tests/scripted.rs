//! A server that answers by a script and records its requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use tokio::net::TcpListener;

use crate::client::args::NodeOptions;
use crate::client::caller::NodeCaller;

/// A server that gives its answers one after the other, and repeats the last one forever.
pub struct Scripted {
    pub node: NodeOptions,
    asked: Arc<Mutex<Vec<String>>>,
    authorized: Arc<Mutex<Vec<Option<String>>>>,
}

impl Scripted {
    pub async fn start<const N: usize>(answers: [(u16, &str); N]) -> Self {
        rustls::crypto::ring::default_provider().install_default().ok();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let answers: VecDeque<(u16, String)> =
            answers.iter().map(|(status, text)| (*status, (*text).to_owned())).collect();
        let answers = Arc::new(Mutex::new(answers));
        let seen = asked.clone();
        let authorized: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
        let tokens = authorized.clone();
        let app = Router::new().fallback(
            move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
                let authorization = headers.get(AUTHORIZATION).cloned();
                tokens
                    .lock()
                    .unwrap()
                    .push(authorization.map(|value| value.to_str().unwrap().to_owned()));
                seen.lock().unwrap().push(
                    format!("{method} {uri} {}", String::from_utf8_lossy(&body))
                        .trim_end()
                        .to_owned(),
                );
                let mut answers = answers.lock().unwrap();
                let answer =
                    if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
                drop(answers);
                async move {
                    let (status, text) = answer.unwrap();
                    (StatusCode::from_u16(status).unwrap(), [("retry-after", "0")], text)
                }
            },
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/base/", listener.local_addr().unwrap());
        crate::shutdown::Tasks::default()
            .spawn("scripted", async move { Ok(axum::serve(listener, app).await?) });
        Self { node: NodeOptions::at(url, Duration::from_secs(30)), asked, authorized }
    }

    pub fn caller(&self) -> NodeCaller {
        NodeCaller::new(&self.node).unwrap()
    }

    /// Returns the header `Authorization` of each request so far.
    pub fn authorized(&self) -> Vec<Option<String>> {
        self.authorized.lock().unwrap().clone()
    }

    /// Returns the method, path and body of each request so far.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}
