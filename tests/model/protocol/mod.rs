//! The protocol as a state machine: the actions of nodes, Postgres, Kafka and etcd on a few tasks.
//! Each step is one committed transaction or one message, and a fault may occur between any two
//! steps. `docs/testing.md` lists the scope of the model and its omissions.

pub mod check;
pub mod clients;
pub mod database;
pub mod decisions;
pub mod leaf;
pub mod moves;
pub mod node;
pub mod properties;
pub mod scopes;
pub mod state;
pub mod world;

use decisions::Decisions;
use scopes::Scope;
use state::{BATCHES, IDENTITIES, NOBODY, PUTS, ROWS, Retirer, SLOTS, State, Status, TASKS};
use state::{
    Batch, Cancel, Check, Database, Declare, Etcd, Heart, Leaf, Moving, Node, Progress, Property,
    Put, RegistryEntry,
};

use super::checker::Model;

/// A deliberate mistake, which is a control of the checker. Each breaks a property.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    SettleWithoutOwner,
    SettleWhatIsSettled,
    CancelLooksNearFirst,
    AdoptWithoutHeartbeat,
    PublishBeforeTheClaimCommits,
    RetireWithoutSecondLook,
    FollowUpOutsideTheSettle,
    ReplaceWithoutLock,
    CancelTakesWhatMayBeSent,
    ZombieDoesNotAsk,
    MoveWithoutDelete,
    AdoptedIsTakenForFresh,
    DeclareDeadWithoutCounter,
    SettleForgottenAtItsAnswer,
    NoLookForOwnBatches,
    SettleRepeatedAsItWas,
    DoubtOfAnEarlierAttemptForgotten,
    FrozenRetirerKeepsItsLock,
    RescheduleWithoutTheRow,
    RescheduleTakesWhatMayBeSent,
    ExpiryForgetsEarlierAttempts,
    ExpiryTakesBackWhatWasHandedOver,
    ExpiryIsNotAskedAtTheHandOver,
}

/// The actions. `slot` is a node's place; an identity is one start of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Tick,
    // Clients.
    Submit {
        slot: u8,
        task: u8,
    },
    SubmitUnanswered {
        slot: u8,
        task: u8,
    },
    Cancel,
    CancelUnanswered,
    PutLock {
        put: u8,
    },
    PutNear {
        put: u8,
    },
    PutVerdict {
        put: u8,
    },
    Reschedule,
    RescheduleNear,
    RescheduleVerdict,
    // Claims and publishing.
    Claim {
        slot: u8,
        kind: u8,
    },
    /// From a leaf that is not attached. No node looks there on purpose.
    ClaimHidden {
        slot: u8,
        kind: u8,
    },
    ClaimUnanswered {
        slot: u8,
        kind: u8,
    },
    HandOver {
        slot: u8,
        batch: u8,
        task: u8,
    },
    Expire {
        slot: u8,
        batch: u8,
        task: u8,
    },
    HandOverUncommitted {
        slot: u8,
        task: u8,
    },
    Append {
        slot: u8,
        batch: u8,
        task: u8,
    },
    AppendOfTheDead {
        task: u8,
    },
    Acknowledge {
        slot: u8,
        batch: u8,
        task: u8,
    },
    AcknowledgementLost {
        slot: u8,
        batch: u8,
        task: u8,
    },
    ProducerReplaced {
        slot: u8,
        batch: u8,
        task: u8,
    },
    NotSent {
        slot: u8,
        batch: u8,
        task: u8,
    },
    RefusedForGood {
        slot: u8,
        batch: u8,
        task: u8,
    },
    Settle {
        slot: u8,
        batch: u8,
    },
    SettleUnanswered {
        slot: u8,
        batch: u8,
    },
    SettleAgain {
        slot: u8,
        batch: u8,
    },
    InsertOwed {
        slot: u8,
    },
    // Checks of the node's own batches.
    Ask {
        slot: u8,
    },
    TakeIn {
        slot: u8,
    },
    Adopt {
        slot: u8,
    },
    AdoptUnanswered {
        slot: u8,
    },
    Load {
        slot: u8,
        batch: u8,
    },
    // Maintenance.
    Move {
        slot: u8,
    },
    Prepare {
        slot: u8,
    },
    DetachBegins {
        slot: u8,
    },
    DetachEnds {
        slot: u8,
    },
    Finalize {
        slot: u8,
    },
    DropOrKeep {
        slot: u8,
    },
    LockExpires {
        slot: u8,
    },
    // Heartbeats, crashes and starts of nodes.
    Beat {
        slot: u8,
    },
    Age {
        identity: u8,
    },
    AgeOfTheLiving {
        identity: u8,
    },
    Decide {
        slot: u8,
        identity: u8,
    },
    DeclareDead {
        slot: u8,
    },
    Crash {
        slot: u8,
    },
    Pause {
        slot: u8,
    },
    Wake {
        slot: u8,
    },
    Restart {
        slot: u8,
    },
    // Servers.
    LateCommit,
    LateAbort,
    PostgresCrash,
    Etcd(Etcd),
}

