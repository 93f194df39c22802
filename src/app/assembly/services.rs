//! The services of a node for schedules, for topics, and for consumers without Kafka.

use std::sync::Arc;

use super::{Core, Site};
use crate::callbacks::SigningKeys;
use crate::callbacks::keeper::{CallbackKeeper, CallbackParts};
use crate::domain::topic::callback::policy::CallbackPolicy;
use crate::node::maintenance::run_keeper::RunKeeper;
use crate::node::requests::service::Service;
use crate::node::requests::service::pops::PopService;
use crate::node::requests::service::schedules::ScheduleService;
use crate::node::requests::service::topics::TopicService;
use crate::postgres::schedules::Schedules;
use crate::postgres::schedules::make::RunMaker;
use crate::postgres::tasks::look_up::LookUp;
use crate::shutdown::TaskFailure;

/// Maximum number of connections for calls about schedules.
const SCHEDULES_MAX: usize = 2;

impl Site<'_> {
    /// Starts to make runs, and returns the service for schedules.
    pub(super) fn start_schedules(&self, core: &Core) -> ScheduleService {
        let (parts, retention) = (self.parts, &self.settings.retention);
        let (keeper, new) = RunKeeper::new(
            Arc::clone(&core.shared),
            core.membership.bulletin(),
            RunMaker::new(&parts.postgres, retention.names),
            parts.schedule_metrics.clone(),
        );
        self.tasks.spawn("make runs", keeper.run(self.tasks.draining.clone()));
        let store = Schedules::new(&parts.postgres, SCHEDULES_MAX);
        let name_retention = retention.names;
        ScheduleService { shared: Arc::clone(&core.shared), store, new, name_retention }
    }

    /// Returns the service that reads topics for consumers without Kafka.
    pub(super) fn start_pops(&self, look_up: &Arc<LookUp>) -> PopService {
        let (kafka, look_up) = (self.parts.kafka.clone(), Arc::clone(look_up));
        PopService::new(kafka, look_up, self.tasks.clone(), self.parts.pop_metrics.clone())
    }

    /// Starts to carry out callbacks, if the settings list hosts for them. Returns what callbacks
    /// may call.
    ///
    /// # Errors
    /// When the file with the signing keys is not usable.
    pub(super) async fn start_callbacks(
        &self,
        service: &Service,
        core: &Core,
    ) -> Result<Arc<CallbackPolicy>, TaskFailure> {
        let settings = &self.settings.callbacks;
        let policy = Arc::new(settings.policy.clone());
        let Some(key_file) = settings.key_file.clone() else { return Ok(policy) };
        let path = key_file.clone();
        let keys = tokio::task::spawn_blocking(move || SigningKeys::load(&path)).await??;
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
    pub(super) fn topic_service(&self, core: &Core) -> TopicService {
        TopicService::new(Arc::clone(&core.shared), &self.parts.postgres)
    }
}
