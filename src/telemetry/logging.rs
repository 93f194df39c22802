//! Logs, to stderr. Payloads and keys never get here: no line is given them.

use std::io;

use tracing_subscriber::EnvFilter;

/// How the logs look and what gets into them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    filter: String,
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One line for people.
    Text,
    /// One JSON object a line, for machines.
    Json,
}

/// What is wrong with one of the settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    pub flag: &'static str,
    pub text: String,
}

impl Settings {
    /// `filter` is a level or a list of `target=level`; `format` is `text` or `json`.
    pub fn new(filter: &str, format: &str) -> Result<Self, Wrong> {
        EnvFilter::try_new(filter).map_err(|error| Wrong { flag: "--log", text: format!("`{filter}` is no filter: {error}") })?;
        let format = match format.trim() {
            "text" | "" => Format::Text,
            "json" => Format::Json,
            other => return Err(Wrong { flag: "--log-format", text: format!("`{other}` is neither text nor json") }),
        };
        Ok(Self { filter: filter.to_owned(), format })
    }
}

/// Starts the logs of this process; when they were started before, nothing changes.
pub fn start(settings: &Settings) {
    let lines = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(&settings.filter)).with_writer(io::stderr);
    let started = match settings.format {
        Format::Text => lines.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).try_init(),
        Format::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
    };
    if let Err(error) = started {
        tracing::warn!(%error, "the logs go on as they were started before");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_and_formats_are_checked_before_they_are_used() {
        assert!(Settings::new("info", "text").is_ok());
        assert!(Settings::new("info,punctual::node=debug", "json").is_ok());
        assert_eq!(Settings::new("punctual=loud=er", "text").map_err(|wrong| wrong.flag), Err("--log"));
        assert_eq!(Settings::new("info", "xml").map_err(|wrong| wrong.flag), Err("--log-format"));
    }
}
