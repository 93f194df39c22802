//! The headers of a record of an intake topic: those of Punctual, those of other schedulers, and
//! those of the task.

use crate::api::handlers::feedback::call::FIELDS;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::domain::task::headers::RESERVED_PREFIX;
use crate::domain::task::intake_record::IntakeRecord;

pub(super) const TOPIC: &str = "punctual-topic";
pub(super) const DUE_AT: &str = "punctual-due-at";
pub(super) const DELAY: &str = "punctual-delay";
pub(super) const NAME: &str = "punctual-name";
pub(super) const OPERATION: &str = "punctual-op";
pub(super) const TTR: &str = "punctual-ttr";
pub(super) const RETRY: &str = "punctual-retry";
pub(super) const EXPIRES_AT: &str = "punctual-expires-at";
pub(super) const ID: &str = "punctual-id";
/// The headers of the members of an answer, in the order of [`FIELDS`].
pub(super) const ANSWERS: [&str; FIELDS.len()] = [
    "punctual-attempt",
    "punctual-retry-in",
    "punctual-retry-at",
    "punctual-final",
    "punctual-reason",
    "punctual-by",
];
/// The headers that Punctual gives a rejected record. A second reading ignores these headers.
const REJECTED_PREFIX: &str = "punctual-rejected-";

pub(super) const TARGET_TOPIC: &str = "scheduler-target-topic";
pub(super) const EPOCH: &str = "scheduler-epoch";
pub(super) const TARGET_KEY: &str = "scheduler-target-key";

/// The headers of a record: what to do, and the headers of the task.
#[derive(Default)]
pub(super) struct Given<'a> {
    pub topic: Option<&'a str>,
    pub due_at: Option<&'a str>,
    pub delay: Option<&'a str>,
    pub name: Option<&'a str>,
    pub operation: Option<&'a str>,
    pub ttr: Option<&'a str>,
    pub retry: Option<&'a str>,
    pub expires_at: Option<&'a str>,
    pub id: Option<&'a str>,
    pub answer: [Option<&'a str>; ANSWERS.len()],
    pub target_topic: Option<&'a str>,
    pub epoch: Option<&'a str>,
    pub target_key: Option<&'a [u8]>,
    pub own: Vec<(&'a str, Option<&'a [u8]>)>,
}

impl<'a> Given<'a> {
    pub fn of(record: &'a IntakeRecord) -> Result<Self, Problem> {
        let Some(headers) = &record.headers else {
            return Err(Problem::invalid("headers", "the name of a header is not UTF-8"));
        };
        let mut given = Self::default();
        for (name, value) in headers {
            given.take(name, value.as_deref())?;
        }
        let is_foreign = given.target_topic.is_some() || given.epoch.is_some();
        let own = [(TOPIC, given.topic), (NAME, given.name), (OPERATION, given.operation)];
        match first_given(own).or_else(|| given.first_of_tasks()) {
            Some(name) if is_foreign => {
                let detail = "the record has the headers of another scheduler, too; give the \
                              headers of one of them";
                Err(Problem::new(ProblemType::ConflictingFields, detail).at(name))
            }
            _ => Ok(given),
        }
    }

    /// Returns the first header that only a new task may have.
    pub fn first_of_tasks(&self) -> Option<&'static str> {
        first_given([
            (DUE_AT, self.due_at),
            (DELAY, self.delay),
            (TTR, self.ttr),
            (RETRY, self.retry),
            (EXPIRES_AT, self.expires_at),
        ])
    }

    fn take(&mut self, name: &'a str, value: Option<&'a [u8]>) -> Result<(), Problem> {
        match name {
            TOPIC => set(&mut self.topic, TOPIC, value),
            DUE_AT => set(&mut self.due_at, DUE_AT, value),
            DELAY => set(&mut self.delay, DELAY, value),
            NAME => set(&mut self.name, NAME, value),
            OPERATION => set(&mut self.operation, OPERATION, value),
            TTR => set(&mut self.ttr, TTR, value),
            RETRY => set(&mut self.retry, RETRY, value),
            EXPIRES_AT => set(&mut self.expires_at, EXPIRES_AT, value),
            ID => set(&mut self.id, ID, value),
            TARGET_TOPIC => set(&mut self.target_topic, TARGET_TOPIC, value),
            EPOCH => set(&mut self.epoch, EPOCH, value),
            TARGET_KEY => {
                self.target_key = value;
                Ok(())
            }
            _ if name.starts_with(REJECTED_PREFIX) => Ok(()),
            _ if is_reserved(name) => match ANSWERS.iter().position(|known| *known == name) {
                Some(place) => set(&mut self.answer[place], ANSWERS[place], value),
                None => Err(unknown_header(name)),
            },
            _ => {
                self.own.push((name, value));
                Ok(())
            }
        }
    }
}

/// Returns the first of these headers that the record has.
pub(super) fn first_given<'a>(
    headers: impl IntoIterator<Item = (&'static str, Option<&'a str>)>,
) -> Option<&'static str> {
    headers.into_iter().find(|(_name, value)| value.is_some()).map(|(name, _value)| name)
}

pub(super) fn unknown_header(name: &str) -> Problem {
    let detail = format!(
        "a submit, a replacement or a cancel knows {TOPIC}, {DUE_AT}, {DELAY}, {NAME}, \
         {OPERATION}, {TTR}, {RETRY} and {EXPIRES_AT}; an answer of a consumer knows {OPERATION}, \
         {ID}, {TOPIC}, {NAME}, {}",
        ANSWERS.join(", ")
    );
    Problem::invalid(name.to_owned(), detail)
}

fn is_reserved(name: &str) -> bool {
    let prefix = name.as_bytes().get(..RESERVED_PREFIX.len());
    prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(RESERVED_PREFIX.as_bytes()))
}

fn set<'a>(
    place: &mut Option<&'a str>,
    name: &'static str,
    value: Option<&'a [u8]>,
) -> Result<(), Problem> {
    let text = value.and_then(|value| std::str::from_utf8(value).ok());
    let Some(text) = text else {
        return Err(Problem::invalid(name, "the value of this header must be text in UTF-8"));
    };
    match place.replace(text) {
        None => Ok(()),
        Some(_first) => {
            let detail = "the header is given twice";
            Err(Problem::new(ProblemType::DuplicateField, detail).at(name))
        }
    }
}
