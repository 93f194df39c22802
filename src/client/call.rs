//! One call to a node.

use std::error::Error as _;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};

use super::answer::{Answer, Ending, Exit};
use super::args;

/// A node on the same network answers a connect in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub enum Method {
    Get,
    /// With a body of JSON.
    Post(Vec<u8>),
    Delete,
}

/// Asks the node for `path`. An `Ending` is what there is to say when no answer came.
pub async fn call(node: &args::Node, method: Method, path: &str) -> Result<Answer, Ending> {
    let base = node.url.trim_end_matches('/');
    let url = url_of(base, path)?;
    let client = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(Duration::from_secs(node.timeout))
        .redirect(Policy::none())
        // A proxy that is set for the web would take calls to this machine as well.
        .no_proxy()
        .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| Ending::new(Exit::NothingDone, format!("set up the client: {}", causes(&error))))?;
    let request = match method {
        Method::Get => client.get(url),
        Method::Post(body) => client.post(url).header(CONTENT_TYPE, "application/json").body(body),
        Method::Delete => client.delete(url),
    };
    let failed = |error: reqwest::Error| ending_of(&error, base, node.timeout);
    let response = request.header(ACCEPT, "application/json, application/problem+json").send().await.map_err(failed)?;
    let status = response.status().as_u16();
    let text = response.text().await.map_err(failed)?;
    Ok(Answer { status, text })
}

fn url_of(base: &str, path: &str) -> Result<Url, Ending> {
    let url = Url::parse(&format!("{base}{path}")).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    url.ok_or_else(|| {
        Ending::usage(format!("`{base}` is no URL of a node; write it like http://127.0.0.1:7070 (--url, PUNCTUAL_URL)"))
    })
}

fn ending_of(error: &reqwest::Error, base: &str, timeout: u64) -> Ending {
    if error.is_connect() {
        let text =
            format!("cannot reach {base}: {}\nnothing was done; is a node listening there? (--url, PUNCTUAL_URL)", causes(error));
        return Ending::new(Exit::NothingDone, text);
    }
    if error.is_timeout() {
        return Ending::new(Exit::Unknown, format!("{base} did not answer within {timeout} s (--timeout)"));
    }
    Ending::new(Exit::Unknown, format!("the call to {base} broke off: {}", causes(error)))
}

/// The innermost cause: what is around it only repeats the URL.
fn causes(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    let mut source = error.source();
    while let Some(cause) = source {
        innermost = cause;
        source = cause.source();
    }
    innermost.to_string()
}
