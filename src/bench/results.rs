//! Results: distributions, the report, its pictures.

pub mod number;
pub mod quantiles;
pub mod report;
pub mod svg;
