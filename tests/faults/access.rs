//! Authentication in a run: the token of the traffic, callers whose requests must be denied, and
//! the auth file, which an operation rewrites.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::caller::{Answer, Caller, Refusal, Reply, Seat};
use super::history::{Cancel, Outcome, STEADY, Span, Submit, Target, Verdict};
use super::oracle::{Rule, Violation};
use super::plan::{Kind, Operation, Plan, STEPS_MAX};
use super::traffic::{Ledger, Load, due_of, id_of};
use crate::support::node::program;
use crate::support::{now_ms, wait};

/// A node reads its auth file once a second. A loaded machine takes its time.
const RELOAD_MS: i64 = 5000;
/// How long half a file is there before a whole one.
const HALF_FILE_MS: i64 = 1200;
/// The text before the hash of a token.
const HASH: &str = "sha256 = \"";
/// The pauses between two requests of a caller.
const DENIED_EVERY_MS: i64 = 60;
const SUBMITTED_EVERY_MS: i64 = 100;

/// Time of the first rewrite of the auth file, the interval of rewrites, and the time that one
/// lasts, in milliseconds.
const FROM_MS: u64 = 3000;
const EVERY_MS: usize = 13_000;
const LASTS_MS: u64 = 8000;

/// Adds operations on the auth file, beside the others: it is a resource of its own.
pub fn add_to(plan: &mut Plan) {
    let end = (plan.seconds * 1000).saturating_sub(LASTS_MS).max(FROM_MS);
    let rewritten = (FROM_MS..=end).step_by(EVERY_MS).map(|at| {
        let kind = Kind::AuthRewritten;
        Operation { at, kind, node: 0, lasts: LASTS_MS, by: 0, steps: [0; STEPS_MAX] }
    });
    plan.operations.extend(rewritten);
    plan.operations.sort_by_key(|operation| operation.at);
}

impl Plan {
    /// Returns true when the auth file is rewritten.
    pub fn has_access(&self) -> bool {
        self.operations.iter().any(|operation| operation.kind == Kind::AuthRewritten)
    }
}

/// A token, and the line of the auth file that knows it.
struct Token {
    text: String,
    line: String,
}

impl Token {
    async fn new(principal: &str) -> Self {
        let words = ["token", "new", "--principal", principal];
        let made = program(&words).output().await.expect("the program makes a token");
        let lines = String::from_utf8_lossy(&made.stderr).into_owned();
        let line = lines.lines().find(|line| line.contains(HASH)).expect("a line of a token");
        let text = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        Self { text, line: line.trim().to_owned() }
    }
}

/// The principals of a run.
pub struct Access {
    file: PathBuf,
    /// May do everything.
    owner: Token,
    /// May read everything, and do nothing.
    reader: Token,
    /// May do everything to the topics of others.
    stranger: Token,
    /// May submit, except while the auth file is rewritten. Never cancels.
    submitter: Token,
    /// In no file.
    unknown: Token,
    /// When the submitter certainly had no right by the auth file.
    revocations: Mutex<Vec<(i64, i64)>>,
    counts: Counts,
    wrong: Mutex<Vec<String>>,
}

#[derive(Default)]
struct Counts {
    denied: AtomicUsize,
    submitted: AtomicUsize,
    revoked: AtomicUsize,
}

/// A request that must be denied.
enum Attempt {
    Submit,
    BulkSubmit,
    Replace(Target),
    Cancel(Target),
    Move(Target),
}

impl Access {
    /// Makes tokens and an auth file in `folder`.
    pub async fn make(folder: &Path) -> Self {
        let access = Self {
            file: folder.join("auth.toml"),
            owner: Token::new("owner").await,
            reader: Token::new("reader").await,
            stranger: Token::new("stranger").await,
            submitter: Token::new("submitter").await,
            unknown: Token::new("unknown").await,
            revocations: Mutex::default(),
            counts: Counts::default(),
            wrong: Mutex::default(),
        };
        access.put_in_place(&access.text("submits"));
        access
    }

    pub fn arguments(&self) -> [String; 2] {
        ["--auth-file".to_owned(), self.file.to_string_lossy().into_owned()]
    }

    pub fn owner(&self) -> String {
        self.owner.text.clone()
    }