pub struct Protocol {
    pub scope: Scope,
    pub decisions: Decisions,
    pub mistake: Option<Mistake>,
}

impl Protocol {
    pub fn new(scope: Scope, mistake: Option<Mistake>) -> Self {
        Self { decisions: Decisions::new(scope.times), scope, mistake }
    }

    pub fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }
}

const NO_BATCH: Batch =
    Batch { rows: 0, owner: NOBODY, is_settled: false, outcomes: [Progress::Waiting; TASKS] };

pub const fn node_of(identity: u8, status: Status) -> Node {
    Node {
        identity,
        status,
        doubt: 0,
        registry: [RegistryEntry::None; BATCHES],
        maybe_sent: 0,
        progress: [[Progress::Waiting; TASKS]; BATCHES],
        check: None,
        fresh: 0,
        suspects: 0,
        to_load: 0,
        undone: 0,
        declare: None,
        owed: 0,
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        let mut hearts = [Heart::None; IDENTITIES];
        hearts[..SLOTS].fill(Heart::Alive);
        let db = Database {
            far: 0,
            near: 0,
            due: [0; ROWS],
            leaf: Leaf::Attached,
            batches: [NO_BATCH; BATCHES],
            cancelled: [0; TASKS],
            replaced_by: [0; TASKS],
            dead_letters: 0,
            follow: [None; TASKS],
            entry: None,
            hearts,
        };
        State {
            db,
            undo: None,
            nodes: [node_of(0, Status::Running), node_of(1, Status::Running)],
            age: [0; IDENTITIES],
            started: 2,
            tick: self.scope.first_tick,
            accepted: 0,
            next_batch: 0,
            sent: [0; TASKS],
            ghosts: [0; TASKS],
            excused: 0,
            late: None,
            cancel: Cancel::NotAsked,
            puts: [Put::NotAsked; PUTS],
            moving: Moving::Idle { moves: 0, looks: 0 },
            moved_to: 0,
            retirer: Retirer::Nobody,
            etcd: Etcd::Right,
            faults: self.scope.faults,
            broken: None,
        }
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.is_all_over(state) {
            return;
        }
        if usize::from(state.tick) + 1 < self.decisions.times.ticks.len() {
            actions.push(Action::Tick);
        }
        self.client_actions(state, actions);
        self.reschedule_actions(state, actions);
        for slot in 0..2 {
            self.node_actions(state, slot, actions);
            self.leaf_actions(state, slot, actions);
        }
        // Faults are of no interest while there is no task to lose.
        if state.accepted != 0 || state.late.is_some() {
            self.world_actions(state, actions);
        }
    }

    fn step(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Tick => next.tick += 1,
            Action::Submit { .. }
            | Action::SubmitUnanswered { .. }
            | Action::Cancel
            | Action::CancelUnanswered => {
                self.client_step(&mut next, action)?;
            }
            Action::PutLock { .. } | Action::PutNear { .. } | Action::PutVerdict { .. } => {
                self.put_step(&mut next, action)?
            }
            Action::Reschedule | Action::RescheduleNear | Action::RescheduleVerdict => {
                self.reschedule_step(&mut next, action)?
            }
            Action::Prepare { .. }
            | Action::DetachBegins { .. }
            | Action::DetachEnds { .. }
            | Action::Finalize { .. }
            | Action::DropOrKeep { .. }
            | Action::LockExpires { .. }
            | Action::Move { .. } => self.leaf_step(&mut next, action)?,
            Action::Age { .. }
            | Action::AgeOfTheLiving { .. }
            | Action::Crash { .. }
            | Action::Pause { .. }
            | Action::Wake { .. }
            | Action::Restart { .. }
            | Action::LateCommit
            | Action::LateAbort
            | Action::PostgresCrash
            | Action::AppendOfTheDead { .. }
            | Action::Etcd(_) => self.world_step(&mut next, action)?,
            _ => self.node_step(&mut next, action)?,
        }
        self.watch_the_cancel(&mut next);
        state::forget_what_does_not_matter(&mut next);
        if next.next_batch > u8::try_from(BATCHES).unwrap() {
            next.broken = Some(Property::OutOfBounds);
        }
        Some(next)
    }

    fn kind(&self, action: Action) -> &'static str {
        kind_of(action)
    }

    fn is_progress(&self, action: Action) -> bool {
        !matches!(
            action,
            Action::SubmitUnanswered { .. }
                | Action::CancelUnanswered
                | Action::ClaimHidden { .. }
                | Action::ClaimUnanswered { .. }
                | Action::AppendOfTheDead { .. }
                | Action::AcknowledgementLost { .. }
                | Action::ProducerReplaced { .. }
                | Action::NotSent { .. }
                | Action::RefusedForGood { .. }
                | Action::SettleUnanswered { .. }
                | Action::AdoptUnanswered { .. }
                | Action::AgeOfTheLiving { .. }
                | Action::Crash { .. }
                | Action::Pause { .. }
                | Action::Wake { .. }
                | Action::LateCommit
                | Action::LateAbort
                | Action::PostgresCrash
                | Action::Etcd(_)
        )
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        self.broken_property(state)
    }

    fn is_end(&self, state: &State) -> bool {
        (0..TASKS).all(|task| {
            state.accepted >> task & 1 == 0 || properties::final_lines(&state.db, task) == 1
        })
    }
}

