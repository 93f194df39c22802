//! Logs to stderr. No log line contains a payload or a key.

mod lines;

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

pub(super) use self::lines::Lost;
pub use self::lines::{catch_panic, flush, uncouple};

/// Format and filter of the logs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSettings {
    filter: String,
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One line of text per event, for people.
    Text,
    /// One JSON object per line, for machines.
    Json,
}

/// A problem with one of the settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    pub flag: &'static str,
    pub text: String,
}

impl LogSettings {
    /// `filter` is a level or a list of `target=level`. `format` is `text` or `json`.
    pub fn new(filter: &str, format: &str) -> Result<Self, Wrong> {
        let wrong = |text: String| Wrong { flag: "--log", text };
        // A space beside a level would make it the name of a target.
        let directives: Vec<&str> =
            filter.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
        if directives.is_empty() {
            return Err(wrong(
                "is empty; give a level (error, warn, info, debug, trace, off) or target=level"
                    .to_owned(),
            ));
        }
        // A word that is not a level would be taken for a target, and all other lines would be
        // missing silently.
        let mut bare = directives.iter().filter(|directive| !directive.contains(['=', '[']));
        if let Some(other) = bare.find(|directive| directive.parse::<LevelFilter>().is_err()) {
            return Err(wrong(format!(
                "`{other}` is not a level (error, warn, info, debug, trace, off); for one part of \
                 the program, write target=level"
            )));
        }
        let filter = directives.join(",");
        EnvFilter::try_new(&filter)
            .map_err(|error| wrong(format!("`{filter}` is not a filter: {error}")))?;
        let format = match format.trim() {
            "text" | "" => Format::Text,
            "json" => Format::Json,
            other => {
                return Err(Wrong {
                    flag: "--log-format",
                    text: format!("`{other}` is neither text nor json"),
                });
            }
        };
        Ok(Self { filter, format })
    }

    /// A level alone applies to the program and its Kafka client: lines of other libraries would
    /// bury them.
    fn directives(&self) -> String {
        match self.filter.parse::<LevelFilter>() {
            Ok(level) if level > LevelFilter::WARN => {
                format!("warn,punctual={level},librdkafka={level}")
            }
            _ => self.filter.clone(),
        }
    }
}

/// Starts the logs of the process. A second call changes nothing.
pub fn start(settings: &LogSettings) {
    let layer = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(settings.directives()))
        .with_writer(|| lines::Writer)
        // A failed write would be reported on the same stderr, with a panic. The reader of the logs
        // may go away, and the node must survive that.
        .log_internal_errors(false);
    let started = match settings.format {
        Format::Text => layer.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).try_init(),
        Format::Json => layer.json().flatten_event(true).with_current_span(false).try_init(),
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
        assert!(LogSettings::new("info", "text").is_ok());
        assert!(LogSettings::new("info,punctual::node=debug", "json").is_ok());
        assert_eq!(
            LogSettings::new("punctual=loud=er", "text").map_err(|wrong| wrong.flag),
            Err("--log")
        );
        assert_eq!(
            LogSettings::new("info", "xml").map_err(|wrong| wrong.flag),
            Err("--log-format")
        );
        for silent in ["warning", "verbose", "", " , ", "info,loud", "punctual"] {
            let wrong = LogSettings::new(silent, "text").unwrap_err();
            assert!(wrong.flag == "--log" && wrong.text.contains("error, warn, info"), "{wrong:?}");
        }
    }

    #[test]
    fn a_level_alone_is_that_of_this_program() {
        let directives = |filter: &str| LogSettings::new(filter, "text").unwrap().directives();
        assert_eq!(directives("debug"), "warn,punctual=debug,librdkafka=debug");
        assert_eq!(directives(" debug ,"), directives("debug"));
        assert_eq!(directives("error "), "error");
        assert_eq!(directives("info, h2=debug"), "info,h2=debug");
        assert_eq!(directives("trace,h2=info"), "trace,h2=info");
    }
}
