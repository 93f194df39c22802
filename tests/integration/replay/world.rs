//! The steps of the model as calls of the product.

mod callers;
mod expected;

use std::collections::HashMap;
use std::time::Duration;

use punctual::domain::leaves::{Parent, Partition, Rules};
use punctual::domain::{
    Batch, BatchBuilder, BatchId, ClusterWishes, Headers, IdRange, NewTask, NodeId, Outcome,
    Receipt, Record, Shard, ShardCount, TaskId, TaskName, Timestamp, TopicName,
};
use punctual::node::maintenance::{Leaves, Maintenance, MaintenanceMetrics};
use punctual::postgres::cluster::heartbeat::{Beat, Heartbeats};
use punctual::postgres::cluster::schema;
use punctual::postgres::connection::ConnectionPurpose;
use punctual::postgres::partitions::create;
use punctual::postgres::partitions::mover::Mover;
use punctual::postgres::partitions::retire::{Retired, Retirer};
use punctual::postgres::tasks::adopt::Adoptions;
use punctual::postgres::tasks::cancel::Cancels;
use punctual::postgres::tasks::claim::{ClaimAnswer, ClaimRequest, Claimed, Claims, Source};
use punctual::postgres::tasks::look_up::LookUp;
use punctual::postgres::tasks::replace::Replaces;
use punctual::postgres::tasks::settle::{SettleTerms, Settlement, Settles};
use punctual::postgres::tasks::submit::{self, Submits};
use punctual::postgres::tasks::submit_named::{NamedGroup, NamedSubmits};
use punctual::postgres::{Connection, PostgresSettings};
use sqlx::postgres::PgConnection;

use super::protocol::decisions::EPOCH;
use super::protocol::state::{
    BATCHES, IDENTITIES, Late, Leaf, Progress, State, each, row_of, task_of,
};
use super::protocol::{Action, Protocol};
use super::tables::{self, Kept};
use crate::support::partitions::move_far;
use crate::support::{Database, Stack};

const RETENTION: Duration = Duration::from_secs(86_400);
const TOPIC: &str = "orders";

/// One start of a node, with its connections.
struct Identity {
    node: NodeId,
    submits: Submits,
    named: NamedSubmits,
    settles: Settles,
    adoptions: Adoptions,
    heartbeats: Heartbeats,
    counter: i64,
}

pub struct World {
    sql: PgConnection,
    connection: Connection,
    rules: Rules,
    /// The beginning of the leaf with the due times of the tasks.
    epoch: Timestamp,
    identities: Vec<Identity>,
    claims: Claims,
    canceller: Cancels,
    replaces: Replaces,
    look_up: LookUp,
    mover: Mover,
    retirer: Retirer,
    trace: u64,
    batch_ids: [Option<BatchId>; BATCHES],
    /// The memory of the nodes, by identity and batch.
    held: HashMap<(u8, usize), Batch>,
    late: Option<Settlement>,
    undo: Option<Kept>,
    is_hidden: bool,
    // The last field: dropped when all connections are.
    _own: Database,
}