impl Protocol {
    /// Returns true when all tasks have ended and no node or client remembers or awaits anything.
    /// Later actions then change nothing for the tasks.
    fn is_all_over(&self, state: &State) -> bool {
        let is_blank = |node: &Node| {
            let is_idle = node.registry.iter().all(|registered| *registered == RegistryEntry::None)
                && node.check.is_none();
            is_idle && node.to_load | node.undone | node.suspects == 0 && node.owed == 0
        };
        let all = (1 << self.scope.task_count) - 1;
        let is_asked = matches!(state.cancel, Cancel::Looking { .. })
            || state.puts[..usize::from(self.scope.put_count)].iter().any(|put| *put != Put::Done)
            || !matches!(state.moving, Moving::Idle { .. });
        state.accepted == all
            && self.is_end(state)
            && !is_asked
            && state.nodes.iter().all(is_blank)
            && state.late.is_none()
            && state.undo.is_none()
            && state.ghosts == [0; TASKS]
            && matches!(state.retirer, Retirer::Nobody)
    }
}

/// All kinds of actions except those of mistakes.
pub const KINDS: [&str; 54] = [
    "Tick",
    "Submit",
    "SubmitUnanswered",
    "Cancel",
    "CancelUnanswered",
    "PutLock",
    "PutNear",
    "PutVerdict",
    "Reschedule",
    "RescheduleNear",
    "RescheduleVerdict",
    "Claim",
    "ClaimHidden",
    "ClaimUnanswered",
    "HandOver",
    "Expire",
    "Append",
    "AppendOfTheDead",
    "Acknowledge",
    "AcknowledgementLost",
    "ProducerReplaced",
    "NotSent",
    "RefusedForGood",
    "Settle",
    "SettleUnanswered",
    "SettleAgain",
    "Ask",
    "TakeIn",
    "Adopt",
    "AdoptUnanswered",
    "Load",
    "Move",
    "Prepare",
    "DetachBegins",
    "DetachEnds",
    "Finalize",
    "DropOrKeep",
    "LockExpires",
    "Beat",
    "Age",
    "AgeOfTheLiving",
    "Decide",
    "DeclareDead",
    "Crash",
    "Pause",
    "Wake",
    "Restart",
    "LateCommit",
    "LateAbort",
    "PostgresCrash",
    "EtcdRight",
    "EtcdAway",
    "EtcdEmpty",
    "EtcdStuck",
];

