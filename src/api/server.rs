//! Connections and what every request passes: limits, measurement, the router.

pub mod answer;
mod connection;
pub mod console;
pub mod hang_up;
mod linger;
pub mod router;
pub mod serve;
pub mod tls;
mod unread_body;
mod watched;
