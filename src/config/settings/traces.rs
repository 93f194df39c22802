//! Parses the settings of traces.

use std::path::Path;

use az::SaturatingAs as _;

use crate::config::args::TraceArgs;
use crate::config::host::Host;
use crate::config::reader::SettingsReader;
use crate::config::secret::Secret;

const ENDPOINT: &str = "--otlp-endpoint";
const HEADERS_FILE: &str = "--otlp-headers-file";
const RATIO: &str = "--trace-ratio";
const MILLION: f64 = 1_000_000.0;

/// Where spans go, and which.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceExport {
    /// `http://` or `https://`, host and port, without a slash at the end.
    pub endpoint: String,
    /// Names, and values that may be secret.
    pub headers: Vec<(String, Secret)>,
    /// How many of a million traces that begin at this node are recorded.
    pub per_million: u32,
}

/// Parses the settings. `None` without a collector.
pub(in crate::config) fn traces(
    args: &TraceArgs,
    host: &Host<'_>,
    reader: &mut SettingsReader,
) -> Option<TraceExport> {
    let per_million = per_million(&args.trace_ratio, reader);
    let path = args.otlp_headers_file.as_deref().filter(|path| !path.as_os_str().is_empty());
    let headers = path.map(|path| headers(path, host, reader)).unwrap_or_default();
    let endpoint = args.otlp_endpoint.as_deref().map(str::trim).unwrap_or_default();
    if endpoint.is_empty() {
        if path.is_some() {
            reader.problem(HEADERS_FILE, "needs a collector: give --otlp-endpoint");
        }
        return None;
    }
    let is_url = endpoint
        .strip_prefix("http://")
        .or_else(|| endpoint.strip_prefix("https://"))
        .map(|rest| rest.trim_end_matches('/'))
        .is_some_and(|place| !place.is_empty() && !place.contains(['/', '?', '#', '@', ' ']));
    if !is_url {
        let expected = "write it like http://collector:4318, without a path or a password";
        reader.problem(ENDPOINT, format!("not the URL of a collector; {expected}"));
    }
    Some(TraceExport { endpoint: endpoint.trim_end_matches('/').to_owned(), headers, per_million })
}

fn per_million(text: &str, reader: &mut SettingsReader) -> u32 {
    match text.trim().parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => (ratio * MILLION).round().saturating_as(),
        _ => {
            reader.problem(RATIO, format!("`{text}` is not a number from 0 to 1"));
            0
        }
    }
}

fn headers(path: &Path, host: &Host<'_>, reader: &mut SettingsReader) -> Vec<(String, Secret)> {
    let text = host.read_secret(HEADERS_FILE, path, reader).unwrap_or_else(|| Secret::from(""));
    let mut headers: Vec<(String, Secret)> = Vec::new();
    for (number, line) in text.expose().lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let is_name = |name: &str| {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let is_value = |value: &str| value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        match line.split_once(':').map(|(name, value)| (name.trim(), value.trim())) {
            Some((name, _))
                if headers.iter().any(|(known, _)| name.eq_ignore_ascii_case(known)) =>
            {
                let (line, path) = (number + 1, path.display());
                reader.problem(HEADERS_FILE, format!("line {line} of {path} gives a name again"));
            }
            Some((name, value)) if is_name(name) && is_value(value) => {
                headers.push((name.to_owned(), Secret::from(value)));
            }
            _ => {
                let (line, path) = (number + 1, path.display());
                reader.problem(HEADERS_FILE, format!("line {line} of {path} is not `name: value`"));
            }
        }
    }
    if headers.is_empty() && reader.took(HEADERS_FILE) {
        reader.problem(HEADERS_FILE, format!("{} has no header", path.display()));
    }
    headers
}