impl World {
    pub async fn create() -> Self {
        let own = Database::create(&Stack::shared(), "replay").await;
        let settings = PostgresSettings::new(&own.url).unwrap();
        let wishes = ClusterWishes {
            shards: ShardCount::new(2).ok(),
            horizon: Some(Duration::from_secs(7_200)),
            ..ClusterWishes::default()
        };
        let cluster = schema::migrate(&settings, wishes).await.unwrap().cluster;
        let rules = Rules::new(&cluster);
        let mut maintenance = Maintenance::new(
            &settings,
            rules,
            Leaves::default().into(),
            MaintenanceMetrics::default(),
        );
        assert!(maintenance.make_all().await.unwrap());
        let mut sql = own.connect().await;
        let now: i64 =
            sqlx::query_scalar("select (extract(epoch from clock_timestamp()) * 1000)::bigint")
                .fetch_one(&mut sql)
                .await
                .unwrap();
        // An hour ahead, so that no task is past by the server's clock, whatever the model's clock.
        let epoch = rules
            .partition_of(
                Parent::Task,
                Timestamp::from_millis(now).plus(Duration::from_secs(3_600)),
            )
            .start;
        let identities = (0..IDENTITIES).map(|_| {
            let node = NodeId::new(epoch, 0, rand::random());
            Identity {
                node,
                submits: Submits::new(&settings, node),
                named: NamedSubmits::new(&settings, node, RETENTION),
                settles: Settles::new(&settings, node, RETENTION),
                adoptions: Adoptions::new(&settings, node),
                heartbeats: Heartbeats::new(&settings, Duration::from_secs(60)),
                counter: 0,
            }
        });
        Self {
            sql,
            connection: Connection::new(
                &settings,
                ConnectionPurpose {
                    name: "replay",
                    deadline: Duration::from_secs(10),
                    settings: &[],
                },
            ),
            rules,
            epoch,
            identities: identities.collect(),
            claims: Claims::new(&settings, rules),
            canceller: Cancels::new(&settings, RETENTION),
            replaces: Replaces::new(&settings, RETENTION, 1),
            look_up: LookUp::new(&settings, &cluster, 1),
            mover: Mover::new(&settings),
            retirer: Retirer::new(&settings, Parent::Task, rules),
            trace: 0,
            batch_ids: [None; BATCHES],
            held: HashMap::new(),
            late: None,
            undo: None,
            is_hidden: false,
            _own: own,
        }
    }

    /// Empties the tables and starts two nodes.
    pub async fn begin(&mut self, trace: u64) {
        let leaf = self.leaf();
        if self.is_hidden {
            tables::execute(&mut self.sql, &format!("drop table {}", leaf.name())).await;
            self.is_hidden = false;
        }
        tables::empty(&mut self.sql).await;
        // Created again if a trace has dropped the leaf.
        assert!(create(&mut self.connection, &self.rules, &[leaf]).await.unwrap());
        self.trace = trace;
        self.batch_ids = [0, 1, 2, 3, 4].map(|_| Some(BatchId::new(self.epoch, 0, rand::random())));
        self.held.clear();
        (self.late, self.undo) = (None, None);
        self.beat(0).await;
        self.beat(1).await;
    }

    pub async fn found(&mut self) -> Vec<String> {
        let hidden = self.is_hidden.then(|| self.leaf().name());
        tables::lines(&mut self.sql, hidden.as_deref()).await
    }

    /// Executes a step. Returns false when the step needs no statement.
    pub async fn take(
        &mut self,
        protocol: &Protocol,
        (state, action, next): (&State, Action, &State),
        has_crash: bool,
    ) -> bool {
        if has_crash && state.undo.is_none() && next.undo.is_some() {
            self.undo = Some(tables::keep(&mut self.sql).await);
        }
        match action {
            Action::Submit { slot, task } => {
                self.submit(protocol, (state, next), (slot, task)).await
            }
            Action::Cancel | Action::CancelUnanswered => self.cancel(protocol, state, next).await,
            Action::Reschedule => self.reschedule(protocol, state, next).await,
            Action::PutLock { put } => self.put(protocol, (state, next), usize::from(put)).await,
            Action::PutVerdict { put } => {
                self.verdict(protocol, (state, next), usize::from(put)).await
            }
            Action::Claim { slot, kind } | Action::ClaimHidden { slot, kind } => {
                self.claim(
                    protocol,
                    (state, next),
                    (state.nodes[usize::from(slot)].identity, kind, state.next_batch),
                )
                .await
            }
            Action::Settle { slot, batch } | Action::SettleAgain { slot, batch } => {
                let is_again = matches!(action, Action::SettleAgain { .. });
                let node = &state.nodes[usize::from(slot)];
                let settlement = self.settlement(protocol, state, (slot, batch), is_again);
                let (settled, outcome) = self.identities[usize::from(node.identity)]
                    .settles
                    .settle(&[&settlement], SettleTerms::default())
                    .await;
                outcome.unwrap();
                let is_done = !state.db.batches[usize::from(batch)].is_settled
                    && next.db.batches[usize::from(batch)].is_settled;
                assert_eq!(
                    settled.batches.contains(&self.batch_id(usize::from(batch))),
                    is_done,
                    "{action:?}"
                );
            }
            Action::SettleUnanswered { slot, batch } => {
                self.late = Some(self.settlement(protocol, state, (slot, batch), false));
                return false;
            }
            Action::Ask { slot } => {
                let identity = usize::from(state.nodes[usize::from(slot)].identity);
                let mut own =
                    self.identities[identity].adoptions.own_unsettled(BatchId::MIN).await.unwrap();
                let check = next.nodes[usize::from(slot)].check.unwrap();
                let mut expected: Vec<BatchId> =
                    each(u16::from(check.own)).map(|batch| self.batch_id(batch)).collect();
                own.sort_unstable();
                expected.sort_unstable();
                assert_eq!(own, expected, "own unsettled");
            }
            Action::Adopt { slot } | Action::AdoptUnanswered { slot } => {
                let identity = usize::from(state.nodes[usize::from(slot)].identity);
                self.identities[identity].adoptions.adopt(BatchId::MIN).await.unwrap();
            }
            Action::Load { slot, batch } => {
                self.load(protocol, (state, next), (slot, usize::from(batch))).await
            }
            Action::Move { .. } => self.move_far(protocol, state, next).await,
            Action::Prepare { .. } => {
                assert!(self.retirer.prepare(self.leaf()).await.unwrap(), "the leaf is empty")
            }
            Action::DetachBegins { .. } => {
                assert!(self.retirer.lock().await.unwrap(), "nobody else retires here");
                self.retirer.detach(self.leaf()).await.unwrap();
                self.is_hidden = true;
            }
            Action::DropOrKeep { .. } => self.drop_or_keep(protocol, state, next).await,
            Action::Beat { slot } => {
                self.beat(usize::from(state.nodes[usize::from(slot)].identity)).await
            }
            Action::Restart { .. } => self.beat(usize::from(state.started)).await,
            Action::DeclareDead { slot } => self.declare_dead(state, next, usize::from(slot)).await,
            Action::LateCommit => self.late_commit(protocol, state, next).await,
            Action::PostgresCrash => {
                tables::put_back(&mut self.sql, self.undo.take().unwrap()).await
            }
            _ => return false,
        }
        true
    }

