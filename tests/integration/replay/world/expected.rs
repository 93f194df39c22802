//! The contents of the tables as the model expects them, as lines of text.

use punctual::domain::{Outcome, TaskId};

use super::super::protocol::Protocol;
use super::super::protocol::state::{
    ATTEMPTS, Database as Tables, Heart, NOBODY, Progress, TASKS, each, row_of, task_of,
};
use super::World;

impl World {
    /// Returns the expected contents of the tables.
    pub fn expected(&self, protocol: &Protocol, db: &Tables) -> Vec<String> {
        let mut lines = Vec::new();
        let id = |row: usize| self.id(protocol, row, db.due[row]);
        let first = |task: usize| id(row_of(task, 0));
        for (place, rows) in [("far", db.far), ("near", db.near)] {
            lines.extend(each(rows).map(|row| {
                let first = if row % ATTEMPTS == 0 {
                    "-".to_owned()
                } else {
                    first(task_of(row)).uuid().to_string()
                };
                format!("{place} {} {first}", id(row).uuid())
            }));
        }
        for (number, batch) in db.batches.iter().enumerate().filter(|(_, batch)| batch.rows != 0) {
            let mut tasks: Vec<(TaskId, i16)> = each(batch.rows)
                .map(|row| {
                    (id(row), if batch.is_settled { code(batch.outcomes[task_of(row)]) } else { 0 })
                })
                .collect();
            tasks.sort_unstable();
            let tasks: Vec<String> =
                tasks.iter().map(|(id, outcome)| format!("{}:{outcome}", id.uuid())).collect();
            let owner = if batch.owner == NOBODY {
                "-".to_owned()
            } else {
                self.node(batch.owner).uuid().to_string()
            };
            lines.push(format!(
                "batch {} {owner} {} {}",
                self.batch_id(number).uuid(),
                batch.is_settled,
                tasks.join(",")
            ));
            lines.push(format!("payload {} {}", self.batch_id(number).uuid(), tasks.len()));
        }
        for task in 0..TASKS {
            let successor = match db.replaced_by[task] {
                0 => "-".to_owned(),
                successor => first(usize::from(successor)).uuid().to_string(),
            };
            lines.extend(
                (0..db.cancelled[task])
                    .map(|_| format!("cancelled {} {successor}", first(task).uuid())),
            );
            lines.extend(
                (db.dead_letters >> task & 1 == 1).then(|| format!("dead {}", first(task).uuid())),
            );
            lines.extend(db.follow[task].map(|follow| {
                format!(
                    "follow {} {} {}",
                    first(task).uuid(),
                    id(usize::from(follow.row)).uuid(),
                    follow.maybe_sent
                )
            }));
        }
        lines.extend(db.entry.map(|row| {
            format!(
                "name {} {}",
                first(task_of(usize::from(row))).uuid(),
                id(usize::from(row)).uuid()
            )
        }));
        for (identity, heart) in
            db.hearts.iter().enumerate().filter(|(_, heart)| **heart != Heart::None)
        {
            let heart = if *heart == Heart::Dead { "dead" } else { "alive" };
            lines.push(format!("heart {} {heart}", self.identities[identity].node.uuid()));
        }
        lines.sort_unstable();
        lines
    }
}

fn code(outcome: Progress) -> i16 {
    match outcome {
        Progress::Published => Outcome::PUBLISHED,
        Progress::Deferred { .. } => Outcome::DEFERRED,
        Progress::Expired => Outcome::EXPIRED,
        _ => Outcome::DEAD,
    }
}