    fn text(&self, role_of_submitter: &str) -> String {
        let role = |name, actions, topics| {
            format!(
                "[roles.{name}]\nallow = [ {{ actions = {actions}, topics = [\"{topics}\"] }} ]\n"
            )
        };
        let principal = |name, role, token: &Token| {
            format!("[principals.{name}]\nroles = [\"{role}\"]\ntokens = [ {} ]\n", token.line)
        };
        [
            "version = 1\n".to_owned(),
            role("everything", "[\"*\", \"operate\", \"callback\"]", "*"),
            role("reads", "[\"read\", \"read-payload\"]", "*"),
            role("elsewhere", "[\"*\"]", "elsewhere.*"),
            role("submits", "[\"submit\"]", "*"),
            principal("owner", "everything", &self.owner),
            principal("reader", "reads", &self.reader),
            principal("stranger", "elsewhere", &self.stranger),
            principal("submitter", role_of_submitter, &self.submitter),
        ]
        .concat()
    }

    fn put_in_place(&self, text: &str) {
        let new = self.file.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
        let written =
            opened.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
        written.expect("write the auth file");
        std::fs::rename(&new, &self.file).expect("put the auth file in its place");
    }

    /// Writes half a file, then one that takes the right to submit away, and after `lasts`
    /// milliseconds the first one again.
    pub async fn rewrite(&self, lasts: i64) {
        let begin = now_ms();
        let whole = self.text("submits");
        // The end is in the middle of a string. Half a file may well be a file of its own.
        let cut = whole.rfind(HASH).expect("the file has tokens") + HASH.len() + 8;
        self.put_in_place(&whole[..cut]);
        wait::until(begin + HALF_FILE_MS).await;
        self.put_in_place(&self.text("reads"));
        let revoked_at = now_ms();
        wait::until(begin + lasts).await;
        self.revocations.lock().unwrap().push((revoked_at, now_ms()));
        self.put_in_place(&whole);
    }

    // --- callers ---

    /// Starts callers that must be denied, and one whose right comes and goes. They end with the
    /// traffic.
    pub fn start(
        self: &Arc<Self>,
        load: &Load,
        caller: &Caller,
        ledger: &Arc<Ledger>,
    ) -> Vec<JoinHandle<()>> {
        let denied = Arc::clone(self).be_denied(load.clone(), caller.clone(), Arc::clone(ledger));
        let submits = Arc::clone(self).submit(load.clone(), caller.clone(), Arc::clone(ledger));
        vec![tokio::spawn(denied), tokio::spawn(submits)]
    }

