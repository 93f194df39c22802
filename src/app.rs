//! The composition root.

use crate::config::{MigrationSettings, Problem, Settings};
use crate::shutdown::Failure;

/// What the modules find wrong with their settings.
pub fn problems(_settings: &Settings) -> Vec<Problem> {
    Vec::new()
}

pub async fn serve(_settings: Settings) -> Result<(), Failure> {
    Err("not built yet".into())
}

pub async fn migrate(_settings: MigrationSettings) -> Result<(), Failure> {
    Err("not built yet".into())
}
