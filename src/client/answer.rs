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

/// What a command does, as far as it decides what there is to say when the outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// Changes nothing.
    Look,
    Submit {
        is_named: bool,
    },
    /// Puts a task under a name, whatever that stood for.
    Replace,
    Cancel,
    /// Takes one dead letter away: the second time there is none.
    TakeAway,
    /// Acts on all that are left.
    Bulk,
}

impl Deed {
    /// How a command that does this ends; where nobody knows whether it was done, with what to do
    /// next.
    pub fn end(self, ending: Ending) -> Ending {
        if ending.exit != Exit::Unknown {
            return ending;
        }
        let advice = match self {
            // A look that failed has done nothing, whatever became of it.
            Self::Look => return Ending { exit: Exit::NothingDone, ..ending },
            Self::Submit { is_named: true } => {
                "the task may be stored, or not; repeat the command: the same name makes no second task"
            }
            Self::Submit { is_named: false } => {
                "the task may be stored, or not, and repeating the command may publish it twice; with --name it could be repeated safely"
            }
            Self::Replace => {
                "the task may be replaced, or not; look with `punctual show --topic .. --name ..` before repeating the command: once the task was published, it would schedule another one"
            }
            Self::Cancel => "the cancel may have taken effect, or not; repeat the command, it is safe",
            Self::TakeAway => {
                "it may have been done, or not; repeat the command, it is safe: not found then means that it was done"
            }
            Self::Bulk => "repeat the command, it is safe",
        };
        Ending { text: format!("{}\n{advice}", ending.text), ..ending }
    }

    /// How it ends when all went well but for the answer, which has no place on stdout.
    pub fn unwritten(self, error: &io::Error) -> Ending {
        match self {
            Self::Look => Ending::new(Exit::NothingDone, format!("write the answer: {error}")),
            // Neither done nor refused, as far as a script can tell by what it got.
            Self::Submit { .. } | Self::Replace | Self::Cancel | Self::TakeAway | Self::Bulk => {
                Ending::new(Exit::Unknown, format!("it was done; only the answer could not be written: {error}"))
            }
        }
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
        let read: Option<Problem> = serde_json::from_str(&self.text).ok();
        let says_something =
            |problem: &Problem| problem.slug().is_some() || !problem.title.is_empty() || !problem.detail.is_empty();
        let problem = read.filter(says_something).unwrap_or_else(|| Problem {
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
        match (self.status, self.slug()) {
            (409, _) if self.verdict.as_deref() == Some("too_late") => Exit::TooLate,
            (404, Some("task-not-found")) => Exit::NotFound,
            // Only a node's own word counts: a proxy answers 503, too, when the connection to the
            // node broke after the request was sent.
            (503, Some("busy" | "draining" | "unavailable" | "not-ready")) | (408 | 429, _) => Exit::NothingDone,
            // From 520 on they are the proxies' own words for an upstream that did not answer.
            (500 | 502..=504 | 520..=599, _) => Exit::Unknown,
            _ => Exit::Refused,
        }
    }

    /// The last part of the `type`; `None` of what is no node's.
    pub fn slug(&self) -> Option<&str> {
        self.kind.strip_prefix("urn:punctual:problem:")
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
    pub task: Task,
}
