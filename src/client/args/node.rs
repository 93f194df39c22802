//! The flags that select a node, and the parsers of flag values.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};

use super::access::Credentials;
use crate::domain::TaskName;
use crate::domain::time::duration::{self, spelled};

/// Maximum length of a run id. The name of a line is the run id, a slash and a number of at most 20
/// digits. A name has at most 255 bytes.
const RUN_ID_BYTES_MAX: usize = 200;

/// The node to call, and the form of its answer.
#[derive(Args, Clone, Debug)]
pub struct NodeOptions {
    /// The URL of any node of the cluster. [default: that of the default profile, or else
    /// http://127.0.0.1:7070]
    #[arg(long, env = "PUNCTUAL_URL", value_name = "URL")]
    pub url: Option<String>,
    /// The profile with the URL, the token file and the certificates of the node. Other flags and
    /// variables win over the profile, but it cannot be used with another URL.
    #[arg(long, env = "PUNCTUAL_PROFILE", value_name = "NAME")]
    pub profile: Option<String>,
    /// The file with the profiles. [default: punctual/config.toml in XDG_CONFIG_HOME, or else in
    /// ~/.config]
    #[arg(long, env = "PUNCTUAL_PROFILES_FILE", value_name = "FILE")]
    pub profiles_file: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Timeout of the call, from 1s to 1h. A node answers within 30s by default.
    #[arg(
        long,
        env = "PUNCTUAL_TIMEOUT",
        value_name = "SPAN",
        default_value = "35s",
        value_parser = span(Duration::from_secs(1), Duration::from_hours(1))
    )]
    pub timeout: Duration,
    #[command(flatten)]
    pub credentials: Credentials,
    /// The certificate authorities of the node, in PEM, for https://. They replace those of the
    /// machine.
    #[arg(long, env = "PUNCTUAL_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// A client certificate, followed by the certificates up to the root, in PEM, for https://. A
    /// token is sent as well, if there is one, and wins.
    #[arg(long, env = "PUNCTUAL_CERTIFICATE_FILE", value_name = "FILE", requires = "key_file")]
    pub certificate_file: Option<PathBuf>,
    /// The key of --certificate-file, in PEM.
    #[arg(long, env = "PUNCTUAL_KEY_FILE", value_name = "FILE", requires = "certificate_file")]
    pub key_file: Option<PathBuf>,
}

impl NodeOptions {
    /// Returns true if the answer is printed as JSON.
    pub fn is_json(&self) -> bool {
        self.output.is_json()
    }
}

#[cfg(test)]
impl NodeOptions {
    /// Returns the flags for the node at `url`, without a credential.
    pub fn at(url: impl Into<String>, timeout: Duration) -> Self {
        let (url, credentials) = (url.into(), Credentials::default());
        Self {
            url: Some(url),
            profile: None,
            profiles_file: None,
            output: OutputArgs::default(),
            timeout,
            credentials,
            ca_file: None,
            certificate_file: None,
            key_file: None,
        }
    }
}

/// The flags that choose the form of an answer.
#[derive(Args, Clone, Default, Debug)]
pub struct OutputArgs {
    /// The form of the answer. table: text for people. json, for scripts: the answer as JSON on
    /// stdout, and errors as one JSON object on stderr.
    #[arg(long = "output", short = 'o', value_name = "FORM", default_value = "table")]
    form: OutputForm,
    /// The same as --output json.
    #[arg(long, conflicts_with = "form")]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum, Debug)]
enum OutputForm {
    #[default]
    Table,
    Json,
}

impl OutputArgs {
    /// Returns true if the answer is printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json || self.form == OutputForm::Json
    }
}

/// Requires at least one of these arguments. Each argument declares its own conflicts and
/// requirements.
pub fn which(ids: &[&'static str]) -> ArgGroup {
    ArgGroup::new("which").args(ids).required(true).multiple(true)
}

/// Parses a length of time from `from` to `to`, both included.
pub fn span(
    from: Duration,
    to: Duration,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let span = duration::parse(text)?;
        let is_within = (from..=to).contains(&span);
        is_within
            .then_some(span)
            .ok_or_else(|| format!("expected {} to {}", spelled(from), spelled(to)))
    }
}

pub fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it like name=value")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Refuses a value beginning with two hyphens: it is a flag, and the value of the flag before it
/// was forgotten. One hyphen is allowed.
pub fn no_flag(text: &str) -> Result<String, String> {
    if text.starts_with("--") {
        return Err("begins like a flag; is the value missing?".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses the name of a task. Refuses `.` and `..`, because a URL parser removes them from the
/// path.
pub fn name(text: &str) -> Result<String, String> {
    TaskName::new(&no_flag(text)?)
        .map(|name| name.as_str().to_owned())
        .map_err(|error| error.to_string())
}

/// Refuses a number without a unit: `30` could mean seconds or milliseconds. The node validates the
/// rest.
pub fn delay(text: &str) -> Result<String, String> {
    let number = text.trim();
    if number.parse::<f64>().is_ok() {
        return Err(format!(
            "a delay needs a unit: {number}ms, {number}s, {number}m, {number}h or {number}d"
        ));
    }
    Ok(text.to_owned())
}

pub fn run_id(text: &str) -> Result<String, String> {
    let is_right =
        !text.is_empty() && text.len() <= RUN_ID_BYTES_MAX && !text.contains(char::is_control);
    is_right
        .then(|| text.to_owned())
        .ok_or_else(|| format!("expected 1 to {RUN_ID_BYTES_MAX} bytes without control characters"))
}

pub fn count(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| {
        let count = text.parse().ok().filter(|count| (1..=max).contains(count));
        count.ok_or_else(|| format!("expected a whole number from 1 to {max}"))
    }
}
