//! The answers of a node, and the exit codes of commands.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::task::{Task, one_line, printable};

/// Exit codes; `--help` lists them. Their meaning never changes.
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

    /// Returns the exit code as a word, for scripts that parse the error instead.
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

/// The end of a command that did not get its result.
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

    /// Prints the error to stderr: as text, or as one JSON object.
    pub fn report(self, is_json: bool) -> ExitCode {
        // A failed write is ignored: stderr is closed, and the exit code must do.
        if is_json {
            let kind = format!("urn:punctual:client:{}", self.exit.word());
            let error = json!({ "type": kind, "detail": self.text, "exit_code": self.exit.code() });
            writeln!(io::stderr(), "{error}").ok();
        } else {
            // Parts of it may be foreign: of a node, a proxy or a file.
            writeln!(io::stderr(), "{}", printable(&self.text)).ok();
        }
        self.exit.into()
    }
}

/// The kind of operation. Selects the advice to the user when the outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// Changes nothing.
    Read,
    Submit {
        is_named: bool,
    },
    /// Stores a task under a name, whether or not the name stood for a task.
    Replace,
    Cancel,
    /// Gives a task another due time.
    Move,
    /// Answers for a tracked task as its consumer.
    Answer,
    /// Removes one dead letter. A repetition finds none.
    TakeAway,
    /// Acts on all tasks that are left.
    Bulk,
    /// Changes a schedule or a topic. A repetition changes nothing.
    Schedule,
}

impl Deed {
    /// Completes the error of a command: adds advice on the next step when the outcome is unknown.
    pub fn end(self, ending: Ending) -> Ending {
        if ending.exit != Exit::Unknown {
            return ending;
        }
        let advice = match self {
            // A failed read has changed no data, whatever the reason.
            Self::Read => return Ending { exit: Exit::NothingDone, ..ending },
            Self::Submit { is_named: true } => {
                "the task may be stored, or not; repeat the command: the same name makes no second \
                 task"
            }
            Self::Submit { is_named: false } => {
                "the task may be stored, or not; repeating the command may publish the task twice, \
                 but with --name repeating is safe"
            }
            Self::Replace => {
                "the task may be replaced, or not; before repeating the command, look with \
                 `punctual show --topic .. --name ..`: if the task was published, repeating \
                 schedules another one"
            }
            Self::Cancel => {
                "the task may be cancelled, or not; repeat the command: repeating is safe"
            }
            Self::Move => {
                "the task may be moved, or not; repeat the command: repeating is safe, and --delay \
                 counts from the repetition"
            }
            Self::Answer => {
                "the call may have taken effect, or not; repeat the command: repeating is safe"
            }
            Self::TakeAway => {
                "it may have been done, or not; repeat the command: repeating is safe, and `not \
                 found` then means that it was done"
            }
            Self::Bulk | Self::Schedule => "repeat the command: repeating is safe",
        };
        Ending { text: format!("{}\n{advice}", ending.text), ..ending }
    }

    /// Returns the error for a command that succeeded but could not write the answer to stdout.
    pub fn unwritten(self, error: &io::Error) -> Ending {
        match self {
            Self::Read => {
                Ending::new(Exit::NothingDone, format!("cannot write the answer: {error}"))
            }
            // A script that did not get the answer cannot tell whether the operation took effect.
            Self::Submit { .. }
            | Self::Replace
            | Self::Cancel
            | Self::Move
            | Self::Answer
            | Self::TakeAway
            | Self::Bulk
            | Self::Schedule => Ending::new(
                Exit::Unknown,
                format!("it was done; only writing the answer failed: {error}"),
            ),
        }
    }
}

/// An answer of a node.
#[derive(Debug)]
pub struct NodeAnswer {
    pub status: u16,
    /// How long the node asks the client to wait.
    pub retry_after: Option<Duration>,
    /// True when a token was sent.
    pub has_token: bool,
    /// The body: JSON.
    pub text: String,
}

