//! Logs, traces, and the metrics of all components.
//!
//! Every component registers its own `Metrics`; this module holds the shared parts. Names are
//! `punctual_<thing>_<unit>`. `register_with_unit` appends the unit, unless the name contains the
//! unit already. Counters end in `_total`.

mod exposition;
mod instruments;
pub mod logging;
mod process;
pub mod traces;

pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;
pub use prometheus_client::registry::{Registry, Unit};

pub use self::exposition::{CONTENT_TYPE, encode, registry};
pub use self::instruments::{CountGuard, durations, lateness};
