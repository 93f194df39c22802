//! Clients of the REST API, for people and scripts.

pub mod args;

use std::process::ExitCode;

pub async fn submit(_args: args::Submit) -> ExitCode {
    ExitCode::FAILURE
}

pub async fn show(_args: args::Show) -> ExitCode {
    ExitCode::FAILURE
}

pub async fn cancel(_args: args::Cancel) -> ExitCode {
    ExitCode::FAILURE
}
