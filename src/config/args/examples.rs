//! The text of `--help` after the flags, for the commands of a node, with the rule for the examples
//! of all commands.

pub const START: &str = "\
Examples:
  punctual server start --database-url-file /run/secrets/database-url \\
    --kafka kafka-1:9092";

pub const SERVER_MIGRATE: &str = "\
Examples:
  punctual server migrate --database-url-file /run/secrets/database-url";

pub const CHECK: &str = "\
Examples:
  punctual server check --database-url-file /run/secrets/database-url \\
    --kafka kafka-1:9092 --etcd etcd-1:2379

Exit codes: 0 a node could start, 1 a server is away or not as it must be, 2 wrong settings.";

pub const SERVE: &str = "\
Examples:
  punctual serve --database-url postgres://punctual@localhost/punctual \\
    --kafka localhost:9092 --auto-migrate
  punctual serve --database-url-file /run/secrets/database-url \\
    --kafka kafka-1:9092 --etcd etcd-1:2379,etcd-2:2379 \\
    --listen 0.0.0.0:7070 --auth-file /etc/punctual/auth.toml \\
    --tls-certificate-file tls.crt --tls-key-file tls.key";

pub const MIGRATE: &str = "\
Examples:
  punctual migrate \\
    --database-url 'postgres://punctual@db/punctual?sslmode=verify-full'
  punctual migrate --database-url-file /run/secrets/database-url \\
    --window 500ms";

pub const COMPLETIONS: &str = "\
Examples:
  source <(punctual completions bash)
  punctual completions zsh > ~/.zfunc/_punctual
  punctual completions fish > ~/.config/fish/completions/punctual.fish";

pub const MAN: &str = "\
Examples:
  punctual man serve | man --local-file -
  punctual man token new | man --local-file -
  punctual man > /usr/local/share/man/man1/punctual.1";

#[cfg(test)]
mod tests {
    /// A terminal of 80 columns breaks no line of this length.
    const COLUMNS_MAX: usize = 78;

    /// Returns the lines of the examples in the text after the flags.
    fn examples(text: &str) -> Vec<&str> {
        let lines = text.lines().skip_while(|line| *line != "Examples:");
        lines.take_while(|line| !line.starts_with("Exit codes:")).collect()
    }

    /// Returns the texts after the flags of a command and of those below it, each with the name of
    /// its command. The measurements of `bench` are not for the terminals of users.
    fn texts(command: &clap::Command) -> Vec<(String, String)> {
        let own = [command.get_after_help(), command.get_after_long_help()].into_iter().flatten();
        let own = own.map(|text| (command.get_name().to_owned(), text.to_string()));
        let below = command.get_subcommands().filter(|command| command.get_name() != "bench");
        own.chain(below.flat_map(texts)).collect()
    }

    #[test]
    fn examples_stay_whole_on_a_terminal_of_80_columns() {
        let texts = texts(&crate::config::command());
        let mut count = 0;
        for (command, text) in &texts {
            let lines = examples(text);
            count += usize::from(!lines.is_empty());
            for (index, line) in lines.iter().enumerate() {
                assert!(line.chars().count() <= COLUMNS_MAX, "{command}: {line}");
                let goes_on = line.ends_with('\\');
                let next = lines.get(index + 1).copied().unwrap_or_default();
                assert!(!goes_on || line.ends_with(" \\"), "{command}: {line}");
                assert!(!goes_on || next.starts_with("    "), "{command}: {line}\n{next}");
            }
        }
        assert!(count > 40, "only {count} commands have examples");
    }
}
