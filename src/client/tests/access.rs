//! Tests of tokens, of the places they are sent to, and of foreign text in answers.

use std::path::PathBuf;
use std::time::Duration;

use super::scripted::Scripted;
use crate::client::answer::{Exit, NodeAnswer};
use crate::client::args::NodeOptions;
use crate::client::caller::NodeCaller;

const UNAUTHENTICATED: &str = concat!(
    r#"{"type":"urn:punctual:problem:unauthenticated","title":"Unauthenticated","status":401,"#,
    r#""detail":"the token is not valid"}"#,
);

struct TokenFile(PathBuf);

impl TokenFile {
    fn new(token: &str) -> Self {
        let name = format!("punctual-client-{:032x}", rand::random::<u128>());
        let file = Self(std::env::temp_dir().join(name));
        file.write(token);
        file
    }

    fn write(&self, token: &str) {
        std::fs::write(&self.0, token).unwrap();
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

fn with_file(node: &NodeOptions, file: &TokenFile) -> NodeOptions {
    let mut node = node.clone();
    node.credentials.token_file = Some(file.0.clone());
    node
}

fn with_token(url: &str, plaintext: bool) -> NodeOptions {
    let mut node = NodeOptions::at(url, Duration::from_secs(1));
    node.credentials.token = Some("pt_s3cret".parse().unwrap());
    node.credentials.plaintext = plaintext;
    node
}

#[tokio::test]
async fn a_token_is_sent_with_each_call_and_none_without_one() {
    let server = Scripted::start([(200, "{}")]).await;
    let bare = server.caller();
    bare.ask(&bare.get(&["a"], &[]).unwrap()).await.unwrap();
    let file = TokenFile::new("pt_1\n");
    let caller = NodeCaller::new(&with_file(&server.node, &file)).unwrap();
    for _ in 0..2 {
        caller.ask(&caller.post(&["a"], "{}").unwrap()).await.unwrap();
    }
    let sent = Some("Bearer pt_1".to_owned());
    assert_eq!(server.authorized(), [None, sent.clone(), sent]);
}

#[tokio::test]
async fn a_refused_token_is_replaced_once_from_its_file() {
    let server =
        Scripted::start([(401, UNAUTHENTICATED), (200, "{}"), (401, UNAUTHENTICATED)]).await;
    let file = TokenFile::new("pt_1");
    let caller = NodeCaller::new(&with_file(&server.node, &file)).unwrap();
    let call = caller.get(&["a"], &[]).unwrap();
    file.write("pt_2");
    assert_eq!(caller.ask(&call).await.unwrap().status, 200);
    // The file has no other token now: the refusal stands, and says what to do.
    let refused = caller.ask(&call).await.unwrap();
    assert_eq!(server.authorized().len(), 3);
    let ending = refused.problem().unwrap().ending();
    assert_eq!(ending.exit, Exit::Refused);
    assert!(ending.text.contains("the token that was given is not valid"), "{}", ending.text);
}

#[test]
fn a_token_never_goes_over_plain_http_beyond_this_machine() {
    rustls::crypto::ring::default_provider().install_default().ok();
    for url in ["http://node:7070", "http://10.0.0.1", "http://localhost.example/"] {
        let ending = NodeCaller::new(&with_token(url, false)).unwrap_err();
        assert_eq!(ending.exit, Exit::Usage, "{url}");
        assert!(ending.text.contains("--plaintext") && !ending.text.contains("s3cret"), "{url}");
        assert!(NodeCaller::new(&with_token(url, true)).is_ok(), "{url}");
        assert!(NodeCaller::new(&NodeOptions::at(url, Duration::from_secs(1))).is_ok(), "{url}");
    }
    for url in ["http://localhost:7070", "http://[::1]:7070", "http://127.0.0.2", "https://node"] {
        assert!(NodeCaller::new(&with_token(url, false)).is_ok(), "{url}");
    }
}

#[test]
fn a_ca_file_without_certificates_is_refused() {
    rustls::crypto::ring::default_provider().install_default().ok();
    let file = TokenFile::new("no certificate");
    for path in [file.0.clone(), PathBuf::from("/nowhere/ca.pem")] {
        let mut node = NodeOptions::at("https://node", Duration::from_secs(1));
        node.ca_file = Some(path);
        let ending = NodeCaller::new(&node).unwrap_err();
        assert!(ending.exit == Exit::Usage && ending.text.starts_with("--ca-file "), "{ending:?}");
    }
}

#[tokio::test]
async fn a_caller_without_a_token_is_told_how_one_is_given() {
    let server = Scripted::start([(401, UNAUTHENTICATED)]).await;
    let caller = server.caller();
    let refused = caller.ask(&caller.get(&["a"], &[]).unwrap()).await.unwrap();
    let text = refused.problem().unwrap().ending().text;
    assert!(text.ends_with("give the token by PUNCTUAL_TOKEN or --token-file"), "{text}");
}

#[test]
fn a_client_certificate_that_is_none_is_refused() {
    rustls::crypto::ring::default_provider().install_default().ok();
    let file = TokenFile::new("no certificate");
    for path in [file.0.clone(), PathBuf::from("/nowhere/me.pem")] {
        let mut node = NodeOptions::at("https://node", Duration::from_secs(1));
        node.certificate_file = Some(path.clone());
        node.key_file = Some(path);
        let ending = NodeCaller::new(&node).unwrap_err();
        assert!(ending.exit == Exit::Usage && ending.text.contains("--key-file "), "{ending:?}");
    }
}

#[test]
fn foreign_text_cannot_steer_the_terminal_or_begin_a_line() {
    let text = concat!(
        r#"{"type":"urn:punctual:problem:invalid-value","title":"T\u001b[2J","#,
        r#""detail":"d\r\nforged\u202e","field":"f\u0007"}"#,
    );
    let problem =
        NodeAnswer { status: 400, retry_after: None, has_token: false, text: text.to_owned() }
            .problem();
    let line = problem.unwrap().ending().text;
    assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
    assert!(line.contains("\\u{1b}[2J") && line.contains(" forged"), "{line:?}");
}
