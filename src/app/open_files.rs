//! Room for open files: each connection is one, and so is what the node itself needs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Sessions of Postgres, connections to brokers and to etcd, the log: beside those of callers.
const OWN: u64 = 256;

/// Raises the soft limit as far as `connections_max` needs it and the hard one lets it. Beyond the limit nothing is accepted, and the node's own connections cannot
/// be opened again, while no caller is told.
pub(super) fn make_room(connections_max: usize) {
    let needed = u64::try_from(connections_max).unwrap_or(u64::MAX).saturating_add(OWN);
    let limit = getrlimit(Resource::Nofile);
    let is_enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if is_enough(limit.current) {
        return;
    }
    let wished = limit.maximum.map_or(needed, |hard| hard.min(needed));
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wished), maximum: limit.maximum }) {
        tracing::warn!(%error, "raise the limit on open files");
    }
    let limit = getrlimit(Resource::Nofile).current;
    if !is_enough(limit) {
        let limit = limit.unwrap_or(u64::MAX);
        tracing::warn!(
            limit,
            needed,
            "the limit on open files is too low for --connections-max: beyond it nobody is accepted, and Kafka and Postgres cannot be reached again; raise it \
             (ulimit -n, LimitNOFILE), or lower --connections-max"
        );
    }
}
