//! What a node answered, and how a command ends.

use std::io::{self, Write as _};
use std::process::ExitCode;

use serde::Deserialize;
use serde::de::DeserializeOwned;

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
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Refused => 1,
            Exit::Usage => 2,
            Exit::NothingDone => 3,
            Exit::NotFound => 4,
            Exit::TooLate => 5,
            Exit::Unknown => 6,
        })
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

    /// Says it on stderr.
    pub fn report(self) -> ExitCode {
        // Where stderr is closed, the exit code must do.
        writeln!(io::stderr(), "{}", self.text).ok();
        self.exit.into()
    }
}

/// An answer of a node.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
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
    #[serde(skip)]
    status: u16,
    title: String,
    detail: String,
    field: Option<String>,
    verdict: Option<String>,
    task: Option<Task>,
}

impl Problem {
    pub fn exit(&self) -> Exit {
        let kind = self.kind.rsplit(':').next().unwrap_or_default();
        match (self.status, kind) {
            (409, _) if self.verdict.as_deref() == Some("too_late") => Exit::TooLate,
            (404, "task-not-found") => Exit::NotFound,
            (503, "outcome-unknown") | (500 | 502 | 504, _) => Exit::Unknown,
            (408 | 429 | 503, _) => Exit::NothingDone,
            _ => Exit::Refused,
        }
    }

    pub fn ending(&self) -> Ending {
        let field = self.field.as_deref().map(|field| format!(" ({field})")).unwrap_or_default();
        let title = if self.title.is_empty() { "The node answered otherwise" } else { &self.title };
        let mut text = format!("{title}{field}: {}", self.detail);
        if let Some(task) = &self.task {
            text = format!("{text}\n{}", task.lines());
        }
        Ending::new(self.exit(), text)
    }
}

/// The answer to a cancel.
#[derive(Deserialize, Debug)]
pub struct Cancelled {
    pub verdict: String,
    pub task: Option<Task>,
}
