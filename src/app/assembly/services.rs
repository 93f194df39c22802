//! The services of a node for schedules, topics, lists, and consumers without Kafka.

use std::sync::Arc;

use super::requests::RequestStores;
use super::{Core, Site};
use crate::callbacks::SigningKeys;
use crate::callbacks::keeper::{CallbackKeeper, CallbackParts};
use crate::domain::topic::callback::policy::CallbackPolicy;
use crate::node::maintenance::run_keeper::RunKeeper;
use crate::node::requests::bulk::Bulks;
use crate::node::requests::lists::Lists;
use crate::node::requests::service::Service;
use crate::node::requests::service::pops::PopService;
use crate::node::requests::service::schedules::ScheduleService;
use crate::node::requests::service::topics::TopicService;
use crate::node::shared::NodeShared;
use crate::postgres::lists::cancel_many::CancelMany;
use crate::postgres::lists::counts::TaskCounter;
use crate::postgres::lists::dead_letters::DeadLetters;
use crate::postgres::lists::listing::Listing;
use crate::postgres::schedules::Schedules;
use crate::postgres::schedules::make::RunMaker;
use crate::postgres::tasks::look_up::LookUp;
use crate::shutdown::TaskFailure;

/// Maximum number of connections for calls about schedules. One principal uses one of them at a
/// time, also below.
const SCHEDULES_MAX: usize = 2;

/// Maximum number of connections for lists, and for dead letters.
const LISTS_MAX: usize = 2;
const DEAD_LETTERS_MAX: usize = 2;

impl Site<'_> {
    /// Starts to make runs, and returns the service for schedules.
    pub(super) fn start_schedules(&self, core: &Core, stores: &RequestStores) -> ScheduleService {
        let (parts, retention) = (self.parts, &self.settings.retention);
        let (keeper, new) = RunKeeper::new(
            Arc::clone(&core.shared),
            core.membership.bulletin(),
            RunMaker::new(&parts.postgres, retention.names),
            parts.schedule_metrics.clone(),
        );
        self.tasks.spawn("make runs", keeper.run(self.tasks.draining.clone()));
        let limit = self.settings.limits.schedules_max;
        ScheduleService {
            shared: Arc::clone(&core.shared),
            store: Schedules::new(&parts.postgres, SCHEDULES_MAX, limit),
            turns: Arc::clone(&stores.turns),
            new,
            name_retention: retention.names,
        }
    }

    /// Returns the service that reads topics for consumers without Kafka.
    pub(super) fn start_pops(&self, shared: &NodeShared, look_up: &Arc<LookUp>) -> PopService {
        let (kafka, look_up) = (self.parts.kafka.clone(), Arc::clone(look_up));
        let (clock, metrics) = (Arc::clone(&shared.clock), self.parts.pop_metrics.clone());
        PopService::new(kafka, look_up, clock, self.tasks.clone(), metrics)
    }

    /// Starts to carry out callbacks, if the settings list hosts for them. Returns what callbacks
    /// may call.
    ///
    /// # Errors
    /// When the file with the signing keys has become wrong since it was checked.
    pub(super) async fn start_callbacks(
        &self,
        service: &Service,
        core: &Core,
    ) -> Result<Arc<CallbackPolicy>, TaskFailure> {
        let settings = &self.settings.callbacks;
        let policy = Arc::new(settings.policy.clone());
        let Some(key_file) = settings.key_file.clone() else { return Ok(policy) };
        let path = key_file.clone();
        let (keys, warning) =
            tokio::task::spawn_blocking(move || SigningKeys::load(&path)).await??;
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        let keeper = CallbackKeeper::new(CallbackParts {
            policy: Arc::clone(&policy),
            key_file,
            keys,
            service: service.clone(),
            bulletin: core.membership.bulletin(),
            metrics: self.parts.callback_metrics.clone(),
            tasks: self.tasks.clone(),
        });
        self.tasks.spawn("callbacks", keeper.run());
        Ok(policy)
    }

    /// Returns the service for topics.
    pub(super) fn topic_service(&self, core: &Core, stores: &RequestStores) -> TopicService {
        let turns = Arc::clone(&stores.turns);
        TopicService::new(Arc::clone(&core.shared), &self.parts.postgres, turns)
    }

    /// Returns the services for lists and dead letters, and for changes of many tasks.
    pub(super) fn lists_and_bulks(
        &self,
        shared: &Arc<NodeShared>,
        counter: Arc<TaskCounter>,
        stores: &RequestStores,
    ) -> (Lists, Bulks) {
        let (postgres, cluster) = (&self.parts.postgres, &self.cluster);
        let listing = Arc::new(Listing::new(postgres, cluster, LISTS_MAX));
        let dead_letters =
            Arc::new(DeadLetters::new(postgres, self.settings.retention.names, DEAD_LETTERS_MAX));
        let metrics = self.parts.metrics.clone();
        let lists = Lists::new((&listing, &dead_letters), counter, metrics, &stores.turns);
        let bulks = Bulks {
            listing,
            dead_letters,
            cancels: CancelMany::new(postgres, self.settings.retention.names),
            replaces: Arc::clone(&stores.replaces),
            shared: Arc::clone(shared),
            turns: Arc::clone(&stores.turns),
            request_deadline: self.settings.limits.request_timeout,
        };
        (lists, bulks)
    }
}