    fn node(&self, identity: u8) -> NodeId {
        self.identities[usize::from(identity)].node
    }

    fn batch_id(&self, batch: usize) -> BatchId {
        self.batch_ids[batch].unwrap()
    }

    fn leaf(&self) -> Partition {
        Partition { parent: Parent::Task, start: self.epoch }
    }

    fn moment(&self, protocol: &Protocol, tick: u8) -> Timestamp {
        Timestamp::from_millis(
            self.epoch.as_millis() + protocol.decisions.times.ticks[usize::from(tick)],
        )
    }

    fn id(&self, protocol: &Protocol, row: usize, due: u8) -> TaskId {
        let since = protocol.decisions.dues[usize::from(due)].as_millis() - EPOCH.as_millis();
        let due_at = Timestamp::from_millis(self.epoch.as_millis() + since);
        // A postponed follow-up keeps the random bits of its row.
        TaskId::new(
            due_at,
            Shard::new(u16::try_from(task_of(row) % 2).unwrap()),
            self.trace << 8 | u64::try_from(row).unwrap(),
        )
    }

    fn new_task(&self, protocol: &Protocol, task: usize) -> NewTask {
        let payload = Some(format!("task {task}").into_bytes().into_boxed_slice());
        let record = Record {
            topic: TopicName::new(TOPIC).unwrap(),
            key: None,
            payload,
            headers: Headers::default(),
        };
        let name = protocol.scope.is_named.then(|| TaskName::new("the-one").unwrap());
        NewTask {
            id: self.id(protocol, row_of(task, 0), u8::try_from(task).unwrap()),
            name,
            record,
            submitted_by: None,
            tracking: None,
        }
    }

    async fn beat(&mut self, identity: usize) {
        let own = &mut self.identities[identity];
        own.counter += 1;
        let beat = Beat {
            node: own.node,
            name: format!("node {identity}"),
            address: String::new(),
            version: String::new(),
            counter: own.counter,
            has_broker: true,
            can_publish: true,
            has_left: false,
        };
        own.heartbeats.beat(&beat).await.unwrap();
    }

