//! The traffic of moves: tasks by their ids, alone and a few together, and PUTs with conditions.

use std::sync::Arc;

use rand::Rng as _;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{AFTER_END_MS, Client, FAR_MS, Ledger, due_of};
use crate::caller::{Answer, Caller, Refusal, Reply};
use crate::history::{Move, MoveVerdict, Outcome, When};
use crate::support::{now_ms, wait};

/// Moves a tenth of the rate.
const SHARE: i64 = 10;
/// The most tasks of one request.
const TOGETHER_MAX: usize = 4;
/// One of so many accepted tasks is for the movers.
const OFFERED_ONE_OF: u32 = 7;
const MOVABLE_MAX: usize = 200;
/// How often a move is repeated while it has no answer.
const TRIES_MAX: usize = 3;
/// A task is moved again after up to this long.
const AGAIN_MS: i64 = 1500;

impl Client {
    /// Moves tasks, and many of them twice or three times.
    pub(super) async fn move_tasks(mut self) {
        let mut next = now_ms();
        while !self.is_over() {
            self.pace(&mut next, SHARE, 1).await;
            let together = match self.chance.random_range(0..10) {
                0..8 => 1,
                _ => self.chance.random_range(2..=TOGETHER_MAX),
            };
            let (ids, topic) = self.ledger.take_movable(together);
            if ids.is_empty() {
                continue;
            }
            let times = self.chance.random_range(1..=3);
            let places: Vec<(i64, i64)> =
                (0..times).map(|_| (self.chance.random_range(0..AGAIN_MS), self.ahead())).collect();
            let mover = Mover {
                caller: self.caller.clone(),
                ledger: Arc::clone(&self.ledger),
                topic: self.load.topics[topic].clone(),
                ids,
            };
            let (load, until) = (self.load.clone(), self.load.until);
            tokio::spawn(async move {
                for (pause, ahead) in places {
                    wait::until(now_ms() + pause).await;
                    if load.is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    let now = now_ms();
                    let latest = (until.max(now) + AFTER_END_MS - now).max(0);
                    let ahead = if ahead >= FAR_MS.start { ahead } else { ahead.min(latest) };
                    mover.insist(now + ahead + load.clock.offset_ms()).await;
                }
            });
        }
    }

    /// Draws how far from now a task is to be due.
    fn ahead(&mut self) -> i64 {
        match self.chance.random_range(0..100) {
            0..20 => self.chance.random_range(-300..300),
            20..75 => self.chance.random_range(300..4000),
            75..97 => self.chance.random_range(4000..12_000),
            _ => self.chance.random_range(FAR_MS),
        }
    }

    /// Draws the condition of a PUT, and its query.
    pub(super) fn condition(&mut self) -> (Option<When>, &'static str) {
        if !self.load.is_varied {
            return (None, "");
        }
        match self.chance.random_range(0..10) {
            0 => (Some(When::Absent), "?when=absent"),
            1..3 => (Some(When::Earlier), "?when=earlier"),
            3..5 => (Some(When::Later), "?when=later"),
            _ => (None, ""),
        }
    }
}

/// Tasks of one topic that are moved together.
struct Mover {
    caller: Caller,
    ledger: Arc<Ledger>,
    topic: String,
    ids: Vec<Uuid>,
}

impl Mover {
    /// Moves the tasks, and repeats the request while it has no answer.
    async fn insist(&self, due_at: i64) {
        for _ in 0..TRIES_MAX {
            let Some(seat) = self.caller.seat() else { return };
            let (method, path, body) = match self.ids.as_slice() {
                [id] => (Method::PATCH, format!("/v1/tasks/{id}"), json!({ "due_at": due_at })),
                ids => {
                    let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
                    let body = json!({ "topic": self.topic, "ids": ids, "to": due_at });
                    (Method::POST, "/v1/tasks/move".to_owned(), body)
                }
            };
            let reply = self.caller.send(&seat, method, &path, Some(&body)).await;
            let verdict = match self.ids.len() {
                1 => self.ledger.verdict_on_move(&reply),
                count => self.ledger.verdict_on_moves(&reply, (count, due_at)),
            };
            let moves = self.ids.iter().map(|id| Move {
                node: seat.node,
                sent_at: reply.sent_at,
                answered_at: reply.answered_at,
                id: *id,
                due_at,
                verdict: verdict.clone(),
            });
            self.ledger.moves.lock().unwrap().extend(moves);
            if !matches!(verdict, MoveVerdict::Unknown { .. }) {
                return;
            }
        }
    }
}

impl Ledger {
    /// Leaves some of the accepted tasks to the movers.
    pub(super) fn offer_to_movers(&self, id: Uuid, topic: usize) {
        let mut movable = self.movable.lock().unwrap();
        if movable.len() < MOVABLE_MAX && rand::random_ratio(1, OFFERED_ONE_OF) {
            movable.push((id, topic));
        }
    }

    /// Returns up to `count` tasks of a topic.
    fn take_movable(&self, count: usize) -> (Vec<Uuid>, usize) {
        let mut movable = self.movable.lock().unwrap();
        let Some((_, topic)) = movable.last().copied() else { return (Vec::new(), 0) };
        let mut ids = Vec::new();
        while ids.len() < count
            && let Some(at) = movable.iter().rposition(|(_, of)| *of == topic)
        {
            ids.push(movable.swap_remove(at).0);
        }
        (ids, topic)
    }

    fn verdict_on_move(&self, reply: &Reply) -> MoveVerdict {
        let Answer::Said { status, has_retry_after, body } = &reply.answer else {
            return unanswered(&reply.answer);
        };
        match (status, body["verdict"].as_str(), due_of(&body["task"], "due_at")) {
            (200, Some("moved"), Some(due_at)) => MoveVerdict::Moved { due_at },
            (409, Some("too_late"), _) => MoveVerdict::TooLate,
            (404, Some("not_found"), _) => MoveVerdict::NotFound,
            _ => self.no_verdict(*status, *has_retry_after, body),
        }
    }

    /// Returns the verdict on each of `count` tasks, which the answer only counts.
    fn verdict_on_moves(&self, reply: &Reply, (count, due_at): (usize, i64)) -> MoveVerdict {
        let Answer::Said { status, has_retry_after, body } = &reply.answer else {
            return unanswered(&reply.answer);
        };
        let moved = body["moved"].as_u64().and_then(|moved| usize::try_from(moved).ok());
        match (status, moved) {
            (200, Some(0)) if body["more"] == false => MoveVerdict::TooLate,
            (200, Some(moved)) if moved == count => MoveVerdict::Moved { due_at },
            (200, Some(moved)) if moved < count => {
                MoveVerdict::Unknown { why: format!("{moved} of {count} were moved") }
            }
            _ => self.no_verdict(*status, *has_retry_after, body),
        }
    }

    fn no_verdict(&self, status: u16, has_retry_after: bool, body: &Value) -> MoveVerdict {
        // A task that would expire is not moved.
        let refusal = Refusal::of(status, body, has_retry_after, &["expires-too-early"]);
        match self.refused(refusal) {
            Outcome::Refused { why } => MoveVerdict::Refused { why },
            other => MoveVerdict::Unknown { why: format!("{other:?}") },
        }
    }
}

fn unanswered(answer: &Answer) -> MoveVerdict {
    match answer {
        Answer::Lost(why) => MoveVerdict::Unknown { why: why.clone() },
        _ => MoveVerdict::Refused { why: "connect".to_owned() },
    }
}