    async fn submit(self: Arc<Self>, load: Load, caller: Caller, ledger: Arc<Ledger>) {
        let caller = caller.with_token(&self.submitter.text);
        while !load.is_over.load(Ordering::Relaxed) {
            wait::until(now_ms() + SUBMITTED_EVERY_MS).await;
            let Some(seat) = caller.seat() else { continue };
            let (task, body) = task(&load, &ledger, STEADY, None);
            let reply = caller.send(&seat, Method::POST, "/v1/tasks", Some(&body)).await;
            let outcome = outcome(&ledger, &reply, &["forbidden"]);
            let counter = match &outcome {
                Outcome::Accepted { .. } => Some(&self.counts.submitted),
                Outcome::Refused { why } if why == "forbidden" => Some(&self.counts.revoked),
                _ => None,
            };
            if let Some(counter) = counter {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            note(&ledger, Submit { node: seat.node, ..task }, &reply, outcome);
        }
    }

    /// Stores a task with a name, and lets others attack it and its topic.
    async fn be_denied(self: Arc<Self>, load: Load, caller: Caller, ledger: Arc<Ledger>) {
        for count in 0.. {
            let name = format!("guarded-{count}");
            let (guarded, body) = task(&load, &ledger, STEADY, Some(&name));
            let Some(seat) = caller.seat() else {
                wait::until(now_ms() + DENIED_EVERY_MS).await;
                if load.is_over.load(Ordering::Relaxed) {
                    return;
                }
                continue;
            };
            let reply = caller.send(&seat, Method::POST, "/v1/tasks", Some(&body)).await;
            let outcome = outcome(&ledger, &reply, &[]);
            let id = match &outcome {
                Outcome::Accepted { id, .. } => Some(*id),
                _ => None,
            };
            note(&ledger, Submit { node: seat.node, ..guarded }, &reply, outcome);
            drop(seat);
            for _ in 0..5 {
                if load.is_over.load(Ordering::Relaxed) {
                    return;
                }
                wait::until(now_ms() + DENIED_EVERY_MS).await;
                let (token, attempt) = self.attempt(id, &name);
                self.attack(&load, &caller.with_token(token), &ledger, attempt).await;
            }
        }
    }

    fn attempt(&self, id: Option<Uuid>, name: &str) -> (&str, Attempt) {
        let mut chance = rand::rng();
        let by_name = || Target::Name(STEADY, name.to_owned());
        let target = id.filter(|_| chance.random()).map_or_else(by_name, Target::Id);
        let attempt = match chance.random_range(0..5) {
            0 => Attempt::Submit,
            1 => Attempt::BulkSubmit,
            2 => Attempt::Replace(by_name()),
            3 => Attempt::Cancel(target),
            _ => Attempt::Move(target),
        };
        let mut callers = vec![&self.reader, &self.stranger, &self.unknown];
        // A replacement, and a move, take more than the right to submit.
        if !matches!(attempt, Attempt::Submit | Attempt::BulkSubmit) {
            callers.push(&self.submitter);
        }
        (&callers.choose(&mut chance).expect("there are some").text, attempt)
    }

    async fn attack(&self, load: &Load, caller: &Caller, ledger: &Ledger, attempt: Attempt) {
        let Some(seat) = caller.seat() else { return };
        let path = |target: &Target| match target {
            Target::Id(id) => format!("/v1/tasks/{id}"),
            Target::Name(topic, name) => format!("/v1/topics/{}/tasks/{name}", load.topics[*topic]),
        };
        match attempt {
            Attempt::Submit => {
                let (task, body) = task(load, ledger, STEADY, None);
                let reply = caller.send(&seat, Method::POST, "/v1/tasks", Some(&body)).await;
                self.must_be_denied("a submit", &reply);
                note_refused(ledger, &seat, task, &reply);
            }
            Attempt::BulkSubmit => {
                let (tasks, bodies): (Vec<Submit>, Vec<Value>) =
                    (0..3).map(|_| task(load, ledger, STEADY, None)).unzip();
                let body = json!({ "tasks": bodies });
                let reply = caller.send(&seat, Method::POST, "/v1/tasks/batch", Some(&body)).await;
                self.each_must_be_denied(&reply);
                tasks.into_iter().for_each(|task| note_refused(ledger, &seat, task, &reply));
            }
            Attempt::Replace(target) => {
                let Target::Name(_, name) = &target else { return };
                let (task, mut body) = task(load, ledger, STEADY, Some(name));
                let fields = body.as_object_mut().expect("a task is an object");
                fields.remove("topic");
                fields.remove("name");
                let reply = caller.send(&seat, Method::PUT, &path(&target), Some(&body)).await;
                self.must_be_denied("a replacement", &reply);
                note_refused(ledger, &seat, Submit { is_put: true, ..task }, &reply);
            }
            Attempt::Cancel(target) => {
                let reply = caller.send(&seat, Method::DELETE, &path(&target), None).await;
                self.must_be_denied("a cancel", &reply);
                let verdict = Verdict::Refused { why: "denied".to_owned() };
                let (node, sent_at, answered_at) = (seat.node, reply.sent_at, reply.answered_at);
                let cancel = Cancel { node, sent_at, answered_at, target, verdict };
                ledger.cancels.lock().unwrap().push(cancel);
            }
            Attempt::Move(target) => {
                let body = json!({ "delay": "5m" });
                let reply = caller.send(&seat, Method::PATCH, &path(&target), Some(&body)).await;
                self.must_be_denied("a move", &reply);
            }
        }
    }

    fn must_be_denied(&self, what: &str, reply: &Reply) {
        let Answer::Said { status, has_retry_after, body } = &reply.answer else { return };
        let slugs = ["unauthenticated", "forbidden", "task-not-found", "denied-too-often"];
        match Refusal::of(*status, body, *has_retry_after, &slugs) {
            Refusal::Certain(why) => {
                let is_denied = slugs.contains(&why.as_str());
                self.counts.denied.fetch_add(usize::from(is_denied), Ordering::Relaxed);
            }
            Refusal::Unknown(what) | Refusal::Odd(what) if *status == 503 => drop(what),
            Refusal::Unknown(why) | Refusal::Odd(why) => {
                self.wrong.lock().unwrap().push(format!("{what} should be denied: {why}"));
            }
        }
    }

    /// A bulk submit is answered 200, with a problem for each task.
    fn each_must_be_denied(&self, reply: &Reply) {
        let Answer::Said { status: 200, body, .. } = &reply.answer else {
            return self.must_be_denied("a bulk submit", reply);
        };
        let results = body["results"].as_array();
        if results.is_none_or(|results| results.iter().any(|result| result["status"] != 403)) {
            self.wrong.lock().unwrap().push(format!("a bulk submit should be denied: {body}"));
        }
        self.counts.denied.fetch_add(1, Ordering::Relaxed);
    }

    // --- the judgement ---

    /// Returns what was allowed against the auth file. That a denied request had no effect is
    /// checked by the oracle: the history has it as refused.
    pub fn judge(&self, submits: &[Submit], spans: &[Span]) -> Vec<Violation> {
        let violation = |rule, what| Violation { rule, task: None, what };
        let mut found: Vec<Violation> = std::mem::take(&mut *self.wrong.lock().unwrap())
            .into_iter()
            .map(|what| violation(Rule::WrongAnswer, what))
            .collect();
        let is_of_submitter = |submit: &&Submit| {
            submit.name.is_none() && submit.key.as_deref() == Some(KEY_OF_SUBMITTER)
        };
        for (begin, end) in self.revocations.lock().unwrap().iter() {
            let was_frozen = |submit: &Submit| {
                spans.iter().any(|span| {
                    span.operation.kind == Kind::FreezeNode
                        && span.operation.node == submit.node
                        && span.end >= *begin
                        && span.begin <= submit.answered_at
                })
            };
            let late = submits.iter().filter(is_of_submitter).find(|submit| {
                submit.accepted().is_some()
                    && submit.sent_at >= begin + RELOAD_MS
                    && submit.answered_at < *end
                    && !was_frozen(submit)
            });
            found.extend(late.map(|submit| {
                let what = format!(
                    "node {} took a submit {} ms after its right was withdrawn: {submit:?}",
                    submit.node,
                    submit.sent_at - begin
                );
                violation(Rule::WrongAnswer, what)
            }));
        }
        let Counts { denied, submitted, revoked } = &self.counts;
        for (count, what) in [
            (denied, "no request was denied"),
            (submitted, "the caller whose right comes and goes never had it"),
            (revoked, "the caller whose right comes and goes always had it"),
        ] {
            if count.load(Ordering::Relaxed) == 0 {
                found.push(violation(Rule::Uncovered, what.to_owned()));
            }
        }
        found
    }

    /// Returns a line for the table of a round.
    pub fn figures(&self) -> String {
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        format!(
            "{} requests denied; {} submits with a right that comes and goes, and {} without it",
            count(&self.counts.denied),
            count(&self.counts.submitted),
            count(&self.counts.revoked)
        )
    }
}

/// The key of all tasks that the submitter has submitted.
const KEY_OF_SUBMITTER: &str = "submitter";

/// Returns a new task for a topic.
pub fn task(load: &Load, ledger: &Ledger, topic: usize, name: Option<&str>) -> (Submit, Value) {
    let mut chance = rand::rng();
    let now = now_ms();
    let due_at = now + chance.random_range(300..3000) + load.clock.offset_ms();
    let text = format!("{:016x}", chance.random::<u64>());
    let mut submit = Submit {
        serial: 0,
        node: 0,
        sent_at: now,
        answered_at: now,
        topic,
        name: name.map(str::to_owned),
        is_put: false,
        when: None,
        due_at,
        key: Some(KEY_OF_SUBMITTER.to_owned()),
        payload_hash: xxh3_64(text.as_bytes()),
        size: text.len(),
        expires_at: None,
        tracked: None,
        outcome: Outcome::Refused { why: "not sent".to_owned() },
    };
    let mut body = json!({
        "topic": load.topics[topic], "due_at": due_at, "payload_text": text,
        "key": KEY_OF_SUBMITTER
    });
    if let Some(name) = name {
        body["name"] = name.into();
    }
    ledger.number(&mut submit, &mut body);
    (submit, body)
}

/// Returns the answer to a submit. `allowed` are the refusals that it may get.
fn outcome(ledger: &Ledger, reply: &Reply, allowed: &[&str]) -> Outcome {
    match &reply.answer {
        Answer::Said { status: 201, body, .. } => {
            let (id, due_at) = id_of(body).zip(due_of(body, "due_at")).expect("a task");
            Outcome::Accepted { id, due_at, has_replaced: false }
        }
        Answer::Said { status, has_retry_after, body } => {
            ledger.refused(Refusal::of(*status, body, *has_retry_after, allowed))
        }
        Answer::NotSent => Outcome::Refused { why: "connect".to_owned() },
        Answer::Lost(why) => Outcome::Unknown { why: why.clone() },
    }
}

fn note_refused(ledger: &Ledger, seat: &Seat, submit: Submit, reply: &Reply) {
    let outcome = Outcome::Refused { why: "denied".to_owned() };
    note(ledger, Submit { node: seat.node, ..submit }, reply, outcome);
}

fn note(ledger: &Ledger, submit: Submit, reply: &Reply, outcome: Outcome) {
    let (sent_at, answered_at) = (reply.sent_at, reply.answered_at);
    ledger.submits.lock().unwrap().push(Submit { sent_at, answered_at, outcome, ..submit });
}
