//! The program: read the settings, start the logs, run, say how it ended.

use std::io::Write as _;
use std::process::ExitCode;

use punctual::config::{self, Command, Property};
use punctual::shutdown::{Failure, Tasks, chain};
use punctual::signals::{self, Signals};
use punctual::{app, bench, client, telemetry};

fn main() -> ExitCode {
    let invocation = match config::read(std::env::args_os(), app::problems) {
        Ok(invocation) => invocation,
        Err(refusal) => return refusal.report(),
    };
    telemetry::logging::start(&invocation.log);
    rustls::crypto::ring::default_provider().install_default().ok(); // Fails only when one is installed already.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::from);
    let ended = runtime.and_then(|runtime| runtime.block_on(run(invocation.command)));
    let code = ended.unwrap_or_else(|failure| {
        tracing::error!("{}", chain(failure.as_ref()));
        ExitCode::FAILURE
    });
    telemetry::logging::flush();
    code
}

async fn run(command: Command) -> Result<ExitCode, Failure> {
    let ends_by_itself = match &command {
        Command::Serve(_) => true,
        Command::Client(command) => command.ends_by_itself(),
        Command::Migrate(_) | Command::Completions(_) | Command::Bench { .. } => false,
    };
    if signals::needs_handlers() && !ends_by_itself {
        end_on_signals()?;
    }
    match command {
        Command::Serve(settings) => {
            settings.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
            Box::pin(app::serve(*settings)).await?;
        }
        Command::Migrate(settings) => app::migrate(*settings).await?,
        Command::Client(command) => return Ok(client::run(command).await),
        Command::Completions(script) => std::io::stdout().write_all(&script)?,
        Command::Bench { args, kafka } => return Ok(Box::pin(bench::run(*args, Property::pairs(&kafka))).await),
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends the process at the first signal, with the exit code that a shell reports elsewhere. A transaction that is open is rolled back
/// with its connection.
fn end_on_signals() -> Result<(), Failure> {
    let mut signals = Signals::listen(&signals::EndSignal::ALL)?;
    // A task of its own: the command may be blocked in a write.
    Tasks::default().spawn("signals", async move {
        let code = signals.next().await.exit_code();
        telemetry::logging::flush();
        std::process::exit(code)
    });
    Ok(())
}
