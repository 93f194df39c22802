//! The text of a plan: one operation a line, as `plan` describes it.

use std::fmt;
use std::str::FromStr;

use super::plan::{CLOCK_NODE, Kind, NODES, Operation, Plan, STEPS_MAX};

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.at, self.kind.name())?;
        if self.node > 0 {
            write!(f, " node={}", self.node)?;
        }
        if self.lasts > 0 {
            write!(f, " for={}", self.lasts)?;
        }
        if self.by != 0 {
            write!(f, " by={}", self.by)?;
        }
        let steps: Vec<String> = self.steps().map(|step| step.to_string()).collect();
        if !steps.is_empty() {
            write!(f, " steps={}", steps.join(","))?;
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# seed={} seconds={}", self.seed, self.seconds)?;
        self.operations.iter().try_for_each(|operation| writeln!(f, "{operation}"))
    }
}

fn value<T: FromStr>(line: &str, key: &str) -> Result<Option<T>, String> {
    let Some(text) =
        line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_wrong| format!("`{text}` is no value for {key}: {line}"))
}

fn steps_of(line: &str) -> Result<[u16; STEPS_MAX], String> {
    let mut steps = [0; STEPS_MAX];
    let Some(text) = value::<String>(line, "steps")? else { return Ok(steps) };
    for (index, step) in text.split(',').enumerate() {
        let step = step.parse().ok().filter(|step| *step > 0);
        let (step, place) = step.zip(steps.get_mut(index)).ok_or_else(|| {
            format!(
                "steps are up to {STEPS_MAX} spans in milliseconds, with commas between them: \
                 {line}"
            )
        })?;
        *place = step;
    }
    Ok(steps)
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let at = words
            .next()
            .and_then(|word| word.parse().ok())
            .ok_or_else(|| format!("no time at the start: {line}"))?;
        let name = words.next().unwrap_or_default();
        let kind = Kind::of_name(name)
            .filter(|kind| !kind.is_observed())
            .ok_or_else(|| format!("there is no operation `{name}`: {line}"))?;
        if let Some(word) = words.find(|word| {
            !["node=", "for=", "by=", "steps="].iter().any(|key| word.starts_with(key))
        }) {
            return Err(format!("`{word}` means nothing: {line}"));
        }
        let node = value(line, "node")?.unwrap_or(0);
        let is_right = if kind.has_node() { (1..=NODES).contains(&node) } else { node == 0 };
        if !is_right || (kind == Kind::ClockStep && node != CLOCK_NODE) {
            return Err(format!("node={node} is not for {name}: {line}"));
        }
        let (lasts, by) = (value(line, "for")?.unwrap_or(0), value(line, "by")?.unwrap_or(0));
        let steps = steps_of(line)?;
        let is_right = match kind {
            Kind::PostgresClock => steps[0] > 0 || by != 0,
            Kind::Quota => by > 0 && steps[0] == 0,
            Kind::Replicated(kind) => kind.takes(by) && steps[0] == 0,
            _ => steps[0] == 0,
        };
        if !is_right {
            return Err(format!(
                "a quota has bytes a second (by=), Postgres's clock steps=, a lost broker its \
                 number (by=), nothing else has: {line}"
            ));
        }
        Ok(Self { at, kind, node, lasts, by, steps })
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let header = text
            .lines()
            .find(|line| line.starts_with("# seed="))
            .ok_or("no line `# seed=N seconds=N`")?;
        let seed = value(header, "seed")?.ok_or("no seed")?;
        let seconds = value(header, "seconds")?.ok_or("no seconds")?;
        let lines =
            text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let operations = lines.map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { seed, seconds, operations })
    }
}
