//! The program: reads the settings, starts the log, runs the command, and reports how it ended.

use std::process::ExitCode;

use punctual::app::Handles;
use punctual::config::{self, Command, Property};
use punctual::shutdown::TaskFailure;
use punctual::{app, bench, client, dev, error_chain, shutdown, telemetry};

fn main() -> ExitCode {
    let invocation = match config::read(std::env::args_os(), app::problems) {
        Ok(invocation) => invocation,
        Err(refusal) => return refusal.report(),
    };
    telemetry::logging::start(&invocation.log);
    rustls::crypto::ring::default_provider().install_default().ok(); // Fails when one is there.
    let is_node = matches!(invocation.command, Command::Serve(_) | Command::Dev(_));
    let ended = shutdown::run_to_end(run(invocation.command));
    if let Err(failure) = &ended {
        tracing::error!("{}", error_chain::chain(failure.as_ref()));
    }
    telemetry::logging::flush();
    if is_node {
        shutdown::exit_at_once(i32::from(ended.is_err()));
    }
    ended.unwrap_or(ExitCode::FAILURE)
}

async fn run(command: Command) -> Result<ExitCode, TaskFailure> {
    app::end_on_signals(&command)?;
    match command {
        Command::Serve(settings) => Box::pin(app::serve(*settings, Handles::default())).await?,
        Command::Check(settings) => return app::check(*settings).await,
        Command::Dev(settings) => Box::pin(dev::run(*settings)).await?,
        Command::DevPostgres(settings) => dev::supervise_postgres(settings).await?,
        Command::Migrate(settings) => app::migrate(*settings).await?,
        Command::Outbox(command) => return Ok(app::outbox::run(command).await),
        Command::Reseal(command) => return Ok(app::payload_keys::run(command).await),
        Command::Token(command) => return Ok(app::tokens::run(&command)),
        Command::Auth(command) => return Ok(app::tokens::run_auth(&command)),
        Command::Client(command) => return Ok(client::run(*command).await),
        Command::Print(text) => config::print_document(&text)?,
        Command::Bench { args, kafka } => {
            return Ok(Box::pin(bench::run(*args, Property::pairs(&kafka))).await);
        }
    }
    Ok(ExitCode::SUCCESS)
}
