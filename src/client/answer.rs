//! What a node answered, and how a command ends.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::task::Task;

/// Exit codes; `--help` lists them. They keep their meaning for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    Refused,
    Usage,
    NothingDone,
    NotFound,
    TooLate,
    Unknown,
    Interrupted,
}

impl Exit {
    pub const fn code(self) -> u8 {
        match self {
            Self::Refused => 1,
            Self::Usage => 2,
            Self::NothingDone => 3,
            Self::NotFound => 4,
            Self::TooLate => 5,
            Self::Unknown => 6,
            Self::Interrupted => 130,
        }
    }

    /// The same as a word, for scripts that read the error rather than the exit code.
    const fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Usage => "usage",
            Self::NothingDone => "nothing-done",
            Self::NotFound => "not-found",
            Self::TooLate => "too-late",
            Self::Unknown => "unknown",
            Self::Interrupted => "interrupted",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// How a command ends that did not get what it asked for.
#[derive(PartialEq, Eq, Debug)]
pub struct Ending {
    pub exit: Exit,
    pub text: String,
}

impl Ending {
    pub fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into() }
    }

    pub fn usage(text: String) -> Self {
        Self::new(Exit::Usage, text)
    }

    /// What to do after a submit of which nobody knows whether it was done.
    pub fn advise_submit(self, is_named: bool) -> Self {
        self.advise(if is_named {
            "the task may be stored, or not; repeat the command: the same name makes no second task"
        } else {
            "the task may be stored, or not, and repeating the command may publish it twice; with --name it could be repeated safely"
        })
    }

    pub fn advise_cancel(self) -> Self {
        self.advise("the cancel may have taken effect, or not; repeat the command, it is safe")
    }

    /// After what can be repeated: the second time it changes nothing, or finds it done.
    pub fn advise_repeat(self) -> Self {
        self.advise("it may have been done, or not; repeat the command, it is safe: not found then means that it was done")
    }

    /// A look that failed has done nothing, whatever became of it.
    pub fn advise_show(self) -> Self {
        if self.exit == Exit::Unknown { Self { exit: Exit::NothingDone, ..self } } else { self }
    }

    fn advise(mut self, advice: &str) -> Self {
        if self.exit == Exit::Unknown {
            self.text = format!("{}\n{advice}", self.text);
        }
        self
    }

    /// Says it on stderr: as text, or as one JSON object.
    pub fn report(self, is_json: bool) -> ExitCode {
        // Where stderr is closed, the exit code must do.
        if is_json {
            let kind = format!("urn:punctual:client:{}", self.exit.word());
            let error = json!({ "type": kind, "detail": self.text, "exit_code": self.exit.code() });
            writeln!(io::stderr(), "{error}").ok();
        } else {
            writeln!(io::stderr(), "{}", self.text).ok();
        }
        self.exit.into()
    }
}

/// An answer of a node.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// How long the node asks to be left alone.
    pub retry_after: Option<Duration>,
    /// JSON.
    pub text: String,
}

impl Answer {
    /// The problem, when it is one.
    pub fn problem(&self) -> Option<Problem> {
        if (200..300).contains(&self.status) {
            return None;
        }
        let problem = serde_json::from_str(&self.text).unwrap_or_else(|_not_ours| Problem {
            // A proxy, or another server than a node.
            detail: format!("status {} without a problem in JSON; is this URL a node's?", self.status),
            ..Problem::default()
        });
        Some(Problem { status: self.status, ..problem })
    }

    /// False of a proxy's page.
    pub fn is_json(&self) -> bool {
        serde_json::from_str::<serde_json::Value>(&self.text).is_ok_and(|value| value.is_object())
    }

    /// What the answer holds.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Ending> {
        serde_json::from_str(&self.text).map_err(|error| {
            let text = format!("the answer (status {}) is not what a node answers: {error}; is this URL a node's?", self.status);
            Ending::new(Exit::Unknown, text)
        })
    }
}

/// RFC 9457, as far as a client needs it. Members that are added later are passed over.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub struct Problem {
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_deserializing)]
    pub status: u16,
    pub title: String,
    pub detail: String,
    pub field: Option<String>,
    /// Seconds.
    pub retry_after: Option<u64>,
    verdict: Option<String>,
    task: Option<Task>,
}

impl Problem {
    pub fn exit(&self) -> Exit {
        let kind = self.slug();
        match (self.status, kind) {
            (409, _) if self.verdict.as_deref() == Some("too_late") => Exit::TooLate,
            (404, "task-not-found") => Exit::NotFound,
            (503, "outcome-unknown") | (500 | 502 | 504, _) => Exit::Unknown,
            (408 | 429 | 503, _) => Exit::NothingDone,
            _ => Exit::Refused,
        }
    }

    /// The last part of the `type`.
    pub fn slug(&self) -> &str {
        self.kind.rsplit(':').next().unwrap_or_default()
    }

    pub fn ending(&self) -> Ending {
        let mut text = self.line(self.field.as_deref());
        if let Some(task) = &self.task {
            text = format!("{text}\n{}", task.lines());
        }
        Ending::new(self.exit(), text)
    }

    /// What is wrong with `field`, in one line.
    pub fn line(&self, field: Option<&str>) -> String {
        let field = field.map(|field| format!(" ({field})")).unwrap_or_default();
        let title = if self.title.is_empty() { "The node answered otherwise" } else { &self.title };
        format!("{title}{field}: {}", self.detail)
    }
}

/// The answer to a cancel.
#[derive(Deserialize, Debug)]
pub struct Cancelled {
    pub verdict: String,
    pub task: Option<Task>,
}
