//! Errors as a line of the log, or an answer, tells them.
//!
//! Errors of the program say what was attempted, and never repeat their source: the chain says why.

use std::error::Error;

/// Formats an error and its causes in one line. A message that repeats the cause, as errors of some
/// libraries do, is not printed twice.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        source = cause.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: io::Error,
    }

    #[test]
    fn a_chain_says_each_cause_once() {
        let of = |text| chain(&Layer { text, source: io::Error::other("no such file") });
        assert_eq!(of("read a"), "read a: no such file");
        assert_eq!(of("read a: no such file"), "read a: no such file");
    }
}
