//! Topics as operators hold them: their policies and pauses, and the tasks that a long pause holds.

pub mod callbacks;
pub mod change;
pub mod held;
pub mod read;

use std::time::Duration;

use crate::postgres::PostgresSettings;
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::pool::Pool;
use crate::postgres::unsettled::SharedUnsettledFloor;
use crate::sealing::PayloadKeys;

const PURPOSE: ConnectionPurpose =
    ConnectionPurpose { name: "topics", deadline: Duration::from_secs(5), settings: &[] };

/// The connections for calls of the API about topics, and for the node's own look at all policies.
#[derive(Debug)]
pub struct Topics {
    pool: Pool,
    keys: PayloadKeys,
    unsettled: SharedUnsettledFloor,
}

impl Topics {
    pub fn new(settings: &PostgresSettings, connections_max: usize) -> Self {
        let pool = Pool::new(settings, PURPOSE, connections_max);
        let (keys, unsettled) =
            (settings.payload_keys().clone(), settings.unsettled_floor().clone());
        Self { pool, keys, unsettled }
    }
}
