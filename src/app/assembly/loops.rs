//! Starts the loops of a node that claim, settle, adopt and count tasks, and that keep its topics
//! and producers.

use std::sync::Arc;
use std::time::Duration;

use super::{Core, Site};
use crate::domain::leaves::Rules;
use crate::engine::claiming::ClaimSettings;
use crate::node::claim::{ClaimPace, ClaimParts, Claimer};
use crate::node::in_flight::keeper::InFlightKeeper;
use crate::node::maintenance::backlog_keeper::BacklogKeeper;
use crate::node::publish::producer_keeper::ProducerKeeper;
use crate::node::settle::adopter::{Adopter, AdopterParts};
use crate::node::settle::settler::{Settler, SettlerParts, Undone};
use crate::node::topic_keeper::TopicKeeper;
use crate::node::topic_keeper::pending_counter::PendingCounter;
use crate::node::topic_keeper::policy_keeper::PolicyKeeper;
use crate::postgres::lists::backlog::BacklogCounter;
use crate::postgres::lists::counts::TaskCounter;
use crate::postgres::tasks::adopt::Adoptions;
use crate::postgres::tasks::claim::Claims;
use crate::postgres::tasks::settle::Settles;

/// How far behind the watermark a claim looks again. The slack must be longer than an insert takes
/// to commit.
const SLACK: Duration = Duration::from_millis(750);
/// Maximum length of a stretched tick, however wide the window is. It equals the maximum of
/// `--tick`.
const TICK_MAX: Duration = Duration::from_secs(1);
/// Number of tasks that a claim aims at.
const CLAIM_TARGET: u64 = 1_000;

impl Site<'_> {
    pub(super) fn start_claimers(&self, core: &Core) {
        let (settings, cluster) = (self.settings, self.cluster);
        let pace = ClaimPace {
            tick: settings.tick,
            // A claim has taken 80 to 130 ms on a bad disk. A window of 200 ms still hides that.
            tick_calm: (cluster.window / 4).clamp(settings.tick, TICK_MAX),
            // The first claim after an idle time is small. 120 ms are left for it.
            tick_idle: (cluster.window * 2 / 5).clamp(settings.tick, TICK_MAX),
            loop_count: settings.claim_loops,
        };
        let rules = ClaimSettings {
            window: cluster.window,
            slack: SLACK,
            leaf: cluster.leaf,
            rows_target: CLAIM_TARGET,
        };
        for index in 0..settings.claim_loops {
            let parts = ClaimParts {
                pace,
                settings: rules,
                bulletin: core.membership.bulletin(),
                progress: core.progress.clone(),
                draining: self.tasks.draining.clone(),
                claims: Claims::new(&self.parts.postgres, Rules::new(&cluster)),
            };
            self.tasks.spawn("claim", Claimer::new(index, Arc::clone(&core.shared), parts).run());
        }
    }

    pub(super) fn start_settling(&self, core: &Core) {
        let (parts, tasks) = (self.parts, self.tasks);
        let undone = Arc::new(Undone::default());
        let settler = SettlerParts {
            settles: Settles::new(&parts.postgres, parts.node, self.settings.retention.names),
            shared: Arc::clone(&core.shared),
            reports: Arc::clone(&core.publisher.reports),
            undone: Arc::clone(&undone),
            progress: core.progress.clone(),
            stopping: tasks.stopping.clone(),
        };
        tasks.spawn_vital("settle", Settler::new(settler).run());
        let adopter = AdopterParts {
            adoptions: Adoptions::new(&parts.postgres, parts.node),
            shared: Arc::clone(&core.shared),
            publisher: Arc::clone(&core.publisher),
            undone,
            adopt_now: core.membership.adopt_now(),
            stopping: tasks.stopping.clone(),
            bulletin: core.membership.bulletin(),
            progress: core.progress.clone(),
            unsettled_floor: parts.postgres.unsettled_floor().clone(),
        };
        tasks.spawn("adopt", Adopter::new(adopter).run());
        tasks.spawn(
            "close producers",
            ProducerKeeper::close_retired(Arc::clone(&core.publisher), tasks.stopping.clone()),
        );
        let producer_keeper = ProducerKeeper {
            shared: Arc::clone(&core.shared),
            publisher: Arc::clone(&core.publisher),
            publish_deadline: self.settings.kafka.publish_deadline,
            stopping: tasks.stopping.clone(),
        };
        tasks.spawn_vital("producers", producer_keeper.run());
        let topic_keeper = TopicKeeper {
            shared: Arc::clone(&core.shared),
            publisher: Arc::clone(&core.publisher),
            topics: parts.topics.clone(),
            silence_max: self.silence_max(),
            stopping: tasks.stopping.clone(),
        };
        tasks.spawn_vital("topics", topic_keeper.run());
        let policy_keeper = PolicyKeeper::new(Arc::clone(&core.shared), &parts.postgres);
        tasks.spawn("policies", policy_keeper.run(tasks.stopping.clone()));
        let in_flight_keeper =
            InFlightKeeper { shared: Arc::clone(&core.shared), stopping: tasks.stopping.clone() };
        tasks.spawn("in flight", in_flight_keeper.run());
    }

    /// Starts to count the tasks of the cluster. Requests count with the same connections.
    pub(super) fn start_counting(&self, core: &Core) -> (Arc<TaskCounter>, Arc<BacklogCounter>) {
        let (postgres, cluster) = (&self.parts.postgres, &self.cluster);
        let tasks = Arc::new(TaskCounter::new(postgres, cluster));
        let backlog = Arc::new(BacklogCounter::new(postgres, cluster.shards));
        let keeper = BacklogKeeper {
            shared: Arc::clone(&core.shared),
            bulletin: core.membership.bulletin(),
            tasks: Arc::clone(&tasks),
            backlog: Arc::clone(&backlog),
        };
        self.tasks.spawn("count", keeper.run(self.tasks.draining.clone()));
        let pending_counter = PendingCounter {
            figures: Arc::clone(&core.shared.pending),
            counter: Arc::clone(&tasks),
            metrics: self.parts.metrics.clone(),
        };
        self.tasks.spawn("count pending", pending_counter.run(self.tasks.stopping.clone()));
        (tasks, backlog)
    }
}
