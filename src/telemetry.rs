//! What is seen from outside: logs, and the metrics of every component.
//!
//! Each component has its own `Metrics` and registers it; here is what they share. Names are `punctual_<thing>_<unit>`: the unit is appended by
//! `register_with_unit`, unless it stands in the middle of the name or is in it already, and `_total` to counters.

mod exposition;
mod instruments;
pub mod logging;
mod process;

pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;
pub use prometheus_client::registry::{Registry, Unit};

pub use self::exposition::{CONTENT_TYPE, encode, registry};
pub use self::instruments::{Counted, durations, lateness};