    async fn declare_dead(&mut self, state: &State, next: &State, slot: usize) {
        let declare = state.nodes[slot].declare.unwrap();
        let (node, counter) =
            (self.node(declare.node), self.identities[usize::from(declare.node)].counter);
        // The state that was read before the last beat.
        let counter = counter - i64::from(declare.is_outdated);
        let is_done = self.identities[usize::from(state.nodes[slot].identity)]
            .heartbeats
            .declare_dead(node, counter)
            .await
            .unwrap();
        assert_eq!(is_done, state.db.hearts != next.db.hearts, "declare dead");
    }

    async fn submit(
        &mut self,
        protocol: &Protocol,
        (state, next): (&State, &State),
        (slot, task): (u8, u8),
    ) {
        let identity = state.nodes[usize::from(slot)].identity;
        let batch = usize::from(state.next_batch);
        if next.next_batch > state.next_batch {
            self.store(protocol, identity, usize::from(task), (false, Some(batch))).await;
            let new = self.new_task(protocol, usize::from(task));
            self.held.insert(
                (identity, batch),
                BatchBuilder::of_new_tasks(self.batch_id(batch), [&new].into_iter()),
            );
        } else {
            self.store(protocol, identity, usize::from(task), (next.db.far != state.db.far, None))
                .await;
        }
    }

    async fn store(
        &mut self,
        protocol: &Protocol,
        identity: u8,
        task: usize,
        (is_far, batch): (bool, Option<usize>),
    ) {
        let new = self.new_task(protocol, task);
        let batch = batch.map(|batch| self.batch_id(batch));
        let own = &mut self.identities[usize::from(identity)];
        if protocol.scope.is_named {
            let group = NamedGroup {
                tasks: &[&new],
                is_far: &[is_far],
                is_claimed: &[batch.is_some()],
                batch,
            };
            let (won, _) = own.named.store(&group).await.unwrap();
            assert!(won.contains(&new.id));
            return;
        }
        let tasks = |is_meant: bool| if is_meant { vec![&new] } else { Vec::new() };
        let group = submit::Group {
            near: tasks(batch.is_none() && !is_far),
            far: tasks(batch.is_none() && is_far),
            claimed: batch.map(|batch| (batch, vec![&new])),
        };
        own.submits.store(&group).await.unwrap();
    }

    async fn claim(
        &mut self,
        protocol: &Protocol,
        (state, next): (&State, &State),
        (identity, kind, batch): (u8, u8, u8),
    ) {
        let kind = protocol.decisions.claims[usize::from(kind)];
        let slot = (0..2).find(|slot| state.nodes[usize::from(*slot)].identity == identity);
        let mine = slot.map_or(0b11, |slot| protocol.standing(state, slot).mine);
        let shards: Vec<i16> =
            [0, 1].into_iter().filter(|shard| kind.is_for_all || mine >> shard & 1 == 1).collect();
        let (batch, id) = (usize::from(batch), self.batch_id(usize::from(batch)));
        let range = range_at(self.epoch, kind.range);
        let request = ClaimRequest::of_all(id, self.node(identity), &shards, range);
        let source = if kind.is_far { Source::Far } else { Source::Task };
        let ClaimAnswer { claimed, .. } = self.claims.claim(source, request).await.unwrap();
        let expected = self.ids(protocol, next, batch);
        match claimed {
            Claimed::Batch(batch_found) => {
                assert_eq!(ids_of(&batch_found), expected, "what was claimed");
                self.held.insert((identity, batch), batch_found);
            }
            Claimed::Nothing => assert!(expected.is_empty(), "nothing was claimed of {expected:?}"),
            Claimed::TooLarge { .. } => panic!("a claim of a few tasks is too large"),
        }
    }

    fn ids(&self, protocol: &Protocol, state: &State, batch: usize) -> Vec<TaskId> {
        let mut ids: Vec<TaskId> = each(state.db.batches[batch].rows)
            .map(|row| self.id(protocol, row, state.db.due[row]))
            .collect();
        ids.sort_unstable();
        ids
    }

    async fn load(
        &mut self,
        protocol: &Protocol,
        (state, next): (&State, &State),
        (slot, batch): (u8, usize),
    ) {
        let identity = state.nodes[usize::from(slot)].identity;
        let id = self.batch_id(batch);
        let loaded = self.identities[usize::from(identity)].adoptions.load(id).await.unwrap();
        let is_own = state.db.unsettled_of(identity) >> batch & 1 == 1;
        assert_eq!(loaded.is_some(), is_own, "load");
        if let Some((loaded, _paused)) = loaded {
            assert_eq!(ids_of(&loaded), self.ids(protocol, next, batch), "what was loaded");
            self.held.insert((identity, batch), loaded);
        }
    }