impl NodeAnswer {
    /// Returns the problem, or `None` for a success.
    pub fn problem(&self) -> Option<NodeProblem> {
        if (200..300).contains(&self.status) {
            return None;
        }
        let read: Option<NodeProblem> = serde_json::from_str(&self.text).ok();
        let says_something = |problem: &NodeProblem| {
            problem.slug().is_some() || !problem.title.is_empty() || !problem.detail.is_empty()
        };
        let problem = read.filter(says_something).unwrap_or_else(|| NodeProblem {
            // The answer comes from a proxy, or from another server than a node.
            detail: format!(
                "status {} without a problem in JSON; is this the URL of a node?",
                self.status
            ),
            ..NodeProblem::default()
        });
        Some(NodeProblem { status: self.status, has_token: self.has_token, ..problem })
    }

    /// Parses the body of the answer.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Ending> {
        serde_json::from_str(&self.text).map_err(|error| {
            let text = format!(
                "the answer (status {}) is not that of a node: {error}; is this the URL of a node?",
                self.status
            );
            Ending::new(Exit::Unknown, text)
        })
    }
}

/// A problem of RFC 9457, with the members that a client needs. Unknown members are ignored,
/// because later versions may add some.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub struct NodeProblem {
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_deserializing)]
    pub status: u16,
    /// True when a token was sent.
    #[serde(skip_deserializing)]
    has_token: bool,
    pub title: String,
    pub detail: String,
    pub field: Option<String>,
    /// In seconds.
    pub retry_after: Option<u64>,
    verdict: Option<String>,
    task: Option<Task>,
}

/// The problems of something that is not there.
const NOT_FOUND: [&str; 4] =
    ["task-not-found", "schedule-not-found", "topic-not-found", "callback-not-found"];

impl NodeProblem {
    pub fn exit(&self) -> Exit {
        match (self.status, self.slug()) {
            (409, _) if self.is_too_late() => Exit::TooLate,
            (404, Some(slug)) if NOT_FOUND.contains(&slug) => Exit::NotFound,
            // Only a node's own problem types count. A proxy also answers 503 when its connection
            // to the node broke after the request was sent.
            (503, Some("busy" | "draining" | "unavailable" | "not-ready")) | (408 | 429, _) => {
                Exit::NothingDone
            }
            // Proxies use codes from 520 on for an upstream that did not answer.
            (500 | 502..=504 | 520..=599, _) => Exit::Unknown,
            _ => Exit::Refused,
        }
    }

    /// Returns true when the task is past the state that the call needs.
    fn is_too_late(&self) -> bool {
        const TOO_LATE: [&str; 6] = [
            "too_late",
            "attempt_superseded",
            "already_failed",
            "already_finished",
            "dead",
            "cancelled",
        ];
        self.verdict.as_deref().is_some_and(|verdict| TOO_LATE.contains(&verdict))
    }

    /// Returns the last part of the `type`, or `None` if the problem is not a node's.
    pub fn slug(&self) -> Option<&str> {
        self.kind.strip_prefix("urn:punctual:problem:")
    }

    pub fn ending(&self) -> Ending {
        let mut text = self.line(self.field.as_deref());
        if let Some(task) = &self.task {
            text = format!("{text}\n{}", task.lines());
        }
        if self.status == 401 {
            let hint = if self.has_token {
                "the token that was given is not valid (PUNCTUAL_TOKEN, --token-file)"
            } else {
                "give the token by PUNCTUAL_TOKEN or --token-file"
            };
            text = format!("{text}\n{hint}");
        }
        Ending::new(self.exit(), text)
    }

    /// Describes the problem with `field` in one line.
    pub fn line(&self, field: Option<&str>) -> String {
        let field = field.map(|field| format!(" ({field})")).unwrap_or_default();
        let title =
            if self.title.is_empty() { "The node gave an unexpected answer" } else { &self.title };
        // The answer may be of anybody: it must neither steer the terminal nor begin a line.
        one_line(&format!("{title}{field}: {}", self.detail))
    }
}

/// The answer to a consumer's call.
#[derive(Deserialize, Debug)]
pub struct Heeded {
    pub verdict: String,
    #[serde(default)]
    pub in_flight: bool,
    #[serde(default)]
    pub superseded: bool,
    pub task: Task,
}

/// The answer to a cancel or a move.
#[derive(Deserialize, Debug)]
pub struct Cancelled {
    pub verdict: String,
    pub task: Task,
}
