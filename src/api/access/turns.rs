//! The lines of the audit trail about a turn at an outbox or an intake topic: one for each action
//! that changed tasks, and one for the rights that were missing.

use std::collections::BTreeMap;

use super::audit::Audit;
use super::trail::Trail;
use crate::access::{Action, Caller};
use crate::audit::{NoPlace, Place};
use crate::domain::{TaskId, TopicName};

/// Stands for the line about missing rights among the actions.
const DENIED: &str = "denied";
/// The most lines of a turn: submit, replace, cancel, finish, and one about missing rights.
const LINES_MAX: usize = 5;

/// The notes of a turn. Without an audit trail, nothing is noted.
#[derive(Debug, Default)]
pub struct AuditedTurn(Option<Notebook>);

#[derive(Debug)]
struct Notebook {
    audit: Audit,
    /// `outbox` or `intakeTopic`.
    operation: &'static str,
    /// The name of the outbox or of the intake topic.
    source: String,
    caller: Caller,
    /// The places of the lines, from before anything is done.
    places: Vec<Place>,
    trails: BTreeMap<&'static str, Trail>,
}

impl AuditedTurn {
    /// Takes the places of the lines of a turn.
    ///
    /// # Errors
    /// When no line can be written: then nothing may be done.
    pub fn begin(
        audit: Option<&Audit>,
        (operation, source): (&'static str, &str),
        caller: &Caller,
    ) -> Result<Self, NoPlace> {
        let Some(audit) = audit else { return Ok(Self(None)) };
        let places = (0..LINES_MAX).map(|_| audit.stream.reserve());
        Ok(Self(Some(Notebook {
            audit: audit.clone(),
            operation,
            source: source.to_owned(),
            caller: caller.clone(),
            places: places.collect::<Result<Vec<Place>, NoPlace>>()?,
            trails: BTreeMap::new(),
        })))
    }

    /// Notes a changed task. The id of a cancelled one may be unknown.
    pub fn changed(&mut self, action: &'static str, topic: &TopicName, id: Option<TaskId>) {
        self.note(action, |trail| match id {
            Some(id) => trail.changed(topic, id),
            None => trail.changed_many(topic, 1),
        });
    }

    /// Notes tasks that were perhaps changed.
    pub fn perhaps_changed(&mut self, action: &'static str, count: usize) {
        self.note(action, |trail| (0..count).for_each(|_| trail.perhaps_changed()));
    }

    /// Notes a refused row or record.
    pub fn denied(&mut self, action: Action, topic: &TopicName) {
        self.note(DENIED, |trail| trail.denies(action, Some(topic)));
    }

    fn note(&mut self, action: &'static str, note: impl FnOnce(&Trail)) {
        let Some(Notebook { trails, caller, .. }) = &mut self.0 else { return };
        let trail = trails.entry(action).or_insert_with(|| {
            let trail = Trail::new();
            trail.identify(caller);
            trail
        });
        note(trail);
    }

    /// Writes the lines.
    pub async fn end(self) {
        let Some(notebook) = self.0 else { return };
        let Notebook { audit, operation, source, places, trails, .. } = notebook;
        for ((action, trail), place) in trails.into_iter().zip(places) {
            let notes = trail.notes();
            let action = notes.missing.map_or(action, Action::name);
            place.write(audit.line_of_turn((operation, &source), action, &notes)).await;
        }
    }
}