    /// Returns the batch as the node writes it: as claimed, or as loaded.
    fn settlement(
        &self,
        protocol: &Protocol,
        state: &State,
        (slot, batch): (u8, u8),
        is_again: bool,
    ) -> Settlement {
        let node = &state.nodes[usize::from(slot)];
        let progress = node.progress[usize::from(batch)];
        let now = self.moment(protocol, state.tick);
        let held = &self.held[&(node.identity, usize::from(batch))];
        let outcomes: Vec<Outcome> = held
            .tasks()
            .map(|task| {
                let row = usize::try_from(task.id.uuid().as_u128() & 0xff).unwrap();
                match progress[task_of(row)] {
                    Progress::Deferred { maybe_sent, due } => {
                        let next = self.id(protocol, row + 1, due);
                        Outcome::Deferred {
                            next: if is_again { next } else { next.due_at_least(now) },
                            maybe_sent,
                        }
                    }
                    Progress::Dead => Outcome::Dead { reason: "refused".into(), receipt: None },
                    Progress::Expired => Outcome::Expired { expires_at: now },
                    _ => Outcome::Published(Receipt { partition: 0, offset: 1, published_at: now }),
                }
            })
            .collect();
        let mut settlement = Settlement::new(held, &outcomes);
        if is_again {
            settlement.put_off_until(now);
        }
        settlement
    }

    async fn move_far(&mut self, protocol: &Protocol, state: &State, next: &State) {
        let now = self.moment(protocol, state.tick);
        let range = IdRange::of_times(now, now.plus(Duration::from_secs(1_800)));
        let moved = move_far(&mut self.mover, range).await.unwrap();
        assert_eq!(moved.task_count, u64::from((state.db.far & !next.db.far).count_ones()));
    }

    async fn drop_or_keep(&mut self, protocol: &Protocol, state: &State, next: &State) {
        let now = self.moment(protocol, state.tick);
        let mut retired = Retired::default();
        let leaf = self.leaf();
        self.retirer.drop_or_keep(leaf, now, &mut retired).await.unwrap();
        self.is_hidden = false;
        assert_eq!(retired.dropped_count == 1, next.db.leaf == Leaf::Dropped);
    }

    /// The statement takes effect, but the answer is lost.
    async fn late_commit(&mut self, protocol: &Protocol, state: &State, next: &State) {
        match state.late.unwrap() {
            Late::Claim { slot: _, identity, kind, batch } => {
                self.claim(protocol, (state, next), (identity, kind, batch)).await
            }
            Late::Submit { task, is_far } => {
                self.store(protocol, 0, usize::from(task), (is_far, None)).await;
            }
            Late::SubmitClaimed { task, identity, batch } => {
                self.store(
                    protocol,
                    identity,
                    usize::from(task),
                    (false, Some(usize::from(batch))),
                )
                .await;
            }
            Late::Settle { identity, batch, .. } => {
                let settlement = self.late.take().unwrap();
                let (settled, _outcome) = self.identities[usize::from(identity)]
                    .settles
                    .settle(&[&settlement], SettleTerms::default())
                    .await;
                let is_done = !state.db.batches[usize::from(batch)].is_settled
                    && next.db.batches[usize::from(batch)].is_settled;
                assert_eq!(settled.batches.contains(&self.batch_id(usize::from(batch))), is_done);
            }
        }
    }
}

/// Returns the range of a claim of the model whose leaf begins at `epoch`.
fn range_at(epoch: Timestamp, (from, to): (i128, i128)) -> IdRange {
    let floor = i128::try_from(IdRange::of_times(epoch, epoch).from.as_u128()).unwrap();
    let id = |offset: i128| uuid::Uuid::from_u128(u128::try_from((floor + offset).max(0)).unwrap());
    IdRange { from: id(from), to: id(to) }
}

fn ids_of(batch: &Batch) -> Vec<TaskId> {
    let mut ids: Vec<TaskId> = batch.tasks().map(|task| task.id).collect();
    ids.sort_unstable();
    ids
}
