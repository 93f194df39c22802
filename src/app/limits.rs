//! The limits of a node. They are exported as metrics, so that an alert can say "nine tenths of it"
//! for any setting. The module also makes room for the open files of the node.

use az::SaturatingAs as _;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};

use super::assembly::IN_FLIGHT_BATCHES_MAX;
use crate::config::NodeLimits;
use crate::telemetry::{Family, Gauge, Registry};

/// Registers one sample for each limit. The label is the limited metric without `punctual_`.
pub fn register(registry: &mut Registry, limits: &NodeLimits) {
    let family: Family<[(&'static str, &'static str); 1], Gauge> = Family::default();
    let all = [
        ("in_flight_tasks", limits.in_flight_tasks),
        ("in_flight_bytes", limits.in_flight_bytes),
        ("in_flight_batches", IN_FLIGHT_BATCHES_MAX),
        ("remembered_batches", IN_FLIGHT_BATCHES_MAX),
        ("submit_queue_tasks", limits.submit_queue_tasks),
        ("submit_queue_bytes", limits.submit_queue_bytes),
        ("cancel_queue_tasks", limits.cancel_queue),
        ("answer_queue", limits.answer_queue),
        ("schedules", limits.schedules_max),
        ("api_requests_in_flight", limits.requests_max),
        ("api_connections", limits.connections_max),
        ("api_body_memory_bytes", limits.body_memory_bytes),
    ];
    for (bounded, limit) in all {
        family.get_or_create(&[("of", bounded)]).set(limit.saturating_as::<i64>());
    }
    registry.register(
        "punctual_limit",
        "The limit of this node for another metric, in the unit of that metric",
        family,
    );
}

/// Forbids core dumps of this process: they hold payloads and passwords. The limit alone does not
/// stop a dump into the program that `core_pattern` may name. A process that is not dumpable has no
/// dump at all, and only root can trace it or read its memory.
pub(super) fn forbid_core_dumps() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let done =
        [setrlimit(Resource::Core, none), set_dumpable_behavior(DumpableBehavior::NotDumpable)];
    for error in done.into_iter().filter_map(Result::err) {
        tracing::warn!(%error, "cannot forbid core dumps");
    }
}

/// Open files of the node itself, in addition to those of callers: sessions of Postgres,
/// connections to brokers and to etcd, the log.
const OWN: u64 = 256;

/// Raises the soft limit on open files to the needs of `connections_max`, as far as the hard limit
/// allows. At the limit the node accepts no connections and cannot reopen its own, and callers get
/// no error.
pub(super) fn make_room(connections_max: usize) {
    // A pop that waits has a second handle of its connection.
    let needed = connections_max.saturating_as::<u64>().saturating_mul(2).saturating_add(OWN);
    let limit = getrlimit(Resource::Nofile);
    let is_enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if is_enough(limit.current) {
        return;
    }
    let wished = limit.maximum.map_or(needed, |hard| hard.min(needed));
    if let Err(error) =
        setrlimit(Resource::Nofile, Rlimit { current: Some(wished), maximum: limit.maximum })
    {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
    let limit = getrlimit(Resource::Nofile).current;
    if !is_enough(limit) {
        let limit = limit.unwrap_or(u64::MAX);
        tracing::warn!(
            limit,
            needed,
            "the limit on open files is too low for --connections-max: at the limit, the node \
             accepts no connection and cannot reconnect to Kafka and Postgres; raise it (ulimit \
             -n, LimitNOFILE), or lower --connections-max"
        );
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::dumpable_behavior;

    use super::*;

    #[test]
    fn a_process_without_core_dumps_cannot_be_traced_either() {
        forbid_core_dumps();
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
        assert_eq!(dumpable_behavior(), Ok(DumpableBehavior::NotDumpable));
    }
}
