//! Callbacks of topics: nodes send tracked tasks to a service over HTTP.

pub mod policy;

use std::time::Duration;

use super::TopicName;
use crate::domain::Unopened;

/// The time that a service has for an answer, unless the callback says otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(10);
pub const TIMEOUT_MIN: Duration = Duration::from_millis(100);
pub const TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// The most requests that wait for an answer, unless the callback says otherwise.
pub const CONCURRENCY: u16 = 50;
pub const CONCURRENCY_MAX: u16 = 1_000;
pub const PER_SECOND_MAX: u16 = 10_000;
pub const URL_BYTES_MAX: usize = 2_000;
pub const HEADERS_MAX: usize = 20;
pub const HEADER_BYTES_MAX: usize = 4_096;

/// The names of headers that a callback may not set, and that are not taken from records: those of
/// the connection, those that proxies add, and those that a service trusts.
const RESERVED: [&str; 36] = [
    "accept-encoding",
    "authorization",
    "cf-connecting-ip",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "fastly-client-ip",
    "forwarded",
    "host",
    "keep-alive",
    "origin",
    "proxy",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "true-client-ip",
    "upgrade",
    "user-agent",
    "via",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-forwarded",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-host",
    "x-original-url",
    "x-real-ip",
    "x-remote-user",
    "x-rewrite-url",
];
const RESERVED_PREFIXES: [&str; 4] = ["if-", "punctual-", "x-envoy-", "x-forwarded-"];

/// Where and how the tracked tasks of a topic are sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Callback {
    pub url: String,
    /// Headers of each request, by names in lower case. They are shown to operators.
    pub headers: Vec<(String, String)>,
    pub timeout: Duration,
    /// The most requests of the cluster that wait for an answer.
    pub concurrency: u16,
    /// The most requests of the cluster in a second.
    pub max_per_second: Option<u16>,
    pub is_paused: bool,
}

/// A callback as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredCallback {
    pub topic: TopicName,
    /// Another one after each change, and higher.
    pub revision: u64,
    /// Without the values of its headers if these cannot be decrypted.
    pub callback: Callback,
    /// Why this node cannot decrypt the values of the headers. It sends nothing then.
    pub unopened: Option<Unopened>,
    /// Why it is paused, if a node has paused it.
    pub pause_reason: Option<String>,
}

/// Returns true for a header that may go to a service as it stands in a record. `name` is in lower
/// case. Many servers take `_` for `-`.
pub fn may_be_sent(name: &str) -> bool {
    let name = name.replace('_', "-");
    !RESERVED.contains(&name.as_str())
        && !RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns true for a header that a callback may set: also one that identifies the caller.
pub fn may_be_set(name: &str) -> bool {
    name == "authorization" || may_be_sent(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_records_cannot_pose_as_those_of_the_connection_or_of_the_callback() {
        for name in [
            "host",
            "authorization",
            "cookie",
            "punctual-signature",
            "punctual_task_id",
            "x-forwarded-for",
            "x_forwarded_for",
        ] {
            assert!(!may_be_sent(name), "{name}");
        }
        assert!(may_be_sent("traceparent") && may_be_sent("x-tenant"));
        assert!(may_be_set("authorization") && !may_be_set("content-length"));
        assert!(RESERVED.is_sorted());
    }
}