/// Returns the name of an action without its arguments.
pub fn kind_of(action: Action) -> &'static str {
    match action {
        Action::Tick => "Tick",
        Action::Submit { .. } => "Submit",
        Action::SubmitUnanswered { .. } => "SubmitUnanswered",
        Action::Cancel => "Cancel",
        Action::CancelUnanswered => "CancelUnanswered",
        Action::PutLock { .. } => "PutLock",
        Action::PutNear { .. } => "PutNear",
        Action::PutVerdict { .. } => "PutVerdict",
        Action::Reschedule => "Reschedule",
        Action::RescheduleNear => "RescheduleNear",
        Action::RescheduleVerdict => "RescheduleVerdict",
        Action::Claim { .. } => "Claim",
        Action::ClaimHidden { .. } => "ClaimHidden",
        Action::ClaimUnanswered { .. } => "ClaimUnanswered",
        Action::HandOver { .. } => "HandOver",
        Action::Expire { .. } => "Expire",
        Action::HandOverUncommitted { .. } => "HandOverUncommitted",
        Action::Append { .. } => "Append",
        Action::AppendOfTheDead { .. } => "AppendOfTheDead",
        Action::Acknowledge { .. } => "Acknowledge",
        Action::AcknowledgementLost { .. } => "AcknowledgementLost",
        Action::ProducerReplaced { .. } => "ProducerReplaced",
        Action::NotSent { .. } => "NotSent",
        Action::RefusedForGood { .. } => "RefusedForGood",
        Action::Settle { .. } => "Settle",
        Action::SettleUnanswered { .. } => "SettleUnanswered",
        Action::SettleAgain { .. } => "SettleAgain",
        Action::InsertOwed { .. } => "InsertOwed",
        Action::Ask { .. } => "Ask",
        Action::TakeIn { .. } => "TakeIn",
        Action::Adopt { .. } => "Adopt",
        Action::AdoptUnanswered { .. } => "AdoptUnanswered",
        Action::Load { .. } => "Load",
        Action::Move { .. } => "Move",
        Action::Prepare { .. } => "Prepare",
        Action::DetachBegins { .. } => "DetachBegins",
        Action::DetachEnds { .. } => "DetachEnds",
        Action::Finalize { .. } => "Finalize",
        Action::DropOrKeep { .. } => "DropOrKeep",
        Action::LockExpires { .. } => "LockExpires",
        Action::Beat { .. } => "Beat",
        Action::Age { .. } => "Age",
        Action::AgeOfTheLiving { .. } => "AgeOfTheLiving",
        Action::Decide { .. } => "Decide",
        Action::DeclareDead { .. } => "DeclareDead",
        Action::Crash { .. } => "Crash",
        Action::Pause { .. } => "Pause",
        Action::Wake { .. } => "Wake",
        Action::Restart { .. } => "Restart",
        Action::LateCommit => "LateCommit",
        Action::LateAbort => "LateAbort",
        Action::PostgresCrash => "PostgresCrash",
        Action::Etcd(Etcd::Right) => "EtcdRight",
        Action::Etcd(Etcd::Away) => "EtcdAway",
        Action::Etcd(Etcd::Empty) => "EtcdEmpty",
        Action::Etcd(Etcd::Stuck) => "EtcdStuck",
    }
}

/// Returns a node that has just started.
pub fn started(identity: u8) -> Node {
    node_of(identity, Status::Running)
}

pub fn no_more(count: &mut u8) -> Option<()> {
    *count = count.checked_sub(1)?;
    Some(())
}

pub fn check_of(own: u8, durable: u8, clears_doubt: bool) -> Check {
    Check { own, durable, clears_doubt }
}

pub const fn to_declare(node: u8) -> Declare {
    Declare { node, is_outdated: false }
}
